"""The batches that the run really had, and the same rows in other batches."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from stepprobe.analysis.distributions import t_quantile
from stepprobe.analysis.lengths import batching
from stepprobe.analysis.lengths.batching import Distribution
from stepprobe.analysis.lengths.bucket_sweep import SHIPPED
from stepprobe.analysis.lengths.options import Options
from stepprobe.analysis.lengths.packing import best_fit_decreasing
from stepprobe.analysis.profile.forecast import Span
from stepprobe.analysis.profile.scaling import Fit, Work
from stepprobe.analysis.statistics import CONFIDENCE

MULTIPLES = (8, 16, 32, 64, 128, 256)
"""What batches are padded to a multiple of."""
PARTS = 10
"""Parts of the batches that are left out in turn, to see how much hangs on the batches that happened to be seen."""


@dataclass(frozen=True)
class Batches:
    """Micro-batches: the real tokens of each row, and the slots of a row."""

    real: tuple[tuple[int, ...], ...]
    slots: tuple[int, ...]
    accumulation: int = 1

    @cached_property
    def work(self) -> Work:
        """What they cost as they are."""
        return Work.of([(len(rows), slots) for rows, slots in zip(self.real, self.slots, strict=True)])

    @cached_property
    def rows(self) -> tuple[int, ...]:
        """Tokens of all rows."""
        return tuple(tokens for batch in self.real for tokens in batch)

    @property
    def tokens(self) -> int:
        """All real tokens."""
        return sum(self.rows)

    @property
    def padding(self) -> float:
        """Share of the slots without a token."""
        return 1 - self.tokens / self.work.slots

    @property
    def size(self) -> int:
        """Rows of most micro-batches."""
        return Counter(len(rows) for rows in self.real).most_common(1)[0][0]

    @property
    def multiple(self) -> int:
        """What the slots of a row are always a multiple of, where rows are padded to one; else 1."""
        if all(slots == max(rows) for slots, rows in zip(self.slots, self.real, strict=True)):
            return 1
        common = math.gcd(*self.slots)
        return max((one for one in MULTIPLES if common % one == 0), default=1) if len(set(self.slots)) > 1 else 1

    @property
    def one_length(self) -> bool:
        """Whether all are padded to one length, and not because each of them needs it."""
        return len(set(self.slots)) == 1 and len(self.slots) > 1 and self.slots[0] > min(map(max, self.real[:-1]))

    def known(self, times: int = 1) -> Distribution:
        """Return the distribution of their rows, each of them so many times."""
        import numpy as np

        lengths, counts = np.unique(np.array(self.rows, np.int64), return_counts=True)
        return Distribution(lengths, counts * times, self.multiple)


def seen_batches(real: Sequence[Sequence[int]], shapes: Sequence[tuple[int, int]], accumulation: int) -> Batches | None:
    """Return the batches of a run; None where none holds a token.

    Args:
        real: Real tokens of each row of each micro-batch.
        shapes: Shapes of the input ids that were seen; a batch has the shortest of them that holds its rows.
        accumulation: Micro-batches of an optimizer step.
    """
    kept = tuple(tuple(max(1, tokens) for tokens in rows) for rows in real if rows and max(rows) > 0)
    if not kept:
        return None
    slots = [
        min((length for count, length in shapes if count == len(rows) and length >= max(rows)), default=max(rows))
        for rows in kept
    ]
    return Batches(kept, tuple(slots), max(1, accumulation))


Order = Callable[[Batches], Work]


def to_longest(seen: Batches) -> Batches:
    """Return the batches, each padded to its longest row."""
    return replace(seen, slots=tuple(map(max, seen.real)))


def bucketed(seen: Batches) -> Work:
    """Return the work when rows are grouped by length as the HF Trainer does, and padded to the longest of a batch."""
    options = Options(batch_size=seen.size, accumulation=seen.accumulation)
    group = SHIPPED * options.step_rows
    return _padded(seen, seen.size, group)


def _padded(seen: Batches, size: int, group: int) -> Work:
    times = math.ceil(4 * group / len(seen.rows))
    known = seen.known(times)
    reaching = batching.rows_at_least(known, size, group)
    batches = len(seen.rows) / size
    return Work(
        batches, batching.padded_tokens(known, reaching) / times, batching.padded_squares(known, reaching) / times
    )


def larger(seen: Batches) -> Work:
    """Return the work in batches of twice as many rows: half the micro-steps, and the padding that more rows bring."""
    now, then = (_padded(seen, size, size) for size in (seen.size, 2 * seen.size))
    longer = max(1.0, then.slots / now.slots), max(1.0, then.squares / now.squares)
    if len(set(seen.slots)) == 1:
        longer = (1.0, 1.0)
    return Work(seen.work.batches / 2, seen.work.slots * longer[0], seen.work.squares * longer[1])


def packed(seen: Batches, *, apart: bool) -> Work:
    """Return the work when rows are packed into rows as long as the longest now; ``apart``: they do not see each other.

    Apart from each other, attention costs the squares of their own lengths; else that of the whole pack.
    """
    cap = max(seen.slots)
    known = seen.known()
    bins = best_fit_decreasing(known.lengths.tolist(), known.counts.tolist(), cap).bins
    return Work(bins / seen.size, bins * cap, known.squares if apart else bins * float(cap) ** 2)


def flattened(seen: Batches, *, apart: bool) -> Work:
    """Return the work when the rows of each batch are joined into one without padding."""
    squares = seen.known().squares if apart else float(sum(sum(rows) ** 2 for rows in seen.real))
    return Work(len(seen.real), seen.tokens, squares)


def shortened(seen: Batches, longest: int) -> Batches:
    """Return the batches with rows cut to ``longest``."""
    return replace(
        seen,
        real=tuple(tuple(min(tokens, longest) for tokens in rows) for rows in seen.real),
        slots=tuple(min(slots, longest) for slots in seen.slots),
    )


def ratio(fit: Fit, seen: Batches, order: Order) -> Span:
    """Return the time of the same rows in another order over that of now.

    The interval holds the error of the fit, and what hangs on which batches happened to be seen (a jackknife).
    """
    value, low, high = fit.ratio(order(seen), seen.work)
    parts = min(PARTS, len(seen.real))
    if parts < 3:
        return Span(value, (high - low) / 2)
    left = [fit.ratio(order(one), one.work)[0] for one in (_without(seen, part, parts) for part in range(parts))]
    middle = sum(left) / parts
    error = ((parts - 1) / parts * sum((one - middle) ** 2 for one in left)) ** 0.5
    return Span(value, math.hypot((high - low) / 2, t_quantile((1 + CONFIDENCE) / 2, parts - 1) * error))


def _without(seen: Batches, part: int, parts: int) -> Batches:
    kept = [place for place in range(len(seen.real)) if place % parts != part]
    return replace(
        seen, real=tuple(seen.real[place] for place in kept), slots=tuple(seen.slots[place] for place in kept)
    )
