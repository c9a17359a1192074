"""The statistics that all derivations share, in plain Python.

Steps of a training follow each other, so they are not independent draws: an interval is taken from the means of blocks
of neighbouring steps, never from the steps themselves. What a step costs before the caches are warm says nothing about
the run, so a warm-up is cut where the data say (MSER), not after a fixed count.
"""

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise

import msgspec

from stepprobe.analysis.distributions import normal_quantile, t_quantile, t_tails

CONFIDENCE = 0.95
"""Level of every interval."""

BLOCKS_MOST = 10
"""Blocks of an interval; more would make blocks so short that neighbours depend on each other."""
BLOCKS_FEWEST = 4
"""Below four block means a Student interval says nothing."""
BLOCK_STEPS = 10
"""Wished length of a block: at the lag-1 autocorrelation of 0.4 that real steps show, blocks of ten are nearly free."""

WARMUP_HORIZON = 4096
"""A warm-up is looked for in this many first steps; a change that comes later is drift, not warm-up."""
WARMUP_TRIM = 0.1
"""Part of the tail, its slowest steps, that may not decide the cut: saves and evaluations are no warm-up."""
WARMUP_GAIN = 0.02
"""A later cut must lower the standard error by this much, or chance alone would move it."""
WARMUP_TAIL = 4
"""Steps that must remain after a cut."""

LEADING_SPREADS = 5.0
"""A leading step this many robust standard deviations above the later half belongs to the warm-up; one in a million
steps is so by chance."""
LEADING_SHARE = 0.02
"""It must also be slower by this much, where the later steps hardly scatter."""

DRIFT_P = 1e-3
"""Chance of a Spearman correlation this strong without a trend; rare, so that a steady run is rarely accused."""
DRIFT_CHANGE = 0.01
"""Relative change from one end of the run to the other below which a trend does not matter."""


class Mean(msgspec.Struct, frozen=True):
    """A mean with the standard error that its block means give."""

    value: float
    error: float | None
    """Standard error; None where there were too few blocks."""
    blocks: int
    n: int
    """Steps behind it."""

    @property
    def half_width(self) -> float | None:
        """Half of the 95 % interval; None where no interval can be given."""
        return None if self.error is None else t_quantile((1 + CONFIDENCE) / 2, self.blocks - 1) * self.error

    @property
    def low(self) -> float | None:
        """Lower end of the 95 % interval."""
        return None if self.half_width is None else self.value - self.half_width

    @property
    def high(self) -> float | None:
        """Upper end of the 95 % interval."""
        return None if self.half_width is None else self.value + self.half_width


class Blocks:
    """Neighbouring observations in blocks of about equal weight.

    An observation is one step (weight 1) or a sum over several (weight: their count), which is never torn apart.
    """

    def __init__(self, weights: Sequence[int]) -> None:
        self._weights = weights
        self.n = sum(weights)
        self._bounds = _block_bounds(weights)

    def mean(self, totals: Sequence[float]) -> Mean:
        """Return the mean per step of observations given as totals over their weights."""
        value = sum(totals) / self.n if self.n else 0.0
        return Mean(value, self._error(totals, self._weights, value, self.n), len(self._bounds), self.n)

    def ratio(self, numerators: Sequence[float], denominators: Sequence[float]) -> Mean:
        """Return sum(numerators) / sum(denominators), with the error of a ratio (linearised)."""
        below = sum(denominators)
        value = sum(numerators) / below if below else 0.0
        return Mean(value, self._error(numerators, denominators, value, below), len(self._bounds), self.n)

    def median(self, values: Sequence[float]) -> Mean:
        """Return the median of observations of weight 1, with the error that the blocks' medians give."""
        medians = [median(values[a:b]) for a, b in self._bounds]
        if len(medians) < BLOCKS_FEWEST:
            return Mean(median(values), None, len(medians), self.n)
        centre = sum(medians) / len(medians)
        variance = sum((one - centre) ** 2 for one in medians) / (len(medians) - 1)
        return Mean(median(values), math.sqrt(variance / len(medians)), len(medians), self.n)

    def _error(
        self, numerators: Sequence[float], denominators: Sequence[float], value: float, below: float
    ) -> float | None:
        count = len(self._bounds)
        if count < BLOCKS_FEWEST or not below:
            return None
        residuals = (sum(numerators[a:b]) - value * sum(denominators[a:b]) for a, b in self._bounds)
        return math.sqrt(sum(r * r for r in residuals) * count / (count - 1)) / below


def _block_bounds(weights: Sequence[int]) -> list[tuple[int, int]]:
    total = sum(weights)
    wished = min(BLOCKS_MOST, max(BLOCKS_FEWEST, total // BLOCK_STEPS), total // 2)
    if wished < BLOCKS_FEWEST:
        return []
    reached = list(accumulate(weights))
    cuts = [0, *(bisect_left(reached, total * k / wished) + 1 for k in range(1, wished)), len(weights)]
    return [(a, b) for a, b in pairwise(cuts) if b > a]


def difference(before: Mean, after: Mean, alike: Sequence[Mean] = ()) -> tuple[float, float | None, float | None]:
    """Return after − before and its 95 % interval: value, low, high; no ends where there is no interval.

    Args:
        before: Subtracted.
        after: From this.
        alike: Means of several runs of one thing; the interval is at least as wide as what such runs lie apart by.
    """
    value = after.value - before.value
    halves = [half for half in (_welch(before, after), chance_apart([one.value for one in alike])) if half is not None]
    if not halves:
        return value, None, None
    return value, value - max(halves), value + max(halves)


def _welch(before: Mean, after: Mean) -> float | None:
    """Half of the interval that the blocks within two runs give (Welch)."""
    if before.error is None or after.error is None:
        return None
    first, second = before.error**2, after.error**2
    if first + second == 0:
        return 0.0
    freedom = (first + second) ** 2 / (first**2 / (before.blocks - 1) + second**2 / (after.blocks - 1))
    return t_quantile((1 + CONFIDENCE) / 2, freedom) * math.sqrt(first + second)


def chance_apart(means: Sequence[float]) -> float | None:
    """Return how far two runs of one thing lie apart at most in 95 of 100 cases, from the means of several.

    Half of the 95 % interval of a difference between two single runs (Student); None for fewer than two. Two runs tell
    little: of them it is 12.7 times their difference; of four, 4.5 standard deviations.
    """
    if len(means) < 2:
        return None
    centre = sum(means) / len(means)
    variance = sum((one - centre) ** 2 for one in means) / (len(means) - 1)
    return t_quantile((1 + CONFIDENCE) / 2, len(means) - 1) * math.sqrt(2 * variance)


def warmup_cut(values: Sequence[float]) -> int:
    """Return how many first steps to drop (MSER: the cut whose tail has the smallest standard error).

    The slowest tenth of the tail is trimmed, the cut is at most half of the series, and a later cut must lower the
    standard error by 2 %. Since the trimming also hides a warm-up shorter than a tenth of the run (a first step that
    compiles), leading steps that stand out from the later half are cut, too. O(n log n) in the steps looked at.
    """
    head = values[:WARMUP_HORIZON]
    last = min(len(head) // 2, len(head) - WARMUP_TAIL)
    if last < 1:
        return 0
    errors = _tail_errors(head, last)
    best = 0
    for cut in range(1, last + 1):
        if errors[cut] < (1 - WARMUP_GAIN) * errors[best]:
            best = cut
    later = head[len(head) // 2 :]
    centre = median(later)
    usual = centre * (1 + max(LEADING_SHARE, LEADING_SPREADS * robust_spread(later)))
    while best < last and head[best] > usual:
        best += 1
    return best


def _tail_errors(values: Sequence[float], last: int) -> list[float]:
    """Standard error of the trimmed tail after each cut 0..last, adding one value after the other from the end."""
    centre = median(values)
    order = sorted(range(len(values)), key=lambda i: values[i])
    rank = {index: position for position, index in enumerate(order, 1)}
    tail = _RankSums(len(values))
    errors = [0.0] * (last + 1)
    for cut in range(len(values) - 1, -1, -1):
        tail.add(rank[cut], values[cut] - centre)
        if cut <= last:
            size = len(values) - cut
            kept = size - int(size * WARMUP_TRIM)
            total, squares = tail.smallest(kept)
            errors[cut] = math.sqrt(max(0.0, squares - total * total / kept) / (kept - 1) / kept)
    return errors


class _RankSums:
    """Sum and sum of squares of the k smallest of the values added so far (a Fenwick tree over their ranks)."""

    def __init__(self, size: int) -> None:
        self._counts = [0] * (size + 1)
        self._totals = [0.0] * (size + 1)
        self._squares = [0.0] * (size + 1)
        self._top = 1 << (size.bit_length() - 1)

    def add(self, rank: int, value: float) -> None:
        square = value * value
        while rank < len(self._counts):
            self._counts[rank] += 1
            self._totals[rank] += value
            self._squares[rank] += square
            rank += rank & -rank

    def smallest(self, k: int) -> tuple[float, float]:
        position, step, total, squares = 0, self._top, 0.0, 0.0
        while step:
            ahead = position + step
            if ahead < len(self._counts) and self._counts[ahead] <= k:
                position, k = ahead, k - self._counts[ahead]
                total += self._totals[ahead]
                squares += self._squares[ahead]
            step >>= 1
        return total, squares


def median(values: Sequence[float]) -> float:
    """Return the median."""
    return percentile(values, 50)


def percentile(values: Sequence[float], percent: float) -> float:
    """Return a percentile, linear between neighbours."""
    return weighted_percentile([(value, 1) for value in values], percent)


def weighted_percentile(points: Sequence[tuple[float, int]], percent: float) -> float:
    """Return a percentile of (value, count) points, as if each value stood there count times.

    Raises:
        ValueError: There are no points.
    """
    ordered = sorted(points)
    reached = list(accumulate(count for _, count in ordered))
    if not reached:
        raise ValueError("no values, no percentile")
    last = reached[-1] - 1
    position = last * percent / 100
    below, above = (
        ordered[bisect_left(reached, index + 1)][0] for index in (math.floor(position), math.ceil(position))
    )
    return below + (above - below) * (position - math.floor(position))


def robust_spread(values: Sequence[float]) -> float:
    """Return 1.4826 · MAD / median: the coefficient of variation that a few spikes do not move."""
    centre = median(values)
    return 1.4826 * median([abs(value - centre) for value in values]) / centre if centre else 0.0


def histogram_points(histogram: Mapping[str, int]) -> list[tuple[float, int]]:
    """Return (wall ns, count) at the geometric middle of each bin ``floor(8 · log2(wall_ns))``."""
    return [(2 ** ((int(bin_) + 0.5) / 8), count) for bin_, count in histogram.items()]


class Drift(msgspec.Struct, frozen=True):
    """A trend over the run."""

    change: float
    """Relative change from one end to the other, + is slower."""
    p: float
    """Chance of a rank correlation this strong without a trend."""

    @property
    def matters(self) -> bool:
        """True: the run is not stationary, so its mean depends on how long it was watched."""
        return self.p < DRIFT_P and abs(self.change) > DRIFT_CHANGE


def drift(values: Sequence[float]) -> Drift:
    """Test a series for a trend: Spearman's rank correlation with time, and the change between the two halves."""
    n = len(values)
    if n < 2 * BLOCKS_FEWEST or not median(values):
        return Drift(0.0, 1.0)
    half = n // 2
    change = 2 * (median(values[n - half :]) - median(values[:half])) / median(values)
    return Drift(change, spearman(range(n), values)[1])


def spearman(first: Sequence[float], second: Sequence[float]) -> tuple[float, float]:
    """Return Spearman's rank correlation and its two-sided p (Student approximation)."""
    a, b = _ranks(first), _ranks(second)
    middle = (len(a) + 1) / 2
    spread = math.sqrt(sum((x - middle) ** 2 for x in a) * sum((y - middle) ** 2 for y in b))
    if not spread or len(a) < 3:
        return 0.0, 1.0
    rho = sum((x - middle) * (y - middle) for x, y in zip(a, b, strict=True)) / spread
    if abs(rho) >= 1 - 1e-15:
        return rho, 0.0
    freedom = len(a) - 2
    t = abs(rho) * math.sqrt(freedom / (1 - rho * rho))
    return rho, t_tails(t, freedom)


def _ranks(values: Sequence[float]) -> list[float]:
    order = sorted(range(len(values)), key=lambda i: values[i])
    ranks = [0.0] * len(values)
    start = 0
    while start < len(order):
        end = start
        while end < len(order) and values[order[end]] == values[order[start]]:
            end += 1
        for position in range(start, end):
            ranks[order[position]] = (start + end + 1) / 2
        start = end
    return ranks


class Line(msgspec.Struct, frozen=True):
    """A straight line through points, least squares."""

    intercept: float
    slope: float
    slope_error: float
    explained: float
    """Part of the variance that the line explains (R²)."""
    n: int

    @property
    def half_width(self) -> float:
        """Half of the 95 % interval of the slope."""
        return t_quantile((1 + CONFIDENCE) / 2, self.n - 2) * self.slope_error


def fit_line(x: Sequence[float], y: Sequence[float]) -> Line | None:
    """Fit y = intercept + slope · x; None with fewer than four points or when x does not vary."""
    n = len(x)
    if n < 4:
        return None
    x_mean, y_mean = sum(x) / n, sum(y) / n
    x_spread = sum((a - x_mean) ** 2 for a in x)
    y_spread = sum((b - y_mean) ** 2 for b in y)
    if not x_spread:
        return None
    slope = sum((a - x_mean) * (b - y_mean) for a, b in zip(x, y, strict=True)) / x_spread
    rest = max(0.0, y_spread - slope * slope * x_spread)
    explained = 1 - rest / y_spread if y_spread else 0.0
    return Line(y_mean - slope * x_mean, slope, math.sqrt(rest / (n - 2) / x_spread), explained, n)


def wilson(hits: int, n: int) -> tuple[float, float]:
    """Return the 95 % interval of a share, hits of n (Wilson)."""
    z = normal_quantile((1 + CONFIDENCE) / 2)
    share, spread = hits / n, z * z / n
    half = z * math.sqrt(share * (1 - share) / n + spread / (4 * n))
    return max(0.0, (share + spread / 2 - half) / (1 + spread)), min(1.0, (share + spread / 2 + half) / (1 + spread))
