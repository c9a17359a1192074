"""What the driver asks of a harness with planted costs, and what it does when it is refused. No time passes here."""

import gc
import itertools
import math
import statistics

import pytest

from stepprobe.instruments.experiments import bench, points
from stepprobe.instruments.experiments.driver import FINISHED, run_experiments
from stepprobe.instruments.experiments.plan import Plan
from stepprobe.model.experiments import decode_experiments
from tests.fakes.harness import HEADER, FakeHarness, FakeMachine, FakeOutOfMemory, FakeTorch, ListJournal, sealed

BATCHES = ((128, 60, 100, 20, 128, 90, 31, 64), (100, 80, 90, 10, 20, 30, 40, 50))
PLAN = Plan(seconds=60, batches=BATCHES, longest=4096)
GOOD = ((1, 128), (8, 128), (1, 1024))


def drive(harness, plan=PLAN, *, torch=None, **machine):
    torch, journal = torch or FakeTorch(), ListJournal()
    journal.machine = FakeMachine(harness, torch, **machine)
    journal.reason = run_experiments(harness, journal, plan, torch, journal.machine)
    decode_experiments("experiments", sealed([("harness", HEADER), *journal.lines]))
    return journal


def shapes(lines):
    return {(line["rows"], line["length"]) for line in lines}


def medians(journal, experiment="scaling"):
    lines = journal.of("measured", experiment=experiment)
    return {
        point: statistics.median(line["wall_ns"] for line in lines if (line["rows"], line["length"]) == point)
        for point in shapes(lines)
    }


def test_a_run_measures_everything_and_the_planted_parts_come_out():
    harness = FakeHarness(first_ns=1e9)
    journal = drive(harness, Plan(seconds=600, batches=BATCHES, longest=4096))
    assert journal.reason == FINISHED
    assert journal.lines[0][0] == "quiet"
    times = medians(journal)
    assert points.pilot_fit(times) == pytest.approx((6e6, 24e3, 40.0), rel=1e-6)  # first steps are no part of it
    assert points.condition(times) < points.WORST_CONDITION
    (heldout,) = shapes(journal.of("measured", experiment="heldout"))
    assert heldout not in times
    assert min(r for r, _ in times) < heldout[0] <= max(r for r, _ in times)
    fixed = shapes(journal.of("measured", experiment="fixed_tokens"))
    assert len(fixed) == 3
    assert len({rows * length for rows, length in fixed}) == 1
    assert shapes(journal.of("measured", experiment="remedy", variant="none")) == {(8, 128)}


def test_no_line_pays_for_the_shape_before():
    harness = FakeHarness(switching_ns=5e6)
    lines = drive(harness).of("measured")
    assert {line["wall_ns"] - round(harness.truth(line["rows"], line["length"])) for line in lines} == {0}


def test_padding_is_measured_on_the_rows_of_the_run():
    journal = drive(FakeHarness())
    padded, plain = (journal.of("measured", experiment=name) for name in ("padded", "unpadded"))
    assert shapes(padded) == {(8, 100)}  # of the two ragged batches, the upper median of waste
    assert {line["real"] for line in padded} == {sum(BATCHES[1])}
    assert shapes(plain) == {(8, round(sum(BATCHES[1]) / 8))}
    assert not drive(FakeHarness(), Plan(seconds=60, batches=((64, 64),), longest=4096)).of(
        "measured", experiment="padded"
    )


def test_each_block_holds_each_point_once_in_an_order_of_its_own():
    lines = drive(FakeHarness()).lines
    blocks = [
        [(line["rows"], line["length"]) for _, line in group]
        for _, group in itertools.groupby(
            (one for one in lines if one[0] == "measured" and one[1]["experiment"] in ("scaling", "heldout")),
            key=lambda one: one[1]["block"],
        )
    ]
    assert len(blocks) >= bench.BLOCKS
    assert all(sorted(block) == sorted(blocks[0]) and len(set(block)) == 4 for block in blocks)
    assert len({tuple(block) for block in blocks}) > len(blocks) / 2


def test_gradients_are_what_the_loop_leaves():
    harness = FakeHarness()
    drive(harness)
    assert set(harness.gradients_before) == {False}
    assert harness.module.weight.grad is None
    keeping = FakeHarness()
    drive(keeping, Plan(seconds=60, batches=BATCHES, zeroed=True))
    assert keeping.gradients_before.count(False) == 1  # the very first


def test_the_collector_rests_while_steps_are_timed_and_works_again():
    seen = []

    class Watching(FakeHarness):
        def step(self, batch):
            seen.append(gc.isenabled())
            return super().step(batch)

    assert gc.isenabled()
    drive(Watching())
    assert gc.isenabled()
    assert seen.count(False) > 0.8 * len(seen)


def test_what_the_collector_knew_is_thawed_again_unless_the_user_froze_it():
    assert gc.get_freeze_count() == 0
    drive(FakeHarness())
    assert gc.get_freeze_count() == 0
    gc.freeze()
    try:
        drive(FakeHarness())
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()


def test_every_repetition_draws_the_same():
    torch = FakeTorch()
    harness = FakeHarness()
    drive(harness, torch=torch)
    assert len(torch.seeds) >= len(harness.steps)
    assert set(torch.seeds) == {0}


def test_a_busy_machine_is_refused_before_any_step():
    harness = FakeHarness()
    journal = drive(harness, refused="other processes use 1.0 of 2 processors")
    assert [kind for kind, _ in journal.lines] == ["quiet"]
    assert journal.reason == journal.lines[0][1]["refused"] == "other processes use 1.0 of 2 processors"
    assert harness.steps == []
    anyway = drive(harness, Plan(seconds=60, batches=BATCHES, anyway=True), refused="busy")
    assert anyway.of("quiet") == [{**anyway.of("quiet")[0], "anyway": True, "refused": ""}]
    assert anyway.of("measured")


@pytest.mark.parametrize(
    ("named", "why"),
    [
        (GOOD[:2], "2 points cannot"),
        (((1, 128), (4, 128), (8, 128)), "proportional"),
        (((1, 128), (1, 256), (1, 512)), "all points have 1 rows"),
    ],
)
def test_points_that_cannot_tell_are_refused_with_the_reason(named, why):
    journal = drive(FakeHarness(), Plan(seconds=60, points=named))
    assert journal.of("measured") == []
    (dropped,) = journal.of("dropped")
    assert dropped["reason"] == "refused"
    assert why in dropped["text"]


def test_points_that_are_named_are_measured():
    journal = drive(FakeHarness(), Plan(seconds=60, points=GOOD))
    assert shapes(journal.of("measured", experiment="scaling")) == set(GOOD)
    assert len(shapes(journal.of("measured", experiment="heldout"))) == 1


@pytest.mark.parametrize(
    "error",
    [
        FakeOutOfMemory("CUDA out of memory. Tried to allocate 2 GiB"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 99 bytes"),
        MemoryError(),
    ],
)
def test_out_of_memory_drops_the_point_and_takes_the_next_smaller(error):
    whole = shapes(drive(FakeHarness()).of("measured", experiment="scaling"))
    largest = max(whole, key=lambda point: point[0] * point[1])
    harness = FakeHarness(capacity=largest[0] * largest[1] * 1000 - 1, out_of_memory=error)
    journal = drive(harness)
    assert journal.reason == FINISHED
    dropped = journal.of("dropped", experiment="scaling", reason="memory")
    assert (dropped[0]["rows"], dropped[0]["length"]) == largest
    times = medians(journal)
    assert len(times) == 3
    assert largest not in times
    assert points.condition(times) < points.WORST_CONDITION
    assert journal.machine.memory.released
    assert journal.of("measured", experiment="padded")


def test_what_is_predicted_not_to_fit_is_never_run():
    harness = FakeHarness()
    journal = drive(harness, free=600_000)  # 600 tokens, of which a margin is left
    assert max(rows * length for rows, length in harness.steps[:-300]) * 1000 <= 600_000
    dropped = journal.of("dropped", experiment="scaling", reason="memory")
    assert dropped
    assert not shapes(dropped) & shapes(journal.of("measured", experiment="scaling"))
    assert "predicted to take" in dropped[0]["text"]
    assert len(medians(journal)) == 3


def test_memory_that_grows_with_the_square_is_seen_on_the_way_up():
    class Square(FakeHarness):
        def bytes(self, rows, length):
            return rows * length * (100 + length)

    harness = Square(capacity=1024 * 1100)
    journal = drive(harness, Plan(seconds=60, batches=((128,) * 8, (512,)), longest=4096), free=1024 * 1100)
    assert journal.of("dropped", experiment="scaling", reason="memory")
    assert not [line for line in journal.of("dropped") if "FakeOutOfMemory" in line["text"]]
    assert len(medians(journal)) == 3


def test_memory_that_ends_in_the_middle_costs_one_point_and_no_line():
    class Shrinking(FakeHarness):
        def step(self, batch):
            if len(self.steps) > 60:
                self.capacity = 1_000_000
            return super().step(batch)

    harness = Shrinking()
    journal = drive(harness)
    assert journal.reason == FINISHED
    lost = journal.of("dropped", experiment="scaling", reason="memory")
    assert lost
    counts = {
        point: sum((line["rows"], line["length"]) == point for line in journal.of("measured", experiment="scaling"))
        for point in shapes(journal.of("measured", experiment="scaling"))
    }
    kept = [point for point in counts if point not in shapes(lost)]
    assert len(kept) == 3
    assert min(counts[point] for point in kept) >= bench.FEWEST
    assert sum(counts.values()) > 3 * bench.FEWEST  # what was measured at the lost point is still there


def test_where_the_point_held_out_fails_later_a_smaller_one_is_held_out():
    (first,) = shapes(drive(FakeHarness()).of("measured", experiment="heldout"))

    class Later(FakeHarness):
        def step(self, batch):
            if len(self.steps) > 60:
                self.faults = {first: FakeOutOfMemory("out of memory")}
            return super().step(batch)

    journal = drive(Later())
    assert shapes(journal.of("dropped", experiment="heldout", reason="memory")) == {first}
    smaller = [line for line in journal.of("measured", experiment="heldout") if line["rows"] < first[0]]
    assert len(smaller) >= bench.FEWEST


def test_a_model_of_one_length_is_refused_and_the_rest_is_measured():
    plan = Plan(seconds=60, batches=((128, 60, 100, 20),) * 3, longest=128)
    journal = drive(FakeHarness(shortest=128, longest=128), plan)
    assert journal.of("measured", experiment="scaling") == []
    texts = [line["text"] for line in journal.of("dropped", experiment="scaling", reason="refused")]
    assert any("takes lengths from 128 to 128" in text for text in texts)
    assert "two lengths" in texts[-1]
    assert journal.of("measured", experiment="remedy")


def test_a_shape_that_user_code_refuses_is_replaced():
    first = drive(FakeHarness()).of("measured", experiment="scaling")
    longest = max(shapes(first), key=lambda point: point[1])
    journal = drive(FakeHarness(faults={longest: IndexError("index out of range in self")}))
    (dropped,) = journal.of("dropped", reason="refused", experiment="scaling")
    assert (dropped["rows"], dropped["length"]) == longest
    assert dropped["text"] == "IndexError: index out of range in self"
    assert len(medians(journal)) == 3


def test_an_exit_of_the_step_at_a_shape_is_a_refusal_and_ends_nothing():
    first = drive(FakeHarness()).of("measured", experiment="scaling")
    longest = max(shapes(first), key=lambda point: point[1])
    journal = drive(FakeHarness(faults={longest: SystemExit(7)}))
    (dropped,) = journal.of("dropped", reason="refused", experiment="scaling")
    assert dropped["text"] == "SystemExit: 7"
    assert len(medians(journal)) == 3
    with pytest.raises(KeyboardInterrupt):
        drive(FakeHarness(faults={longest: KeyboardInterrupt()}))


def test_seconds_are_written_so_that_few_are_not_none():
    assert [bench.written(value) for value in (-1, 0, 0.034, 9.0, 120.4)] == ["0", "0", "0.034", "9", "120"]


def test_a_loss_that_is_no_number_drops_the_point():
    journal = drive(FakeHarness(not_finite=200))
    dropped = journal.of("dropped", reason="loss")
    assert dropped
    assert "loss is nan" in dropped[0]["text"]
    assert all(math.isfinite(line["loss"]) for line in journal.of("measured"))
    assert max(length for _, length in shapes(journal.of("measured"))) < 200
    nowhere = drive(FakeHarness(not_finite=0))
    assert nowhere.of("measured") == []
    assert nowhere.reason == FINISHED


def test_a_planted_drift_is_in_the_lines():
    lines = drive(FakeHarness(drift=0.3)).of("measured", experiment="scaling", rows=1, length=32)
    took = [line["wall_ns"] for line in lines]
    assert len(took) >= bench.BLOCKS
    assert took == sorted(took)
    assert took[-1] > 1.1 * took[0]


def test_slow_steps_get_fewer_blocks_but_never_below_five():
    journal = drive(FakeHarness(fixed=1e9), Plan(seconds=120, batches=BATCHES, longest=4096))
    counts = {line["block"] for line in journal.of("measured", experiment="scaling")}
    assert bench.FEWEST <= len(counts) < bench.BLOCKS


def test_still_slower_steps_get_smaller_points_and_it_is_said():
    quick = shapes(drive(FakeHarness(fixed=0, per_token=1e3, per_token_length=1)).of("measured", experiment="scaling"))
    journal = drive(FakeHarness(fixed=0, per_token=5e6), Plan(seconds=120, batches=BATCHES, longest=4096))
    said = journal.of("dropped", experiment="scaling", reason="time")
    assert said
    assert "a smaller point is taken" in said[0]["text"]
    tokens = [max(rows * length for rows, length in found) for found in (quick, medians(journal))]
    assert tokens[1] < tokens[0]
    assert len({line["block"] for line in journal.of("measured", experiment="scaling")}) >= bench.FEWEST


def test_what_there_is_no_time_for_is_said():
    journal = drive(FakeHarness(fixed=3e9), Plan(seconds=60, batches=BATCHES, longest=4096))
    late = journal.of("dropped", reason="time")
    assert {line["experiment"] for line in late} >= {"padded", "unpadded", "remedy"}
    assert journal.reason == FINISHED


def test_nothing_seen_and_nothing_named_says_what_to_do():
    journal = drive(FakeHarness(), Plan(seconds=60))
    assert "name points" in journal.reason
    assert journal.of("measured") == []


def test_the_long_point_moves_out_until_the_square_is_seen():
    faint = drive(FakeHarness(per_token_length=2.0))
    plain = drive(FakeHarness(per_token_length=400.0))
    lengths = [max(length for _, length in shapes(one.of("measured", experiment="scaling"))) for one in (faint, plain)]
    assert lengths[0] > lengths[1]
    assert points.quadratic_share(points.pilot_fit(medians(faint)), (1, lengths[0])) > 0.05


def test_a_condition_that_is_too_high_names_the_shape_that_is_missing():
    journal = drive(FakeHarness(), Plan(seconds=60, points=((4, 128), (5, 128), (4, 160))))
    assert points.condition(medians(journal)) > points.WORST_CONDITION
    (dropped,) = journal.of("dropped", reason="refused", experiment="scaling")
    assert "condition number" in dropped["text"]
    assert (dropped["rows"], dropped["length"]) not in medians(journal)
    assert not [line for line in drive(FakeHarness()).of("dropped") if "condition" in line["text"]]


def test_where_no_ceiling_can_be_measured_it_is_said_and_the_rest_goes_on():
    journal = drive(FakeHarness())  # its torch has no tensors
    (counted,) = journal.of("counted")
    assert "AttributeError" in counted["failure"]
    assert journal.of("measured")


def test_what_takes_longer_than_all_the_time_is_not_begun():
    harness = FakeHarness(fixed=20e9)
    journal = drive(harness)
    assert journal.of("measured", experiment="scaling") == []
    assert any("warm-up alone" in line["text"] for line in journal.of("dropped", reason="time"))
    assert harness.clocks.now < 2.5 * 60e9
