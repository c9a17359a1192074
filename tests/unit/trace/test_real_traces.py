"""Real traces against their known figures. They carry other people's names, so they are not in the repository.

``STEPPROBE_SHARED_DATA`` names the folder that has ``traces/``; without it these tests are skipped.
"""

import gzip
import json
import os
from pathlib import Path

import pytest

from stepprobe.analysis.trace.ranks import compare, ordered
from stepprobe.analysis.trace.report import trace_report
from stepprobe.analysis.trace.summary import summarise
from stepprobe.instruments.trace.reader import read
from stepprobe.model.evidence import Evidence
from stepprobe.model.trace import encode_columns
from tests.fakes.traces import steps_of

FOLDER = Path(os.environ.get("STEPPROBE_SHARED_DATA", "absent")) / "traces"
pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason="STEPPROBE_SHARED_DATA names no folder with traces/")

# idle % of steps, busy ms, kernels, copies, linked and carried % of time, op + device over device rows, annotated
KNOWN = {
    "h100_timesformer": (58.58, 158.4, 446, 88, 100.0, 0.0, 2.000, 3.010),
    "h100_owlv2": (53.21, 566.8, 4330, 835, 100.0, 0.0, 2.000, 3.903),
    "h100_qwen1.5_0.5b": (8.22, 45.6, 1465, 242, 69.9, 30.1, 1.699, 2.463),
    "mi300_resnet_act_checkpoint": (4.91, 84.0, 2995, 658, 68.2, 31.8, 1.682, 2.221),
    "v100_df_index_resolver": (42.42, 1000.6, 19370, 2920, 100.0, 0.0, 1.0, None),
    "a100_control": (16.46, 388.6, 8568, 882, 98.5, 0.0, 1.0, None),
    "v100_ns_resolution": (2.56, 472.5, 4350, 1745, 100.0, 0.0, 2.000, 2.339),
    "a100_negative_queue_length": (64.49, 438.4, 6080, 1667, 79.6, 13.2, 1.0, None),
    "v100_resnet50_workers0": (29.64, 653.5, 9564, 451, 92.3, 5.4, 1.923, 1.923),
    "v100_resnet50_workers4": (12.98, 669.9, 9456, 363, 91.3, 6.4, 1.913, 1.913),
    "sampled_rank0": (55.49, 547.7, 1154, 50, 99.9, 0.0, 1.0, None),
    "sampled_rank1": (53.17, 580.0, 1104, 50, 99.9, 0.0, 1.0, None),
    "v100_dlrm_rank0": (54.41, 6.6, 245, 16, 100.0, 0.0, 1.0, None),
    "v100_dlrm_rank1": (38.09, 12.3, 310, 16, 98.4, 1.6, 1.0, None),
    "v100_dlrm_rank3": (44.56, 10.7, 315, 22, 98.4, 1.6, 1.0, None),
    "a100_triton_example": (100.0, 0.0, 1, 0, 100.0, 0.0, 2.000, 2.000),
}
BY_LAUNCH = {
    "v100_ns_resolution": [94.6, 94.6, 94.5, 94.6, 94.3],
    "v100_resnet50_workers0": [102.9, 103.1, 103.0, 103.3, 103.2, 102.9],
    "v100_resnet50_workers4": [104.6, 104.4, 104.4, 104.6, 104.4, 104.7],
    "mi300_resnet_act_checkpoint": [18.9, 18.9, 18.4],
    "a100_negative_queue_length": [75.4, 79.5, 74.9, 81.0, 70.2],
    "v100_df_index_resolver": [188.4, 188.2, 188.1, 188.3, 247.6],
}


def path(name):
    return FOLDER / f"{name}.json.gz"


def report(*names):
    files = {f"{name}.columns": b"".join(encode_columns(read(path(name)))) for name in names}
    return trace_report(Evidence(probe="trace", command="trace", subject="t", environment={}, files=files))


@pytest.mark.parametrize("name", KNOWN)
def test_the_figures_of_a_trace(name):
    idle, _, kernels, _, linked, carried, twice, annotated = KNOWN[name]
    figures = report(name).figures
    assert 100 * figures["trace.idle_share"].value == pytest.approx(idle, abs=0.04)  # the few µs between steps
    assert figures["trace.kernels"].value == kernels
    assert 100 * figures["trace.linked_share"].value == pytest.approx(linked, abs=0.06)
    assert 100 * figures["trace.carried_over_share"].value == pytest.approx(carried, abs=0.06)
    assert figures["trace.double_count_factor"].value == pytest.approx(twice, abs=0.0006)
    if annotated is not None:
        assert figures["trace.naive_factor"].value == pytest.approx(annotated, abs=0.0006)


@pytest.mark.parametrize("name", KNOWN)
def test_every_row_is_in_the_tables_once(name):
    (one,) = summarise(read(path(name)))
    _, busy, kernels, copies = KNOWN[name][:4]
    assert (one.kernels, one.copies) == (kernels, copies)
    assert one.busy_ns / 1e6 == pytest.approx(busy, abs=0.06)
    for table in (one.by_name, one.by_family, one.by_op, one.by_phase):
        assert sum(group.total_ns for group in table) == one.naive.device_ns
        assert sum(group.exclusive_ns for group in table) == one.busy_ns
    assert one.outcomes["no launch row, unexplained"] == (0, 0)
    assert one.naive.differ == 0


@pytest.mark.parametrize("name", BY_LAUNCH)
def test_equal_work_shows_by_launch(name):
    (one,) = summarise(read(path(name)))
    assert [round(step.launched_ns / 1e6, 1) for step in steps_of(one)] == BY_LAUNCH[name]


@pytest.mark.parametrize(
    ("name", "data", "wall"),
    [("v100_resnet50_workers0", 280, 929), ("v100_resnet50_workers4", 10, 770), ("h100_owlv2", 619, 1211)],
)
def test_the_loader_is_named(name, data, wall):
    found = report(name)
    steps = found.figures["trace.steps"].value
    assert round(found.figures["trace.dataloader"].value * steps) == data
    assert abs(found.figures["trace.step_wall"].value * steps - wall) < 1
    assert "DataLoader" in found.headline


def test_the_head_before_the_first_kernel():
    assert report("h100_timesformer").figures["trace.head"].value == pytest.approx(218.1, abs=0.05)


@pytest.mark.parametrize("name", ["cpu_only", "rank_not_found", "self_torch2.13_cpu"])
def test_no_device_is_said_and_never_zero_percent(name):
    found = report(name)
    assert found.verdict == "warn"
    assert not {"trace.busy_share", "trace.idle_share"} & set(found.figures)
    assert any("no device rows" in note for note in found.notes)


def test_a_compact_copy_gives_the_same_summary(tmp_path):
    whole = json.loads(gzip.decompress(path("h100_qwen1.5_0.5b").read_bytes()), strict=False)
    copy = tmp_path / "h100_qwen1.5_0.5b.json.gz"
    copy.write_bytes(gzip.compress(json.dumps({"traceEvents": whole["traceEvents"]}).encode()))
    (one,), (other,) = (summarise(read(file)) for file in (path("h100_qwen1.5_0.5b"), copy))
    assert steps_of(one) == steps_of(other)
    assert one.by_name == other.by_name
    assert (one.layout, other.layout) == ("streamed", "whole")


def by_hand(rank):
    """Durations (µs) of the collectives of one rank in order, by name, straight from the JSON."""
    events = json.loads(gzip.decompress(path(f"v100_dlrm_rank{rank}").read_bytes()))["traceEvents"]
    rows = [one for one in events if one.get("cat") == "kernel" and one["name"].startswith("nccl")]
    others = [one for one in events if one.get("cat") == "kernel" and not one["name"].startswith("nccl")]
    (step,) = [
        one for one in events if str(one.get("name")).startswith("ProfilerStep") and one["cat"] != "gpu_user_annotation"
    ]
    return sorted(rows, key=lambda one: one["ts"]), others, step


def test_eight_ranks_against_a_calculation_by_hand():
    summaries = ordered([one for rank in range(8) for one in summarise(read(path(f"v100_dlrm_rank{rank}")))])
    assert [one.rank for one in summaries] == list(range(8))
    ranks = compare(summaries)
    collectives = [by_hand(rank)[0] for rank in range(8)]
    assert len(ranks.meetings) == 8
    assert ranks.unmatched == 0
    waits = [0] * 8
    last = [0] * 8
    for name in {one["name"] for one in collectives[0]}:
        columns = [[one["dur"] for one in rank if one["name"] == name] for rank in collectives]
        for durations in zip(*columns, strict=True):
            last[durations.index(min(durations))] += 1
            waits = [wait + duration - min(durations) for wait, duration in zip(waits, durations, strict=True)]
    assert [ranks.waited(rank) for rank in range(8)] == [1000 * wait for wait in waits]
    assert [ranks.last(rank) for rank in range(8)] == last
    found = report(*(f"v100_dlrm_rank{rank}" for rank in range(8)))
    assert found.figures["trace.straggler"].value == waits.index(min(waits))
    assert found.figures["trace.rank_wait"].value == pytest.approx(sum(waits) / 8 / 1000)


def test_overlap_of_eight_ranks_against_a_calculation_by_hand():
    hidden = communicated = 0
    for rank in range(8):
        rows, others, step = by_hand(rank)
        window = range(step["ts"], step["ts"] + step["dur"])
        instants = {time for one in rows for time in range(one["ts"], one["ts"] + one["dur"])} & set(window)
        computed = {time for one in others for time in range(one["ts"], one["ts"] + one["dur"])}
        if rank in (1, 3):  # rows launched before the window count as carried over, not as compute
            (summary,) = summarise(read(path(f"v100_dlrm_rank{rank}")))
            hidden += round(sum(one.hidden_ns for one in steps_of(summary)) / 1000)
            communicated += round(sum(one.communication_ns for one in steps_of(summary)) / 1000)
            continue
        hidden, communicated = hidden + len(instants & computed), communicated + len(instants)
    found = report(*(f"v100_dlrm_rank{rank}" for rank in range(8)))
    assert found.figures["trace.comm_overlap_share"].value == pytest.approx(hidden / communicated)
