"""Steps that are set aside are counted and told, and move no figure."""

import pytest

from stepprobe.probes import ledger
from tests.fakes.records import CLEAN, COUNTS, METHODS, FakeProcess, evidence, wobble

SLOW = {name: 40 * ms for name, ms in CLEAN.items()}
COUNTED = ("step.count", "tokens.", "shapes.")


def process(places=(), kind="profiler", slow=SLOW):
    """60 ordinary steps, and one that is set aside before each of ``places``."""
    built = FakeProcess(**METHODS)
    for i in range(60):
        if i in places:
            built.step(slow, COUNTS, aside=kind, self_ms=900)
        built.step({name: ms * wobble(i) for name, ms in CLEAN.items()}, COUNTS)
    return built.end()


def derive(*processes, **options):
    return ledger.derive(evidence(*processes, **options))


@pytest.mark.parametrize("places", [(0, 1), (2, 30), (58, 59)])
def test_slow_steps_that_are_set_aside_move_nothing(places):
    plain, marked = derive(process()), derive(process(places))
    for name, figure in plain.figures.items():
        if not name.startswith(COUNTED):
            assert (marked.figures[name].value, marked.figures[name].low) == (figure.value, figure.low), name
    assert marked.figures["step.warmup"].value == plain.figures["step.warmup"].value
    assert marked.figures["step.measured"].value == 60
    assert marked.figures["step.count"].value == 62
    assert marked.ledger == plain.ledger
    assert marked.verdict == plain.verdict == "ok"


def test_without_the_mark_they_would_move_the_mean():
    assert derive(process((30, 40), kind="")).figures["step.wall"].value > 200


def test_they_are_told_with_their_share():
    notes = derive(process((10, 20))).notes
    share = 2 * 40 * 100 / (2 * 40 * 100 + sum(100 * wobble(i) for i in range(60)))
    told = [note for note in notes if "profiler" in note]
    assert told == [
        f"2 steps ran under the profiler or right behind it, so not in the means: {share:.1%} of all wall time"
    ]
    assert "1 step ran in an experiment" in " ".join(derive(process((10,), kind="experiments")).notes)


def test_ranks_are_compared_over_the_same_ordinary_steps():
    ranks = []
    for rank in range(2):
        one = FakeProcess(rank=rank, world_size=2, **METHODS).steps(20, CLEAN, COUNTS)
        ranks.append(one.steps(2, SLOW, COUNTS, aside="profiler").steps(20, CLEAN, COUNTS).end())
    report = derive(*ranks)
    table = next(table for table in report.tables if table.name == "ranks")
    assert [row[1] for row in table.rows] == pytest.approx([100, 100])


def test_a_last_step_that_is_set_aside_is_not_taken_for_one_that_was_cut_off():
    built = FakeProcess(**METHODS).steps(20, CLEAN, COUNTS).step(SLOW, COUNTS, aside="profiler", end="exit").end()
    notes = derive(built).notes
    assert not [note for note in notes if "ended by the end of the script" in note]
