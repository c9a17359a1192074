"""Changes to how rows are put into batches, and what they would gain in the step that was observed."""

import math
from dataclasses import replace

from stepprobe.analysis.profile import batches
from stepprobe.analysis.profile.batches import Batches
from stepprobe.analysis.profile.forecast import Forecast, Span, saving
from stepprobe.analysis.profile.penalty import missed
from stepprobe.analysis.profile.situation import Situation
from stepprobe.model.estimate import Estimate

WORDS = {
    "bucketing": ('train_sampling_strategy="group_by_length"', "rows sorted by length into batches"),
    "packing": ("rows packed when the dataset is made", "rows packed in the collate function"),
    "padding_free": ("DataCollatorWithFlattening", "rows of a batch joined, with their position ids"),
    "batch_size": ("per_device_train_batch_size=", "rows of a batch: "),
}
"""Change -> how it is made with the HF Trainer and its kin, and in a loop of the script's own."""
LONGEST_FIRST = "padding to the longest of a batch; "
"""How grouping begins where all rows are padded to one length: grouped or not, each of them would stay as long."""
OF_TRL = {"packing": "packing=True", "padding_free": "padding_free=True"}

Said = Forecast | str
"""A forecast, or why there is none."""


def longest(now: Situation) -> Said:
    """Rows padded to the longest of their batch, in the order of now."""
    if now.batches is None:
        return "no rows were seen"
    if not now.batches.one_length:
        return "the batches are not padded to one length"
    found = _to_longest(now, now.batches)
    return Forecast(
        "longest",
        "pad each batch to its longest row",
        saving(now.step.shrunk(found), now.n, _by_fit(now, found, "padding beyond the longest row goes")),
    )


def _to_longest(now: Situation, seen: Batches) -> Span:
    return _less_padding(now, lambda one: batches.to_longest(one).work, seen)


def bucketing(now: Situation) -> Said:
    """Rows of about one length in each batch."""
    if now.batches is None or now.batches.padding < 1e-3:
        return "the batches hold no padding"
    if now.batches.size < 2:
        return "a batch of one row is padded by nothing that grouping could change"
    found = _less_padding(now, batches.bucketed, now.batches)
    first = LONGEST_FIRST if now.batches.one_length else ""
    return Forecast(
        "bucketing",
        f"{first}{_in_words(now, 'bucketing')}",
        saving(now.step.shrunk(found), now.n, _by_fit(now, found, "padding goes, the fixed part stays")),
        on_top=_beyond_longest(now, now.batches) if now.batches.one_length else None,
    )


def _beyond_longest(now: Situation, seen: Batches) -> Estimate:
    """Return what grouping saves of a step whose batches are padded to their longest row already."""
    shorter = _to_longest(now, seen)
    found = _less_padding(now, batches.bucketed, batches.to_longest(seen))
    saved = now.step.times(shorter).shrunk(found)
    return saving(saved, now.n, _by_fit(now, found, "of batches that are padded to their longest row"))


def _less_padding(now: Situation, order: batches.Order, seen: Batches) -> Span:
    """Return the time in another order over that of now, as far off as the fit was where padding was measured."""
    found = batches.ratio(now.fit, seen, order)
    return replace(found, half=math.hypot(found.known, (1 - found.value) * missed(now.seen)))


def _in_words(now: Situation, change: str) -> str:
    """Return a change as the script's trainer calls it."""
    if now.framework == "trl" and change in OF_TRL:
        return OF_TRL[change]
    return WORDS[change][0 if now.framework else 1]


def _by_fit(now: Situation, found: Span, why: str) -> str:
    return f"forward and backward × {found.value:.3f} by the fit, on the lengths that were seen; {why}"


def packing(now: Situation) -> Said:
    """Several rows in one, as long as the longest."""
    if now.batches is None or len(now.batches.rows) < 2:
        return "no rows were seen"
    work = batches.packed(now.batches, apart=now.apart)
    if work.batches > 0.98 * now.batches.work.batches:
        return "the rows are as long as a pack: packing changes nothing"
    found = _less_padding(now, lambda one: batches.packed(one, apart=now.apart), now.batches)
    saved = now.step.shrunk(found)
    fewer = work.batches / now.batches.work.batches
    attention = "rows apart in attention" if now.apart else "attention over whole packs (no variable-length kernel)"
    rows = f"rows of {max(now.batches.slots):,} slots: {fewer:.0%} as many optimizer steps"
    return Forecast(
        "packing",
        f"{_in_words(now, 'packing')}, into {rows}",
        saving(
            saved.plus(now.each_step(fewer)),
            now.n,
            f"{_by_fit(now, found, attention)}; {fewer:.0%} as many optimizer steps for the same rows",
        ),
        same_rows=False,
    )


def padding_free(now: Situation) -> Said:
    """The rows of a batch joined, without padding."""
    if now.batches is None or now.batches.padding < 1e-3:
        return "the batches hold no padding"
    found = _less_padding(now, lambda one: batches.flattened(one, apart=now.apart), now.batches)
    attention = "rows apart in attention" if now.apart else "attention over the joined row (no variable-length kernel)"
    return Forecast(
        "padding_free",
        _in_words(now, "padding_free"),
        saving(now.step.shrunk(found), now.n, _by_fit(now, found, attention)),
    )


def batch_size(now: Situation) -> Said:
    """Twice the rows in a micro-batch."""
    if now.batches is None:
        return "no rows were seen"
    small = min(len(rows) for rows in now.batches.real)
    tight = [one for one in now.seen.answers.dropped if one.reason == "memory"]
    size, longest = 2 * now.batches.size, max(now.batches.slots)
    if any(one.rows * one.length <= size * longest for one in tight):
        return f"{size} rows of {longest:,} slots do not fit into memory"
    found = batches.ratio(now.fit, now.batches, batches.larger)
    saved = now.step.shrunk(found)
    halved = now.batches.accumulation < 2
    if halved:
        saved = saved.plus(now.each_step(0.5))
    how = "" if halved else ", half the accumulation"
    return Forecast(
        "batch_size",
        f"{_in_words(now, 'batch_size')}{max(size, 2 * small)}{how}",
        saving(saved, now.n, _by_fit(now, found, "half the fixed part, and the padding that more rows bring")),
        same_rows=not halved,
    )
