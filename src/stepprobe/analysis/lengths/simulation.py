"""Batches that are really formed, from rows drawn out of the histogram.

They check the closed form, and tell what only the composition of batches can: sources, order, weights.
"""

import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from stepprobe.analysis.lengths.batching import Distribution

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]

DRAWN = 1 << 17
"""Rows that are drawn, a small dataset again and again; the same ones for every bucket size, so that sizes differ by
nothing else."""
FEWEST_GROUPS = 8
"""Below this many groups nothing is said about their scatter."""


@dataclass(frozen=True)
class Draw:
    """Rows in random order."""

    lengths: "Ints"
    """Length as the batch sees it."""
    ranks: "NDArray[np.uint16] | Ints"
    """The same order in small numbers, for a fast sort."""
    sources: "Ints"
    squares: float
    """Chance that two rows of the dataset share their source."""
    epoch: int
    """Rows that are drawn together without replacement, one epoch behind the other; no group reaches over its end."""


@dataclass(frozen=True)
class Mixing:
    """How sources mix in batches."""

    effective: float
    """Effective batch size: how many rows of independent sources the batch is worth."""
    low: float
    high: float
    """Ends of its 95 % interval."""
    correlation: float
    """Intraclass correlation of the source, as estimated (it can be slightly negative)."""
    one_source: float
    """Share of batches whose rows all have one source."""


@dataclass(frozen=True)
class Formed:
    """What formed batches look like."""

    groups: int
    padded: float
    """Mean slots a group."""
    padded_error: float
    """Its standard error."""
    padded_spread: float
    """Standard deviation of a group's slots beyond what its tokens explain: those are the same in every epoch."""
    composition: int
    """A checksum of which rows came together."""
    sources: "Mixing | None"
    """How sources mix in batches; None where there is one source."""
    lag1: float
    """Correlation of a batch's mean length with that of the next, in the order in which they are formed."""
    weight_ratio: float
    """95th over 5th percentile of the tokens of a batch: how unequally they weigh where each batch counts the same."""


def draw(cells: "Ints", known: "Distribution", longest: int | None, seed: int = 0) -> Draw:
    """Draw rows of (source, length, rows) cells in random order: whole epochs, or a part of one where it is long."""
    import numpy as np

    total = int(cells[:, 2].sum())
    random = np.random.default_rng(seed)
    if total <= 8 * DRAWN:
        orders = [random.permutation(total)[:DRAWN] for _ in range(max(1, DRAWN // total))]
        picked = np.repeat(np.arange(len(cells)), cells[:, 2])[np.concatenate(orders)]
    else:
        picked = np.searchsorted(np.cumsum(cells[:, 2]), random.integers(0, total, DRAWN), side="right")
    raw = cells[picked, 1] if longest is None else np.minimum(cells[picked, 1], longest)
    ranks = np.searchsorted(known.lengths, raw)
    small = ranks.astype(np.uint16) if len(known.lengths) <= 1 << 16 else ranks.astype(np.int64)
    by_source = np.bincount(cells[:, 0], cells[:, 2])
    squares = float((by_source * (by_source - 1)).sum() / max(1.0, float(total) * (total - 1)))
    return Draw(raw, small, cells[picked, 0], squares, min(total, DRAWN))


def form(drawn: Draw, known: "Distribution", size: int, group: int) -> Formed | None:
    """Form batches of ``size`` from sorted groups of ``group`` rows; None where too few groups were drawn."""
    import numpy as np

    epochs, of_each = len(drawn.lengths) // drawn.epoch, drawn.epoch // group
    groups = epochs * of_each
    if groups < FEWEST_GROUPS:
        return None
    starts = (np.arange(0, epochs * drawn.epoch, drawn.epoch)[:, None] + np.arange(of_each) * group).reshape(-1, 1)
    order = sort_groups(drawn.ranks[starts + np.arange(group)])
    order = (order + starts).reshape(-1, size)
    longest = known.padded[drawn.ranks[order[:, 0]]].astype(float)
    padded = longest.reshape(groups, -1).sum(axis=1) * size
    tokens = drawn.lengths[order].sum(axis=1).astype(float)
    low, high = np.percentile(tokens, (5, 95))
    return Formed(
        groups=groups,
        padded=float(padded.mean()),
        padded_error=float(padded.std(ddof=1) / groups**0.5),
        padded_spread=_residual_spread(padded, drawn.lengths[order].reshape(groups, -1)),
        composition=zlib.crc32(np.ascontiguousarray(order if group > size else np.sort(order, axis=1)).tobytes()),
        lag1=_lag1(tokens),
        weight_ratio=float(high / low) if low else float("inf"),
        sources=_sources(drawn, order, groups),
    )


def sort_groups(ranks: "NDArray[np.uint16] | Ints") -> "NDArray[np.intp]":
    """Return the order of falling length within each group; equal lengths stay in random order."""
    import numpy as np

    if ranks.dtype == np.uint16:
        return np.argsort(np.uint16(0xFFFF) - ranks, axis=1, kind="stable")
    return np.argsort(-ranks, axis=1, kind="stable")


def _residual_spread(padded: "Floats", lengths: "Ints") -> float:
    import numpy as np

    explained = np.column_stack((np.ones(len(padded)), lengths.sum(axis=1), np.sqrt(lengths).sum(axis=1)))
    if len(padded) < 2 * explained.shape[1]:
        return float(padded.std(ddof=1))
    fitted, *_ = np.linalg.lstsq(explained, padded, rcond=None)
    rest = padded - explained @ fitted
    return float(((rest**2).sum() / (len(padded) - explained.shape[1])) ** 0.5)


def _lag1(tokens: "Floats") -> float:
    import numpy as np

    if len(tokens) < 3 or tokens.std() == 0:
        return 0.0
    centred = tokens - tokens.mean()
    return float(np.sum(centred[1:] * centred[:-1]) / np.sum(centred * centred))


def _sources(drawn: Draw, order: "NDArray[np.intp]", groups: int) -> Mixing | None:
    """Return the figures about sources; the collision probability is unbiased at any batch size."""
    batches, size = order.shape
    sources = drawn.sources[order]
    kinds = int(drawn.sources.max()) + 1
    if drawn.squares >= 1 or size < 2 or kinds < 2:
        return None
    together = _pairs(sources, kinds) / (size * (size - 1))
    means = together[: batches // groups * groups].reshape(groups, -1).mean(axis=1)
    value, error = float(means.mean()), float(means.std(ddof=1) / groups**0.5)
    correlation, half = ((value - drawn.squares) / (1 - drawn.squares), 1.96 * error / (1 - drawn.squares))
    effective, low, high = (
        size / (1 + (size - 1) * max(0.0, one)) for one in (correlation, correlation + half, correlation - half)
    )
    return Mixing(effective, low, high, correlation, float((together >= 1).mean()))


def _pairs(sources: "Ints", kinds: int) -> "Floats":
    """Return, for each batch, the ordered pairs of its rows that share their source."""
    import numpy as np

    batches, size = sources.shape
    if batches * kinds <= 1 << 22:
        keys = (sources + np.arange(0, batches * kinds, kinds)[:, None]).reshape(-1)
        found = np.bincount(keys, minlength=batches * kinds).reshape(batches, kinds).astype(float)
        return np.asarray((found * (found - 1)).sum(axis=1))
    ordered = np.sort(sources, axis=1)
    total = np.zeros(batches)
    for shift in range(1, size):
        total += 2 * (ordered[:, shift:] == ordered[:, :-shift]).sum(axis=1)
    return total
