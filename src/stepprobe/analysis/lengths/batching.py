"""Expected batches, exactly: from the distribution of lengths to padded tokens and cost, without forming any batch.

A sorted group of rows that is cut into batches of B has ``ceil(n / B)`` batches whose longest row has at least ``l``
tokens, where n of its rows have. So everything that depends on the longest row of each batch is a sum over the distinct
lengths, and for random groups only ``E ceil(n / B)`` is needed. With ω a B-th root of one,

    E ceil(n / B) = (E n + (B − 1) / 2 + Σ_j E ω^(j n) / (ω^j − 1)) / B

and for n binomial ``E ω^(j n) = (1 − p + p ω^j)^m``: B terms a length, whatever the size of the group.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]


FEW = 512
"""Rows of a dataset up to which counts in a sorted group are summed term by term."""


@dataclass(frozen=True)
class Distribution:
    """How many rows have each length, as the batches see it: cut to what is allowed, none of length zero."""

    lengths: "Ints"
    """Distinct lengths in tokens, rising."""
    counts: "Ints | Floats"
    """Rows of each; fractions where they are estimates."""
    multiple: int = 1
    """Batches are padded to a multiple of this many tokens."""

    @cached_property
    def rows(self) -> int:
        """All rows."""
        return int(self.counts.sum())

    @cached_property
    def tokens(self) -> int:
        """All tokens."""
        return int((self.lengths * self.counts).sum())

    @cached_property
    def squares(self) -> float:
        """Sum over all rows of the square of their length: what attention costs without padding."""
        return float((self.lengths.astype(float) ** 2 * self.counts).sum())

    @cached_property
    def padded(self) -> "Ints":
        """The slots that a row takes when it is the longest of its batch."""
        return -(-self.lengths // self.multiple) * self.multiple

    @cached_property
    def at_least(self) -> "Ints | Floats":
        """Rows of at least each length."""
        import numpy as np

        reached: Ints | Floats = np.cumsum(self.counts[::-1])[::-1]  # type: ignore[assignment]
        return reached

    def quantile(self, share: float) -> int:
        """Return the smallest length that this share of the rows does not exceed."""
        import numpy as np

        reached = np.cumsum(self.counts)
        return int(self.lengths[min(int(np.searchsorted(reached, share * self.rows)), len(self.lengths) - 1)])


def expected_ceil(trials: "Floats | float", chance: "Floats", size: int, whole: int | None = None) -> "Floats":
    """Return E ceil(n / size) for n binomial(trials, chance), or for ``whole`` less that; exact to rounding."""
    import numpy as np

    total = (whole - trials * chance if whole is not None else trials * chance) + (size - 1) / 2
    for j in range(1, size // 2 + 1):
        angle = 2 * np.pi * j / size
        shrink = np.maximum(0.0, 1 - 2 * chance * (1 - chance) * (1 - np.cos(angle))) ** (trials / 2)
        if shrink.max(initial=0.0) < 1e-18:
            continue
        turn = trials * np.arctan2(chance * np.sin(angle), 1 - chance + chance * np.cos(angle))
        if whole is not None:
            turn = angle * whole - turn
        term = shrink * (np.sin(turn) / np.tan(angle / 2) - np.cos(turn))
        total = total + (term / 2 if 2 * j == size else term)
    return np.asarray(total / size)


def expected_ceil_drawn(population: int, marked: "Ints | Floats", drawn: int, size: int) -> "Floats":
    """Return E ceil(n / size) where ``drawn`` of ``population`` rows are drawn and n of them are ``marked``.

    The count is hypergeometric; of more than ``FEW`` rows it is taken as the binomial of the same mean and variance,
    which is the same thing when few are drawn and again when all are. The rarer of the marked and the others is
    counted, and in whole trials where the count comes near them: n stays a whole number at both ends, where ``ceil``
    jumps.
    """
    import numpy as np

    if drawn >= population:
        return np.asarray(np.ceil(marked / size))
    if population <= FEW:
        return np.asarray(_chances(population, marked, drawn) @ np.ceil(np.arange(drawn + 1) / size))
    many = np.asarray(2 * marked > population)
    found = np.empty(many.shape)
    found[~many] = expected_ceil(*_matched(population, marked[~many], drawn), size)
    found[many] = expected_ceil(*_matched(population, population - marked[many], drawn), size, drawn)
    return found


def _chances(population: int, marked: "Ints | Floats", drawn: int) -> "Floats":
    """Return P(n rows are marked of those drawn): a row for each of ``marked``, a column for n from 0 to ``drawn``."""
    import numpy as np

    logs = np.concatenate(([0.0], np.cumsum(np.log(np.arange(1, population + 1)))))
    n, among = np.arange(drawn + 1), np.rint(marked).astype(int)[:, None]
    possible = (n <= among) & (drawn - n <= population - among)

    def ways(of: "Ints", taken: "Ints") -> "Floats":
        taken = np.where(possible, taken, 0)
        return np.asarray(logs[of] - logs[taken] - logs[of - taken])

    found = ways(among, n) + ways(population - among, drawn - n)
    return np.where(possible, np.exp(found - logs[population] + logs[drawn] + logs[population - drawn]), 0.0)


def _matched(population: int, marked: "Ints | Floats", drawn: int) -> "tuple[Floats, Floats]":
    """Return trials and chance of the binomial with the mean and variance of the marked rows that are drawn."""
    import numpy as np

    mean = drawn * (marked / population)
    kept = (population - drawn) / max(1, population - 1)
    chance = 1 - (1 - marked / population) * min(1.0, kept)
    trials = np.divide(mean, chance, out=np.zeros_like(mean), where=chance > 0)
    trials = np.where(chance > 0.5, np.maximum(np.rint(trials), np.ceil(mean - 1e-9)), trials)
    return trials, np.divide(mean, trials, out=np.zeros_like(mean), where=trials > 0)


def random_rows_at_least(known: Distribution, size: int) -> "Floats":
    """Return, for each length, the expected rows in batches whose longest row has it: an epoch in random order.

    Exact, without replacement, the last batch (which may be smaller) included.
    """
    import numpy as np

    whole, rest = divmod(known.rows, size)
    found = np.zeros(len(known.lengths))
    for batches, rows in ((whole, size), (1, rest)):
        if batches and rows:
            found += batches * rows * (1 - none_reaches(known, rows))
    return found


def none_reaches(known: Distribution, rows: int) -> "Floats":
    """Return the chance, for each length, that none of ``rows`` rows drawn without replacement has it or more."""
    import numpy as np

    below = (known.rows - known.at_least).astype(float)
    drawn = np.arange(rows, dtype=float)
    chance = np.ones(len(below))
    for i in drawn:
        chance *= np.maximum(0.0, below - i) / (known.rows - i)
    return chance


def rows_at_least(known: Distribution, size: int, group: int) -> "Floats":
    """Return the same for groups of ``group`` random rows, each sorted and cut into batches of ``size``.

    ``group <= size`` is the random order; a group as large as the dataset is the full sort.
    """
    import numpy as np

    if group <= size:
        return random_rows_at_least(known, size)
    groups, rest = divmod(known.rows, group)
    found = np.zeros(len(known.lengths))
    for count, rows in ((groups, group), (1, rest)):
        if count and rows:
            found += count * _of_group(known, size, rows)
    return found


def group_slots(known: Distribution, size: int, group: int) -> float:
    """Return the expected slots of one whole group of ``group`` random rows, sorted and cut into batches."""
    group = min(group, known.rows)
    return padded_tokens(known, known_small(known, group) if group <= size else _of_group(known, size, group))


def _of_group(known: Distribution, size: int, rows: int) -> "Floats":
    import numpy as np

    batches, last = divmod(rows, size)
    if rows >= known.rows:
        return np.minimum(known.rows, -(-known.at_least // size) * size).astype(float)
    found = size * expected_ceil_drawn(known.rows, known.at_least, rows, size)
    if last:  # the last batch holds fewer rows: it reaches a length when fewer than `last` rows are shorter
        found -= (size - last) * _fewer_shorter(known, rows, last)
    return found if batches else known_small(known, rows)


def known_small(known: Distribution, rows: int) -> "Floats":
    """Return the expected rows of a single small batch that reach each length."""
    return rows * (1 - none_reaches(known, rows))


def _fewer_shorter(known: Distribution, rows: int, last: int) -> "Floats":
    """Return the chance, for each length, that fewer than ``last`` of ``rows`` drawn rows are shorter."""
    import numpy as np

    if known.rows <= FEW:
        return np.asarray(_chances(known.rows, known.rows - known.at_least, rows)[:, :last].sum(axis=1))
    return _at_most(rows, 1 - known.at_least / known.rows, last - 1)


def _at_most(trials: int, chance: "Floats", most: int) -> "Floats":
    """Return P(binomial(trials, chance) <= most), by its terms."""
    import numpy as np

    with np.errstate(divide="ignore", invalid="ignore"):
        ways = [math.lgamma(trials + 1) - math.lgamma(i + 1) - math.lgamma(trials - i + 1) for i in range(most + 1)]
        logs = [
            ways[i] + (i * np.log(chance) if i else 0.0) + (trials - i) * np.log1p(-chance) for i in range(most + 1)
        ]
        total = np.sum([np.exp(np.where(np.isnan(one), -np.inf, one)) for one in logs], axis=0)
    return np.asarray(np.minimum(1.0, np.where(chance <= 0, 1.0, total)))


def padded_tokens(known: Distribution, reaching: "Floats") -> float:
    """Return the slots of an epoch from the rows that reach each length."""
    import numpy as np

    return float((np.diff(known.padded, prepend=0) * reaching).sum())


def padded_squares(known: Distribution, reaching: "Floats") -> float:
    """Return the sum over all rows of the square of their batch's length."""
    import numpy as np

    return float((np.diff(known.padded.astype(float) ** 2, prepend=0) * reaching).sum())


def batch_longest(known: Distribution, size: int) -> tuple[float, float]:
    """Return mean and standard deviation of the longest row of a full random batch, in slots."""
    import numpy as np

    reach = 1 - none_reaches(known, min(size, known.rows))
    mean = float((np.diff(known.padded, prepend=0) * reach).sum())
    square = float((np.diff(known.padded.astype(float) ** 2, prepend=0) * reach).sum())
    return mean, max(0.0, square - mean * mean) ** 0.5


def epoch_spread(known: Distribution, size: int) -> float:
    """Return the standard deviation of the slots of an epoch in random order.

    Each row is used once an epoch, so what a batch's longest owes to its rows one by one is the same in every epoch;
    only the rest scatters (the first-order projection is taken out).
    """
    import numpy as np

    if known.rows <= size:
        return 0.0
    _, spread = batch_longest(known, size)
    steps = np.diff(known.padded, prepend=0).astype(float)
    shorter = 1 - known.at_least / known.rows
    beyond = steps * (1 - shorter ** (size - 1))
    # expected longest, given that one row has this length: certain up to it, by the other rows above it
    given = np.cumsum(steps) + beyond.sum() - np.cumsum(beyond)
    share = known.counts / known.rows
    centred = given - float((given * share).sum())
    owed = size * float((centred**2 * share).sum())
    return size * math.sqrt(max(0.0, spread**2 - owed) * (known.rows // size))


def step_share(known: Distribution, size: int, group: int, ranks: int, *, neighbours: bool) -> "Floats":
    """Return the chance, for each length, that the slowest rank of a step reaches it.

    Args:
        known: The distribution.
        size: Rows a batch.
        group: Rows of a sorted group.
        ranks: Batches of a step.
        neighbours: Whether the batches of a step are neighbours in the sorted group, or drawn one by one.
    """
    group = min(group, known.rows)
    if neighbours:
        if group <= size * ranks:
            return 1 - none_reaches(known, min(size * ranks, known.rows))
        wide = size * ranks
        return expected_ceil_drawn(known.rows, known.at_least, group, wide) * (wide / group)
    single = expected_ceil_drawn(known.rows, known.at_least, group, size) * (size / group)
    if group <= size:
        single = 1 - none_reaches(known, min(size, known.rows))
    return 1 - (1 - single.clip(0, 1)) ** ranks
