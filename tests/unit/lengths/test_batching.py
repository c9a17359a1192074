"""Expected batches against exact sums, scipy, and batches that are really formed."""

import numpy as np
import pytest
from scipy import stats

from stepprobe.analysis.lengths import batching
from stepprobe.analysis.lengths.batching import Distribution
from tests.fakes.lengths import chat_mix


def known(lengths, multiple=1):
    return Distribution(*np.unique(lengths, return_counts=True), multiple)


def waste(lengths, size, group, multiple=1):
    one = known(np.asarray(lengths), multiple)
    return 1 - one.tokens / batching.padded_tokens(one, batching.rows_at_least(one, size, group))


def formed(lengths, size, group, random):
    """Slots of one epoch."""
    order, slots = random.permutation(lengths), 0
    for begin in range(0, len(order), group):
        part = np.sort(order[begin : begin + group])[::-1]
        slots += sum(part[i] * len(part[i : i + size]) for i in range(0, len(part), size))
    return slots


@pytest.mark.parametrize(
    ("trials", "chance", "size"), [(64, 0.3, 8), (8192, 0.01, 8), (50, 1.0, 7), (50, 0.0, 7), (9, 0.5, 2)]
)
def test_the_expected_number_of_batches_is_the_sum_over_the_binomial(trials, chance, size):
    n = np.arange(trials + 1)
    expected = (stats.binom.pmf(n, trials, chance) * np.ceil(n / size)).sum()
    assert batching.expected_ceil(trials, np.array([chance]), size)[0] == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("population", [1000, 5000])
@pytest.mark.parametrize("part", [0.02, 0.3, 0.5, 0.9])
def test_drawing_without_replacement(population, part):
    drawn = int(population * part) // 8 * 8
    marked = np.array([1, 2, 10, population // 10, population // 2, population - 5, population])
    n = np.arange(drawn + 1)
    expected = [(stats.hypergeom.pmf(n, population, one, drawn) * np.ceil(n / 8)).sum() for one in marked]
    assert batching.expected_ceil_drawn(population, marked, drawn, 8) == pytest.approx(expected, abs=0.09, rel=0.002)


@pytest.mark.parametrize(("population", "drawn"), [(20, 16), (270, 16), (270, 128), (1000, 64), (1000, 960)])
def test_a_few_shorter_rows_are_drawn_exactly(population, drawn):
    marked = np.array([1, 2, 10, population - 10, population - 2, population - 1, population])
    n = np.arange(drawn + 1)
    expected = [(stats.hypergeom.pmf(n, population, one, drawn) * np.ceil(n / 8)).sum() for one in marked]
    assert batching.expected_ceil_drawn(population, marked, drawn, 8) == pytest.approx(expected, rel=1e-3)


@pytest.mark.filterwarnings("error")
def test_one_row_drawn_where_every_row_is_marked():
    assert batching.expected_ceil_drawn(1000, np.array([0, 500, 1000]), 1, 8) == pytest.approx([0, 0.5, 1])


def test_two_lengths_have_the_known_longest():
    half = Distribution(np.array([100, 1000]), np.array([5 * 10**8, 5 * 10**8]))
    assert batching.batch_longest(half, 8)[0] == pytest.approx(1000 - 900 * 0.5**8, abs=1e-4)


def test_a_finite_set_of_two_lengths_is_exact():
    few = known(np.array([100] * 10 + [1000] * 10))
    none = stats.hypergeom.pmf(0, 20, 10, 8)
    assert batching.batch_longest(few, 8)[0] == pytest.approx(1000 - 900 * none, rel=1e-12)


def test_uniform_lengths_have_the_known_longest():
    uniform = Distribution(np.arange(1, 1001), np.full(1000, 10**6))
    assert batching.batch_longest(uniform, 8)[0] == pytest.approx(1000 * 8 / 9 + 0.5, rel=1e-4)


@pytest.mark.parametrize("group", [1, 8, 64, 1000])
def test_equal_lengths_and_one_row_waste_nothing(group):
    assert waste([77] * 100, 8, group) == pytest.approx(0, abs=1e-12)
    assert waste([5], 8, group) == pytest.approx(0, abs=1e-12)


def test_padding_to_a_multiple_counts():
    assert waste([5], 8, 1, multiple=64) == pytest.approx(1 - 5 / 64)
    assert waste([5] * 8, 8, 1, multiple=8) == pytest.approx(1 - 5 / 8)


def test_the_full_sort_is_exact():
    lengths = np.random.default_rng(0).integers(1, 500, 203)
    one = known(lengths)
    assert batching.padded_tokens(one, batching.rows_at_least(one, 8, 1000)) == formed(
        lengths, 8, 1000, np.random.default_rng(0)
    )


@pytest.mark.parametrize(("size", "group"), [(8, 8), (8, 16), (8, 128), (8, 400), (4, 28)])
def test_formed_epochs_agree_within_four_errors(size, group):
    lengths, _ = chat_mix(1003)
    random = np.random.default_rng(group)
    epochs = [formed(lengths, size, group, random) for _ in range(60)]
    one = known(lengths)
    expected = batching.padded_tokens(one, batching.rows_at_least(one, size, group))
    assert abs(np.mean(epochs) - expected) <= 4 * np.std(epochs, ddof=1) / len(epochs) ** 0.5 + 1e-3 * expected


@pytest.mark.parametrize("neighbours", [True, False])
@pytest.mark.parametrize("size", [1, 2, 4, 8, 16, 64])
def test_the_slowest_rank_of_formed_steps(neighbours, size):
    """A bucket of k batches of one rank, on 8 ranks: the trap and the two ways out of it."""
    ranks, rows, random = 8, 8, np.random.default_rng(size)
    lengths, _ = chat_mix(200_000, seed=2)
    group = max(size * rows, rows)
    order = lengths[random.permutation(len(lengths))][: len(lengths) // group * group]
    longest = -np.sort(-order.reshape(-1, group), axis=1)[:, ::rows].reshape(-1)
    if not neighbours:
        longest = random.permutation(longest)
    steps = longest[: len(longest) // ranks * ranks].reshape(-1, ranks).max(axis=1)
    one = known(lengths)
    share = batching.step_share(one, rows, group, ranks, neighbours=neighbours)
    expected = float((np.diff(one.padded, prepend=0) * share).sum())
    assert abs(steps.mean() - expected) <= 4 * steps.std() / len(steps) ** 0.5 + 0.002 * expected
