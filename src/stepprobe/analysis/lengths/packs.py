"""What packing gives: best-fit-decreasing on the whole set, the bound, and what trainers ship."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stepprobe.analysis.distributions import t_quantile
from stepprobe.analysis.lengths.batching import Distribution
from stepprobe.analysis.lengths.packing import Packing, best_fit_decreasing, lower_bounds, next_fit

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

MAP_ROWS = 1000
"""Rows that trainers hand to their packer at once, since that is the batch of ``Dataset.map``."""
MAP_BATCHES = 12
"""Such batches that are drawn and packed."""
IN_ORDER = 20_000
"""Rows that are drawn for packing in order."""


@dataclass(frozen=True)
class Packs:
    """Numbers of bins, and what a bin of the best packing costs in attention."""

    cap: int
    packing: Packing
    by_tokens: int
    bound: int
    per_map: float
    """Bins when packed in batches of 1,000 rows."""
    per_map_error: float
    in_order: float
    """Bins of next fit."""
    wrapped: int
    """Bins when all tokens are joined and cut, sequence borders ignored."""
    wrapped_cut: float
    """Rows that a cut goes through, expected share."""
    squares: float
    """Sum of the squares of the rows' lengths: attention inside packs when rows do not see each other."""

    @property
    def bins(self) -> int:
        """Bins of the best packing."""
        return self.packing.bins


def pack(known: Distribution, cap: int, uncut_tokens: int, seed: int = 0) -> Packs:
    """Pack rows that are already cut to ``cap``.

    Args:
        known: The rows.
        cap: Tokens of a bin.
        uncut_tokens: Tokens before cutting: what joining and cutting packs.
        seed: Of the rows that are drawn for the trainers' ways.
    """
    import numpy as np

    lengths, rows = known.lengths.tolist(), known.counts.tolist()
    by_tokens, bound = lower_bounds(known.lengths, known.counts.astype(np.int64), cap)
    random = np.random.default_rng(seed)
    reached = np.cumsum(known.counts)

    def drawn(count: int) -> "Ints":
        places = random.integers(0, known.rows, count) if count < known.rows else random.permutation(known.rows)
        return known.lengths[np.searchsorted(reached, places, side="right")]

    bins = [_of_rows(drawn(min(MAP_ROWS, known.rows)), cap) for _ in range(MAP_BATCHES if known.rows > MAP_ROWS else 1)]
    times = max(1.0, known.rows / MAP_ROWS)
    error = float(np.std(bins, ddof=1) / len(bins) ** 0.5) * times if len(bins) > 1 else 0.0
    ordered = drawn(min(IN_ORDER, known.rows))
    return Packs(
        cap=cap,
        packing=best_fit_decreasing(lengths, rows, cap),
        by_tokens=by_tokens,
        bound=bound,
        per_map=float(np.mean(bins)) * times,
        per_map_error=error * t_quantile(0.975, max(1, len(bins) - 1)) if len(bins) > 1 else 0.0,
        in_order=next_fit(ordered.tolist(), cap) * known.rows / len(ordered),
        wrapped=math.ceil(uncut_tokens / cap),
        wrapped_cut=min(1.0, uncut_tokens / cap / known.rows),
        squares=known.squares,
    )


def _of_rows(lengths: "Ints", cap: int) -> int:
    import numpy as np

    distinct, rows = np.unique(lengths, return_counts=True)
    return best_fit_decreasing(distinct.tolist(), rows.tolist(), cap).bins


def waste(tokens: int, bins: float, cap: int) -> float:
    """Return the share of the bins' slots that holds no token."""
    return 1 - tokens / (bins * cap) if bins else 0.0


@dataclass(frozen=True)
class Budget:
    """Batches of sorted rows that hold as many as fit a number of slots."""

    slots: int
    batches: int
    padded: float
    squares: float
    fewest: int
    most: int


def token_budget(known: Distribution, slots: int) -> Budget:
    """Cut sorted rows into batches of at most ``slots`` slots, from the longest on."""
    import numpy as np

    made: list[tuple[int, int, int]] = []  # longest, rows, batches
    longest, room = 0, 0
    for length, rows in zip(known.padded[::-1].tolist(), known.counts[::-1].tolist(), strict=True):
        left = rows
        if room:
            taken = min(room, left)
            made.append((longest, -taken, 0))
            left, room = left - taken, room - taken
        if left:
            each = max(1, slots // length)
            batches = -(-left // each)
            made.append((length, left, batches))
            longest, room = length, batches * each - left
    rows_of = np.array([(one[0], abs(one[1]), one[2]) for one in made], float)
    opened = [one for one in made if one[2]]
    per_batch = [max(1, slots // one[0]) for one in opened]
    return Budget(
        slots=slots,
        batches=int(rows_of[:, 2].sum()),
        padded=float((rows_of[:, 0] * rows_of[:, 1]).sum()),
        squares=float((rows_of[:, 0] ** 2 * rows_of[:, 1]).sum()),
        fewest=min(min(per_batch), known.rows),
        most=min(max(per_batch), known.rows),
    )
