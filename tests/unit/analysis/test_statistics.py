"""The statistics against scipy, and what they promise on simulated steps."""

import math
import random
import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from stepprobe.analysis import distributions, statistics

WALLS = st.lists(st.floats(0.1, 1e4), min_size=1, max_size=60)


@pytest.mark.parametrize("freedom", [1, 2, 3, 4.7, 9, 30, 500, 1e6])
@pytest.mark.parametrize("p", [0.6, 0.9, 0.975, 0.9995])
def test_student_quantile(p, freedom):
    assert distributions.t_quantile(p, freedom) == pytest.approx(stats.t.ppf(p, freedom), rel=1e-8)


@given(WALLS, st.floats(0, 100))
def test_percentile(values, percent):
    assert statistics.percentile(values, percent) == pytest.approx(stats.scoreatpercentile(values, percent), rel=1e-9)


@given(st.lists(st.tuples(st.floats(1, 100), st.integers(1, 5)), min_size=1, max_size=12), st.floats(0, 100))
def test_weighted_percentile_is_that_of_the_repeated_values(points, percent):
    repeated = [value for value, count in points for _ in range(count)]
    assert statistics.weighted_percentile(points, percent) == pytest.approx(statistics.percentile(repeated, percent))


@given(st.lists(st.integers(0, 8), min_size=4, max_size=40))
def test_spearman(values):
    rho, p = statistics.spearman(range(len(values)), values)
    if len(set(values)) == 1:
        assert (rho, p) == (0, 1)
        return
    oracle = stats.spearmanr(range(len(values)), values)
    assert rho == pytest.approx(oracle.statistic, abs=1e-12)
    assert p == pytest.approx(oracle.pvalue, abs=1e-9)


@given(st.lists(st.tuples(st.integers(0, 50), st.floats(0, 100)), min_size=4, max_size=40))
def test_line(points):
    x, y = [a for a, _ in points], [b for _, b in points]
    line = statistics.fit_line(x, y)
    if len(set(x)) == 1:
        assert line is None
        return
    if len(set(y)) == 1:
        assert (line.slope, line.slope_error) == (0, 0)
        return
    oracle = stats.linregress(x, y)
    assert line.slope == pytest.approx(oracle.slope, abs=1e-9)
    assert line.intercept == pytest.approx(oracle.intercept, abs=1e-8)
    assert line.slope_error == pytest.approx(oracle.stderr, rel=1e-4, abs=1e-6)


@given(st.integers(1, 400), st.data())
def test_wilson(n, data):
    hits = data.draw(st.integers(0, n))
    oracle = stats.binomtest(hits, n).proportion_ci(method="wilson")
    assert statistics.wilson(hits, n) == pytest.approx((oracle.low, oracle.high), abs=1e-12)


def test_robust_spread_is_the_deviation_of_normal_noise_and_ignores_spikes():
    noise = random.Random(1)
    walls = [noise.gauss(100, 3) for _ in range(2000)]
    assert statistics.robust_spread(walls) == pytest.approx(0.03, rel=0.1)
    assert statistics.robust_spread(walls[:-50] + [5000.0] * 50) == pytest.approx(0.03, rel=0.15)


# -- intervals --


def test_the_interval_is_that_of_the_block_means():
    values = [float(value) for value in random.Random(2).sample(range(1000), 100)]
    means = [sum(values[k : k + 10]) / 10 for k in range(0, 100, 10)]
    mean = statistics.Blocks([1] * 100).mean(values)
    low, high = stats.t.interval(0.95, 9, loc=sum(means) / 10, scale=stats.sem(means))
    assert (mean.value, mean.low, mean.high) == pytest.approx((sum(values) / 100, low, high))


def test_two_runs_of_equal_blocks_are_compared_as_by_welch():
    noise = random.Random(3)
    first, second = ([noise.gauss(centre, spread) for _ in range(100)] for centre, spread in ((100, 3), (104, 9)))
    blocks = statistics.Blocks([1] * 100)
    means = [[sum(run[k : k + 10]) / 10 for k in range(0, 100, 10)] for run in (first, second)]
    oracle = stats.ttest_ind(means[1], means[0], equal_var=False).confidence_interval()
    _, low, high = statistics.difference(blocks.mean(first), blocks.mean(second))
    assert (low, high) == pytest.approx((oracle.low, oracle.high))


@given(st.lists(st.integers(1, 50), min_size=1, max_size=80))
def test_blocks_hold_every_observation_once(weights):
    bounds = statistics._block_bounds(weights)
    if bounds:
        assert bounds[0][0] == 0
        assert bounds[-1][1] == len(weights)
        assert all(end == begin for (_, end), (begin, _) in pairwise(bounds))


@given(st.lists(st.floats(1, 100), min_size=1, max_size=40))
def test_sums_of_steps_have_the_mean_of_the_steps(values):
    pairs = [values[k : k + 2] for k in range(0, len(values), 2)]
    summed = statistics.Blocks([len(pair) for pair in pairs]).mean([sum(pair) for pair in pairs])
    assert summed.value == pytest.approx(statistics.Blocks([1] * len(values)).mean(values).value)
    assert summed.n == len(values)


def test_few_steps_give_no_interval():
    mean = statistics.Blocks([1] * 7).mean([1.0, 2, 3, 4, 5, 6, 7])
    assert (mean.value, mean.low, mean.high) == (4, None, None)


def series(noise: random.Random, n: int, rho: float = 0.4, spread: float = 0.6) -> list[float]:
    """Step times around 100 whose neighbours depend on each other, as those of real steps do."""
    values, last = [], 0.0
    for _ in range(n):
        last = rho * last + noise.gauss(0, spread * math.sqrt(1 - rho * rho))
        values.append(100 + last)
    return values


@pytest.mark.parametrize("n", [40, 120, 1000])
def test_intervals_of_correlated_steps_cover_the_truth(n):
    noise = random.Random(n)
    means = [statistics.Blocks([1] * n).mean(series(noise, n)) for _ in range(300)]
    assert sum(mean.low <= 100 <= mean.high for mean in means) / 300 > 0.9
    naive = [distributions.t_quantile(0.975, n - 1) * 0.6 / math.sqrt(n) for _ in means]
    covered = sum(abs(mean.value - 100) <= half for mean, half in zip(means, naive, strict=True)) / 300
    assert covered < 0.9, "steps taken as independent would do as well, so the blocks prove nothing here"


# -- warm-up --


@pytest.mark.parametrize(
    ("shape", "least"),
    [
        (lambda i: 0.0, 0),
        (lambda i: 900.0 * (i == 0), 1),
        (lambda i: 40.0 * (i < 3), 3),
        (lambda i: 30 * math.exp(-i / 4), 8),
        (lambda i: 8.0 * (i < 15), 15),
    ],
    ids=["none", "compiles first", "three slow", "exponential", "step at 15"],
)
def test_the_warmup_is_cut_where_it_ends(shape, least):
    noise, errors = random.Random(7), []
    for _ in range(60):
        walls = [value + shape(i) for i, value in enumerate(series(noise, 80))]
        cut = statistics.warmup_cut(walls)
        assert least <= cut <= 40
        errors.append(abs(sum(walls[cut:]) / len(walls[cut:]) / 100 - 1))
    assert statistics.median(errors) < 0.0015
    assert max(errors) < 0.006


def test_a_slow_start_without_any_noise_is_cut_exactly():
    assert statistics.warmup_cut([400.0, 300.0, 200.0] + [100.0] * 60) == 3


def test_rare_spikes_are_no_warmup():
    walls = [500.0 if i % 20 == 10 else value for i, value in enumerate(series(random.Random(5), 200))]
    assert statistics.warmup_cut(walls) < 60


def test_mser_agrees_with_its_definition():
    noise = random.Random(11)
    walls = [value + 20 * math.exp(-i / 6) for i, value in enumerate(series(noise, 90))]
    errors = statistics._tail_errors(walls, 45)
    for cut in range(46):
        tail = sorted(walls[cut:])
        kept = tail[: len(tail) - int(len(tail) * 0.1)]
        assert errors[cut] == pytest.approx(
            math.sqrt(stats.tvar(kept) * (len(kept) - 1)) / math.sqrt(len(kept) * (len(kept) - 1))
        )


@pytest.mark.noisy
def test_a_cut_of_thousands_of_steps_is_fast():
    walls = series(random.Random(1), 6000)
    begin = time.process_time()
    statistics.warmup_cut(walls)
    assert time.process_time() - begin < 0.5


@given(st.lists(st.floats(1, 1000), max_size=40))
def test_the_cut_leaves_half_of_the_steps(walls):
    assert 0 <= statistics.warmup_cut(walls) <= len(walls) // 2


# -- drift --


def test_drift_is_found_and_steady_runs_are_not_accused():
    noise = random.Random(13)
    drifting = [[v * (1 + 0.04 * i / 200) for i, v in enumerate(series(noise, 200))] for _ in range(40)]
    steady = [series(noise, 200) for _ in range(100)]
    assert all(statistics.drift(walls).matters for walls in drifting)
    assert statistics.drift(drifting[0]).change == pytest.approx(0.04, abs=0.01)
    assert sum(statistics.drift(walls).matters for walls in steady) == 0
