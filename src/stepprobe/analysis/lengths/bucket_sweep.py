"""The sweep over bucket sizes: exact, checked by batches that are really formed, and refused when it varied nothing."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from stepprobe.analysis.lengths import batching, simulation
from stepprobe.analysis.lengths.batching import Distribution
from stepprobe.analysis.lengths.cost import Cost
from stepprobe.analysis.lengths.options import Cut, Options
from stepprobe.analysis.lengths.simulation import Draw, Formed, Mixing

SIZES = (1, 2, 4, 8, 16, 32, 50, 64, 128, 256, 512, 1024)
"""Bucket sizes k, in batches of one optimizer step each; 50 is what the HF Trainer uses."""
SHIPPED = 50
"""Batches that the HF Trainer sorts together."""
NEAR_BEST = 0.02
"""The best bucket is the smallest one whose cost is within this of the lowest."""
ERRORS = 4
"""Standard errors by which formed batches may depart from the closed form."""
FORMULA = 2e-3
"""Relative error of the closed form where a group is a large part of the dataset (it is exact at both ends)."""
VARIED = 1e-3
"""Relative change of cost below which a sweep varied nothing."""


@dataclass(frozen=True)
class Bucket:
    """One bucket size."""

    size: int
    """k: a group is k optimizer steps of rows."""
    group: int
    """Rows of a sorted group."""
    slots: float
    """Expected slots of an epoch."""
    squares: float
    cost: float
    """Expected cost of an epoch, the sum over batches."""
    waste: float
    spread: float
    """Standard deviation of the waste from one epoch to the next."""
    slowest: float
    """Cost of the slowest rank over the mean rank when the batches of a step are neighbours; 1 for one rank."""
    slowest_single: float
    """The same when batches are shuffled one by one."""
    slowest_per_rank: float
    """The same for neighbours, when the group is k batches of one rank only, as samplers often count."""
    cost_per_rank: float
    """Cost of an epoch with such groups."""
    formed: Formed | None

    @property
    def mixing(self) -> Mixing | None:
        """How sources mix, where batches were formed of several."""
        return self.formed.sources if self.formed else None


@dataclass(frozen=True)
class Sweep:
    """All bucket sizes, the full sort last."""

    buckets: tuple[Bucket, ...]
    full_sort: Bucket
    shipped: Bucket
    """What the HF Trainer's group_by_length does: its group counts the batches of one rank."""
    faults: tuple[str, ...]
    """Guards that failed: the instrument is broken."""
    varied: bool
    """Whether bucketing can change anything here."""
    reason: str
    """Why it cannot."""

    @property
    def best(self) -> Bucket:
        """The smallest bucket whose step time is near the lowest."""
        lowest = min(one.cost * one.slowest for one in self.buckets)
        return next(one for one in self.buckets if one.cost * one.slowest <= lowest * (1 + NEAR_BEST))


def sweep(cut: Cut, options: Options, cost: Cost, sizes: Sequence[int] = SIZES) -> Sweep:
    """Sweep the bucket size."""
    known = cut.known
    drawn = simulation.draw(cut.cells, known, options.max_length)
    usable = [size for size in sizes if size == 1 or size * options.step_rows < known.rows]
    buckets = tuple(_bucket(known, options, cost, size, drawn) for size in usable)
    steps = math.ceil(known.rows / options.step_rows)
    full = _bucket(known, options, cost, steps, None, steps * options.step_rows)
    lowest, highest = min(one.cost for one in (*buckets, full)), max(one.cost for one in (*buckets, full))
    varied = highest - lowest > VARIED * lowest
    faults = tuple(_faults(known, options, cost, buckets, full, varied))
    shipped = _bucket(known, options, cost, 0, drawn, shipped_group(known.rows, options))
    return Sweep(buckets, full, shipped, faults, varied, "" if varied else _why_not(cut, options))


def shipped_group(rows: int, options: Options) -> int:
    """Return the rows of a sorted group of the HF Trainer: 50 batches, or a quarter of a small dataset."""
    batch = options.batch_size * options.accumulation
    return max(1, min(rows // (4 * batch), SHIPPED)) * batch


def _bucket(known: Distribution, options: Options, cost: Cost, size: int, drawn: Draw | None, group: int = 0) -> Bucket:
    # k = 1 is the random order itself: a batch is then a group
    group = group or (options.batch_size if size == 1 else size * options.step_rows)
    reaching = batching.rows_at_least(known, options.batch_size, group)
    slots, squares = batching.padded_tokens(known, reaching), batching.padded_squares(known, reaching)
    batches = math.ceil(known.rows / options.batch_size)
    total = cost.total(batches, slots, squares)
    formed = simulation.form(drawn, known, options.batch_size, group) if drawn else None
    waste = 1 - known.tokens / slots
    spread = 0.0
    if group <= options.batch_size:
        spread = (1 - waste) * batching.epoch_spread(known, options.batch_size) / slots
    elif formed and formed.padded:
        spread = (1 - waste) * formed.padded_spread / formed.padded * math.sqrt(group / known.rows)
    ratios = (1.0, 1.0, 1.0)
    own = min(max(size * options.batch_size, options.batch_size), known.rows)
    own_reaching = batching.rows_at_least(known, options.batch_size, own)
    own_total = cost.total(
        batches, batching.padded_tokens(known, own_reaching), batching.padded_squares(known, own_reaching)
    )
    if options.ranks > 1:
        mean = total / batches
        ratios = (
            _step_cost(known, options, cost, group, neighbours=True) / mean,
            _step_cost(known, options, cost, group, neighbours=False) / mean,
            _step_cost(known, options, cost, own, neighbours=True) / (own_total / batches),
        )
    slowest, single, per_rank = (max(1.0, one) for one in ratios)
    return Bucket(size, group, slots, squares, total, waste, spread, slowest, single, per_rank, own_total, formed)


def _step_cost(known: Distribution, options: Options, cost: Cost, group: int, *, neighbours: bool) -> float:
    """Return the expected cost of a step's slowest rank."""
    import numpy as np

    share = batching.step_share(known, options.batch_size, group, options.ranks, neighbours=neighbours)
    rows, lengths = options.batch_size, known.padded.astype(float)
    risen = np.diff(cost.linear * rows * lengths + cost.square * rows * lengths**2, prepend=0.0)
    return cost.fixed + float((risen * share).sum())


def _faults(
    known: Distribution, options: Options, cost: Cost, buckets: Sequence[Bucket], full: Bucket, varied: bool
) -> "list[str]":
    """Return what shows that the instrument is broken; each is a hard failure."""
    faults = []
    random = batching.padded_tokens(known, batching.random_rows_at_least(known, options.batch_size))
    if not math.isclose(buckets[0].slots, random, rel_tol=1e-9):
        faults.append("k = 1 is not the random order")
    if (sorted_slots := _sorted_slots(known, options.batch_size)) is not None and not math.isclose(
        full.slots, sorted_slots, rel_tol=1e-9
    ):
        faults.append(f"the largest bucket gives {full.slots:,.0f} slots, the sorted rows {sorted_slots:,.0f}")
    faults += _rises(known, options, cost, (*buckets, full))
    made = [one for one in buckets if one.formed]
    if varied and len({one.formed.composition for one in made if one.formed}) < len(made):
        faults.append("two bucket sizes formed the same batches")
    faults += [
        text for one in made if one.formed and (text := disagreement(known, options.batch_size, one, one.formed))
    ]
    return faults


def _rises(known: Distribution, options: Options, cost: Cost, ordered: Sequence[Bucket]) -> Iterator[str]:
    """Say where groups that are put together, and sorted as one, cost more than apart.

    They cannot, but for a last batch of fewer rows: it may be the longest of its group, and is full when they are one.
    """
    longest, short = float(known.padded[-1]), -known.rows % options.batch_size
    allowed = short * (cost.linear * longest + cost.square * longest**2)
    for place, after in enumerate(ordered[1:], 1):
        parts = (one for one in reversed(ordered[:place]) if after is ordered[-1] or after.group % one.group == 0)
        before = next(parts, None)
        if before and after.cost > before.cost * (1 + FORMULA) + allowed:
            yield f"cost rises from k = {before.size} to k = {after.size}"


def disagreement(known: Distribution, size: int, bucket: Bucket, formed: Formed) -> str:
    """Say so when batches that were formed are not what the closed form expects."""
    expected = batching.group_slots(known, size, bucket.group)
    allowed = ERRORS * formed.padded_error + FORMULA * expected
    if abs(formed.padded - expected) <= allowed:
        return ""
    return f"k = {bucket.size}: {formed.padded:,.1f} slots a group were formed, {expected:,.1f} expected"


def _sorted_slots(known: Distribution, size: int, most: int = 1 << 20) -> float | None:
    """Return the slots of the sorted dataset by walking over its batches; None where there are too many."""
    import numpy as np

    if known.rows > most * size:
        return None
    starts = np.arange(0, known.rows, size)
    reached = np.cumsum(known.counts[::-1])
    longest = known.padded[::-1][np.searchsorted(reached, starts, side="right")]
    return float((longest * np.minimum(size, known.rows - starts)).sum())


def _why_not(cut: Cut, options: Options) -> str:
    if len(cut.known.lengths) == 1:
        return "all rows are cut to the same length" if cut.cut_rows else "all rows have the same length"
    if cut.known.rows <= options.step_rows:
        return "the dataset is not larger than one step"
    if options.batch_size == 1:
        return "a batch of one row is never padded"
    if len(set(cut.known.padded.tolist())) == 1:
        return "padded to this multiple, all batches are as long as each other"
    if said := one_length(cut):
        return f"{said}, and the others are too few to fill batches of their own"
    return "no order of the rows makes batches much shorter"


def one_length(cut: Cut) -> str:
    """Say how many rows have one length; empty where no length, as padded, is that of most rows."""
    import numpy as np

    slots, places = np.unique(cut.known.padded, return_inverse=True)
    rows = np.bincount(places, weights=cut.known.counts)
    most = int(rows.argmax())
    if 2 * rows[most] <= cut.known.rows:
        return ""
    share = rows[most] / cut.known.rows
    after = " after the cut" if cut.cut_rows and most == len(rows) - 1 else ""
    return f"{rows[most]:,.0f} of {cut.known.rows:,} rows ({share:.1%}) have one length{after}, {slots[most]:,} tokens"
