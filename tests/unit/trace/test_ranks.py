"""Ranks of one job: stragglers, waits and clocks, whose answer is known."""

import pytest

from stepprobe.analysis.trace.ranks import compare, ordered
from stepprobe.analysis.trace.report import trace_report
from stepprobe.analysis.trace.summary import encode_summaries, summarise
from stepprobe.analysis.trace.tables import readable
from stepprobe.instruments.trace.reader import read_bytes
from stepprobe.model.evidence import Evidence
from stepprobe.model.trace import encode_columns
from tests.fakes.traces import Builder

LATE = (0, 300_000, 100_000)
CLOCKS = (0, 7_000_000, -3_000_000)
NAME = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"


def job(late=LATE, clocks=CLOCKS, steps=3):
    """Ranks that reach each collective ``late`` ns after the first one, on clocks of their own."""
    ranks = []
    for rank, (delay, clock) in enumerate(zip(late, clocks, strict=True)):
        built = Builder(origin_ns=5_000_000_000 + clock, rank=rank)
        for number in range(steps):
            at = number * 1_000_000
            built.step(number, at, at + 1_000_000)
            built.op("c10d::allreduce_", at + 10_000, at + 30_000)
            call = built.launch(at + 15_000, at + 20_000)
            built.kernel(NAME, at + 200_000 + delay, at + 600_000, call, launched=at + 15_000)
        ranks.append(built)
    return ranks


def columns(ranks):
    return [read_bytes(f"rank{place}.json", built.text()) for place, built in enumerate(ranks)]


def test_the_last_rank_is_the_straggler_and_the_others_wait():
    ranks = compare(ordered([one for each in columns(job()) for one in summarise(each)]))
    assert [ranks.waited(rank) for rank in range(3)] == [900_000, 0, 600_000]
    assert [ranks.last(rank) for rank in range(3)] == [0, 3, 0]
    assert ranks.offsets_ns == CLOCKS
    assert {meeting.spread_ns for meeting in ranks.meetings} == {0}


def test_the_report_names_it_and_does_not_depend_on_the_order_of_files():
    files = {f"{place}.columns": b"".join(encode_columns(each)) for place, each in enumerate(columns(job()))}
    reports = [
        trace_report(Evidence(probe="trace", command="trace", subject="j", environment={}, files=dict(chosen)))
        for chosen in (files.items(), reversed(files.items()))
    ]
    assert reports[0] == reports[1]
    figures = reports[0].figures
    assert figures["trace.straggler"].value == 1
    assert figures["trace.rank_wait"].value == pytest.approx((0.9 + 0.6) / 9)
    assert [one.kind for one in reports[0].findings].count("rank.straggler") == 1


def test_summaries_stand_for_columns():
    found = columns(job())
    as_columns = {f"{place}.columns": b"".join(encode_columns(each)) for place, each in enumerate(found)}
    as_summaries = {f"{place}.summary.json": encode_summaries(each) for place, each in enumerate(found)}
    reports = [
        trace_report(Evidence(probe="trace", command="trace", subject="j", environment={}, files=files))
        for files in (as_columns, as_summaries)
    ]
    assert reports[0] == reports[1]


def test_a_collective_without_partner_is_said():
    ranks = job()
    ranks[1].kernel("ncclDevKernel_Broadcast", 900_000, 950_000, ranks[1].launch(880_000, 890_000), launched=880_000)
    files = {f"{place}.columns": b"".join(encode_columns(each)) for place, each in enumerate(columns(ranks))}
    found = trace_report(Evidence(probe="trace", command="trace", subject="j", environment={}, files=files))
    assert any("1 of 10 communication rows have no partner" in note for note in found.notes)


def test_equal_ranks_have_no_straggler_finding():
    files = {f"{p}.columns": b"".join(encode_columns(each)) for p, each in enumerate(columns(job(late=(0, 0, 0))))}
    found = trace_report(Evidence(probe="trace", command="trace", subject="j", environment={}, files=files))
    assert "rank.straggler" not in [one.kind for one in found.findings]
    assert found.figures["trace.rank_wait"].value == 0


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("void at::native::(anonymous namespace)::k<int, (bool)1>(float*, int)", "k<int, (bool)1>"),
        ("ncclKernel_AllReduce_Sum(ncclDevComm*, unsigned long)", "ncclKernel_AllReduce_Sum"),
        ("Memcpy DtoH (Device -> Pageable)", "Memcpy DtoH (Device -> Pageable)"),
        ("(carried over)", "(carried over)"),
        ("", ""),
    ],
)
def test_names_of_kernels_are_readable(name, shown):
    assert readable(name) == shown
