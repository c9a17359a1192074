"""The choice of points, held to numpy and to designs whose worth is known."""

import math

import numpy as np
import pytest

from stepprobe.instruments.experiments import points
from stepprobe.instruments.experiments.plan import Plan
from tests.fakes.harness import FakeHarness

GOOD = ((1, 128), (8, 128), (1, 1024))


def times(chosen, **planted):
    step = FakeHarness(**planted)
    return {point: step.truth(*point) for point in chosen}


@pytest.mark.parametrize("chosen", [GOOD, ((1, 128), (1, 256), (1, 512)), ((1, 32), (32, 32), (1, 1024), (4, 256))])
def test_condition_is_that_of_numpy(chosen):
    seconds = times(chosen)
    table = np.array([points.terms(point) for point in chosen]) / np.array(list(seconds.values()))[:, None]
    assert points.condition(seconds) == pytest.approx(np.linalg.cond(table / table.max(0)), rel=1e-6)


def test_rows_of_one_length_are_singular():
    assert points.condition(times([(1, 128), (4, 128), (8, 128)])) == math.inf


def test_good_designs_are_better_than_those_over_one_direction():
    assert points.condition(times(GOOD)) < 5 < points.condition(times([(1, 128), (1, 256), (1, 512)]))


def test_pilot_fit_gives_the_planted_parts_and_never_a_negative_one():
    assert points.pilot_fit(times(GOOD)) == pytest.approx((6e6, 24e3, 40.0))
    concave = {(1, 128): 10.0, (8, 128): 20.0, (1, 1024): 15.0}  # would need c < 0
    assert min(points.pilot_fit(concave)) >= 0


@pytest.mark.parametrize(
    ("batches", "longest"),
    [([[100, 128]], 4096), ([[512]], 512), ([[40, 64, 64, 30]] * 3, None), ([[2000] * 8], 2048), ([[5, 7]], 64)],
)
def test_first_designs_are_well_conditioned_and_hold_out_a_point_inside(batches, longest):
    shapes = points.seen(batches)
    design = points.first_design(shapes, longest)
    (few, many), (short, long) = design
    assert points.why_refused(design.points) == ""
    assert points.condition(times(design.points)) < points.WORST_CONDITION
    assert design.heldout not in design.points
    assert few < design.heldout[0] <= many
    assert short <= design.heldout[1] <= long <= (longest or math.inf)
    for wide in points.wider(design, shapes, longest):
        assert wide.points != design.points
        assert max(rows * length for rows, length in wide.points) <= points.MOST_TOKENS * shapes.tokens
        assert wide.lengths[1] <= (longest or math.inf)


@pytest.mark.parametrize(
    ("named", "reason"),
    [
        ([(1, 128), (8, 128)], "2 points cannot"),
        ([(1, 128)] * 3, "1 points cannot"),
        ([(1, 128), (4, 128), (8, 128)], r"proportional.*\(1, 512\)"),
        ([(2, 128), (2, 256), (2, 512)], r"all points have 2 rows.*\(16, 128\)"),
    ],
)
def test_designs_that_cannot_tell_are_refused_with_the_shape_that_is_missing(named, reason):
    import re

    assert re.search(reason, points.why_refused(named))


def test_nothing_seen_gives_no_shapes():
    assert points.seen([]) is None
    assert points.seen([[], [0]]) is None


def test_missing_shape_names_the_limit_of_the_model():
    wanted, text = points.missing_shape(points.Design((1, 8), (64, 128)), 12.3, Plan(longest=128))
    assert wanted == (1, 512)
    assert "1 rows of 512 tokens" in text
    assert "(the model allows 128)" in text
    assert points.missing_shape(points.Design((4, 5), (64, 512)), 12.3, Plan())[0] == (20, 64)


@pytest.mark.parametrize("narrow", [points.Design((1, 8), (120, 128)), points.Design((4, 5), (64, 512))])
def test_the_missing_shape_would_lower_the_condition(narrow):
    wanted = points.missing_shape(narrow, 12.3, Plan())[0]
    assert points.condition(times([*narrow.points, wanted])) < 0.7 * points.condition(times(narrow.points))


def test_plan_of_a_mapping():
    plan = Plan.of({"seconds": 3.0, "points": [[1, 2], [3, 4]], "batches": [[5, 6]]})
    assert (plan.points, plan.batches, plan.seconds) == (((1, 2), (3, 4)), ((5, 6),), 3.0)
    with pytest.raises(ValueError, match="no colour"):
        Plan.of({"colour": 1})
    with pytest.raises(ValueError, match="a point is"):
        Plan.of({"points": [[0, 128]]})


def test_a_model_without_a_known_limit_never_gets_longer_rows_than_it_had():
    """It may index a table of positions beyond its end, and on a card that ends the whole process."""
    shapes = points.seen([[145, 60, 30, 20]] * 3)
    design = points.first_design(shapes, None)
    reached = [design, *points.wider(design, shapes, None)]
    assert {length for one in reached for _, length in one.points} <= set(range(1, 146))
    assert max(length for _, length in points.first_design(shapes, 4096).points) > 145
