"""Which processes a report is about, what it says against itself, and what it refuses."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepprobe.errors import EvidenceError
from stepprobe.model.records import Step
from stepprobe.probes import ledger
from tests.fakes.records import CLEAN, COUNTS, METHODS, MS, FakeProcess, clean_process, evidence


def derive(*processes, **options):
    return ledger.derive(evidence(*processes, **options))


def said(report, text):
    return [note for note in report.notes if text in note]


# -- processes and ranks --


def ranks(count=2):
    return [FakeProcess(rank=rank, world_size=count, **METHODS).steps(20, CLEAN, COUNTS).end() for rank in range(count)]


def test_ranks_are_compared_and_their_tokens_summed():
    report = derive(*ranks())
    table = next(table for table in report.tables if table.name == "ranks")
    assert [row[0] for row in table.rows] == [0, 1]
    assert table.rows[0][1:4] == pytest.approx((100, 100 - 59 - 0.5, 59))
    assert report.figures["tokens.real_per_second"].value == pytest.approx(2 * 40960)
    assert "summed over 2 ranks" in report.figures["tokens.real_per_second"].method


def test_ranks_are_compared_over_the_same_steps():
    first, second = (FakeProcess(rank=rank, world_size=2) for rank in range(2))
    first.steps(4, {"sync": 50}).steps(30, {"sync": 10})
    second.steps(4, {"sync": 10}).steps(30, {"sync": 10})
    report = derive(first, second)
    assert report.figures["step.warmup"].value == 4
    assert said(report, "rank 1: warm-up: the first 4 steps")


def test_two_calls_of_one_line_are_one_row():
    calls = [
        ("a.py:1 f", "item", 30, 30, 3 * MS),
        ("a.py:1 f", "item", 60, 30, 3 * MS),
        ("a.py:1 f", "cpu", 30, 30, MS),
    ]
    table = next(one for one in derive(clean_process().sites(syncs=calls)).tables if one.name == "syncs")
    steps = 90 / table.rows[0][2]
    assert [row[:3] for row in table.rows] == [("a.py:1 f", "item", 90 / steps), ("a.py:1 f", "cpu", 30 / steps)]
    assert [row[3] for row in table.rows] == pytest.approx([9 / steps, 1 / steps])


def test_one_step_of_warm_up_is_one_step():
    assert said(derive(FakeProcess().steps(30, CLEAN).end(), warmup="1"), "warm-up: the first step is not in the")


def test_ranks_that_left_nothing_are_missed():
    assert said(derive(*ranks(3)[:2]), "2 of 3 ranks left steps")


def test_a_nested_training_of_the_same_rank_is_named_and_left_out():
    small = FakeProcess(pid=7).steps(5, {"sync": 1}).end()
    report = derive(clean_process().end(), small)
    assert report.figures["step.count"].value == 60
    assert said(report, "process 7 trained, too (5 steps)")


@settings(max_examples=20, deadline=None)
@given(st.permutations(range(4)))
def test_the_order_of_the_files_does_not_matter(order):
    processes = [*ranks(3), FakeProcess(pid=7, world_size=3).steps(5, {"sync": 1})]
    assert derive(*(processes[i] for i in order)) == derive(*processes)


@settings(max_examples=20, deadline=None)
@given(st.sampled_from([2, 4, 8, 16]), st.lists(st.integers(1, 60), min_size=16, max_size=40))
def test_a_machine_so_many_times_slower_gives_so_many_times_the_times(factor, walls):
    slow, fast = FakeProcess(), FakeProcess()
    for wall in walls:
        fast.step({"optimizer": wall, "forward.mlp": 2 * wall})
        slow.step({"optimizer": factor * wall, "forward.mlp": 2 * factor * wall})
    before, after = derive(fast).figures, derive(slow).figures
    assert after["step.warmup"].value == before["step.warmup"].value
    for name in ("step.wall", "step.wall_median", "ledger.optimizer"):
        assert after[name].value == pytest.approx(factor * before[name].value)
        assert after[name].high == pytest.approx(factor * before[name].high)


# -- reservations --


def test_a_killed_process_and_its_unfinished_line():
    fake = clean_process()
    seen = evidence(fake, status="interrupted")
    name, content = next(iter(seen.files.items()))
    report = ledger.derive(
        type(seen)(**{**{f: getattr(seen, f) for f in seen.__struct_fields__}, "files": {name: content[:-20]}})
    )
    assert report.verdict == "warn"
    assert report.figures["step.count"].value == 59
    assert said(report, "was killed")
    assert said(report, "bytes dropped")
    assert said(report, "interrupted")


def test_a_process_that_died_in_its_first_line_is_no_error():
    seen = evidence(clean_process().end())
    files = {**seen.files, "steps-rank1-pid9.jsonl": b'{"type":"hea', "steps-rank2-pid9.jsonl": b"", "run.json": b"{}"}
    report = ledger.derive(type(seen)(**{**{f: getattr(seen, f) for f in seen.__struct_fields__}, "files": files}))
    assert report.figures["step.count"].value == 60
    assert said(report, "steps-rank1-pid9.jsonl: the process ended before its first line was finished (12 bytes")


def test_what_the_writer_says_is_passed_on():
    assert said(derive(clean_process().note("the clock went backwards 3 times")), "the clock went backwards 3 times")


def test_a_run_that_drifts_is_not_taken_at_face_value():
    fake = FakeProcess()
    for i in range(120):
        fake.step({"optimizer": 100 + 0.1 * i})
    report = derive(fake)
    assert report.verdict == "warn"
    assert said(report, "not stationary")


def test_a_warmup_that_never_ends_is_said():
    fake = FakeProcess()
    for i in range(40):
        fake.step({"optimizer": 100 - i})
    assert said(derive(fake), "may not have become steady at all")


def test_few_steps_and_a_dear_instrument_are_warned_of():
    assert said(derive(FakeProcess().steps(5, {"sync": 1}, self_ms=0)), "only 5 steady steps")
    report = derive(FakeProcess().steps(40, {"optimizer": 10}, self_ms=0.5))
    assert report.verdict == "warn"
    assert said(report, "observing took 5.0% of the step")


def test_untimed_syncs_are_said():
    fake = clean_process().sites(syncs=[("a.py:1 f", "item", 100, 25, MS)])
    report = derive(fake)
    assert said(report, "75 of 100 synchronising calls (75%) were counted but not timed")
    row = next(table for table in report.tables if table.name == "syncs").rows[0]
    assert row == ("a.py:1 f", "item", pytest.approx(100 / 60), pytest.approx(4 / 60))


# -- nothing to see --


@pytest.mark.parametrize(
    ("processes", "count"),
    [
        ((), 0),
        ((FakeProcess().end(),), 0),
        ((FakeProcess().steps(9, {"sync": 0}),), 9),
        ((FakeProcess().step({"sync": 1}, end="exit").end(),), 1),
    ],
    ids=["no file", "no step", "no time", "no end of a step"],
)
def test_without_a_finished_step_nothing_is_measured(processes, count):
    report = derive(*processes, status="exit 3")
    assert report.verdict == "not measured"
    assert report.figures["step.count"].value == count
    assert "exit 3" in report.headline
    assert report.ledger == ()


# -- evidence that is wrong --


def test_a_step_that_does_not_close_is_refused():
    fake = clean_process()
    step = fake.records[-1]
    fake.records[-1] = Step(
        **{name: getattr(step, name) for name in step.__struct_fields__} | {"wall_ns": step.wall_ns + 1}
    )
    with pytest.raises(EvidenceError, match="does not close"):
        derive(fake)


def test_an_unknown_account_is_refused():
    with pytest.raises(EvidenceError, match="unknown account 'coffee'"):
        derive(FakeProcess().step({"coffee": 3}))
