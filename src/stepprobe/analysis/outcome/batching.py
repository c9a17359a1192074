"""Which changes were made to how rows are put into batches: each is known by something that only it does.

Padding to the longest row of a batch ends the padding beyond it; grouping makes the rows of a batch alike; packing
makes rows longer, and joining makes a batch one row; fewer shapes come without any of that.
"""

import re

from stepprobe.analysis.ledger.process import Process
from stepprobe.analysis.ledger.rows import Rows, rows_of
from stepprobe.analysis.ledger.shapes import mean_rows, rectangles
from stepprobe.analysis.ledger.tokens import observed
from stepprobe.analysis.outcome.gains import LESS, Gains
from stepprobe.analysis.outcome.sign import Sign, Undecided, from_to, setting, turned_on
from stepprobe.model.finding import Finding, Remedy

PACKED_ROWS = 1.25
"""Ratio of tokens in a row from which rows must hold more than one example: grouping leaves it as it is."""
MORE_ROWS = 1.5
"""Ratio of rows in a micro-batch from which the batch size was raised."""
ALIKE = 0.5
"""Part of the spread within batches that may remain where rows were grouped; real samplers leave far less."""
ERRORS = 2.0
"""Standard errors of an order of chance from which the rows of a batch are decidedly more alike."""
LEVELLED = 0.7
"""Ratio of the lengths' variation up to which rows were filled up: longer examples alone keep theirs."""

GROUPING = ("train_sampling_strategy", "group_by_length")
LIMIT = re.compile(r"max_length=(\d+)")


def longest(gains: Gains, *_: object) -> Sign:
    """Batches are padded to their longest row, which they were not: their shapes differ, and nothing lies beyond it."""
    if longer_rows(gains) or len(_shapes(gains.first)) != 1:
        return ""
    before, after = _both(gains)
    if before is None or after is None:
        return _varied(gains)
    varied = len(_shapes(gains.second)) > 1 or not after.beyond
    if not varied or not before.beyond or after.beyond > (1 - LESS) * before.beyond:
        return ""
    return f"slots beyond the longest row of their batch {before.beyond:.0%} → {after.beyond:.0%}"


def _varied(gains: Gains) -> Sign:
    """The lengths are not known: that shapes differ shows that no fixed length is padded to, not in which order."""
    padding, shapes = _less_padding(gains), len(_shapes(gains.second))
    if not padding or shapes < 2:
        return ""
    if _grouping_set(gains):
        return f"batches of {shapes} shapes, {padding}"
    return Undecided(f"{padding}, batches of {shapes} shapes, and the order of the lengths was not counted")


def grouped(gains: Gains, *_: object) -> Sign:
    """Rows of a batch are more alike than they were, and less padding is left by that.

    Rows that hold more tokens speak for packing, unless grouping was turned on and packing was not: they may be longer
    by chance where few were seen.
    """
    said = _grouping_set(gains)
    if longer_rows(gains) and (not said or _packing_set(gains)):
        return ""
    before, after = _both(gains)
    mixing = [one.mixing if one else None for one in (before, after)]
    if before is None or after is None or mixing[0] is None or mixing[1] is None:
        return _grouped_unseen(gains)
    far = ERRORS * (before.mixing_error**2 + after.mixing_error**2) ** 0.5
    if mixing[1] > ALIKE * mixing[0] or (mixing[0] - mixing[1] < far and not said):
        return ""
    uneven = [one.uneven / (1 - one.beyond) for one in (before, after)]
    padding = [1 - one.real / one.slots for one in (before, after)]
    if uneven[1] > (1 - LESS) * uneven[0] or padding[1] > (1 - LESS) * padding[0]:
        return ""
    spread = f"spread of the lengths in a batch {mixing[0]:.0%} → {mixing[1]:.0%} of that of chance order"
    return f"{said}, {spread}" if said else spread


def _grouped_unseen(gains: Gains) -> Sign:
    padding = _less_padding(gains)
    if not padding:
        return ""
    if said := _grouping_set(gains):
        return f"{said}, {padding}"
    if len(_shapes(gains.second)) == 1 and mean_rows(gains.second) != 1:
        return ""  # all batches of one length: that is no order, and no padding to the longest row either
    return Undecided(f"{padding}, and neither a setting nor the order of the lengths tells why")


def _grouping_set(gains: Gains) -> str:
    said = turned_on(gains, *GROUPING)
    return said if "group" in said else ""


def _packing_set(gains: Gains) -> str:
    return turned_on(gains, "packing", "padding_free")


def packed(gains: Gains, *_: object) -> Sign:
    """Rows are longer and hold less padding; where their lengths are known, they are also less uneven."""
    padding, rows = _less_padding(gains), longer_rows(gains)
    if not padding or not rows:
        return ""
    before, after = _both(gains)
    uneven = before is not None and after is not None and after.variation > LEVELLED * before.variation
    if (uneven or before is None or after is None) and not _packing_set(gains) and _grouping_set(gains):
        return ""  # grouping explains the padding, and rows as uneven as before may be longer by chance
    if uneven and not _packing_set(gains):
        return Undecided(f"{padding}, {rows}, but rows as uneven as before: longer examples could have done it")
    return f"{padding}, {rows}"


def packed_apart(gains: Gains, *_: object) -> Sign:
    """Rows were packed, and a batch still holds several."""
    return "" if gains.counted and _one_row(gains) else packed(gains)


def joined(gains: Gains, *_: object) -> Sign:
    """The rows of a batch became one."""
    return packed(gains) if gains.counted and _one_row(gains) else ""


def shorter(gains: Gains, _: Finding, remedy: Remedy) -> str:
    """No row is longer than the limit, the longest was, and attention takes decidedly less."""
    before, after = (max((length for _, length in _shapes(one)), default=0) for one in (gains.first, gains.second))
    limit = int(match[1]) if (match := LIMIT.search(remedy.action)) else before - 1
    attention = ("forward.attention", "backward.attention")
    saved = gains.saved(*attention)
    if not 0 < after <= limit < before or saved.low is None or saved.low <= 0:
        return ""
    return f"longest row {before} → {after} slots, attention {from_to(gains, attention)}"


def more_rows(gains: Gains, *_: object) -> str:
    """Micro-batches hold more rows."""
    before, after = mean_rows(gains.first), mean_rows(gains.second)
    if not before or not after or after < MORE_ROWS * before or longer_rows(gains):
        return ""
    return f"{before:.3g} → {after:.3g} rows in a micro-batch"


def fewer_shapes(gains: Gains, *_: object) -> Sign:
    """Fewer shapes come in as many steps, of the same rows in the same order."""
    steps = min(len(gains.first.finished), len(gains.second.finished))
    before, after = (_new_shapes(one, steps) for one in (gains.first, gains.second))
    if not 0 < after <= before * (1 - LESS):
        return ""
    said = f"{before} → {after} distinct shapes in the first {steps} steps"
    rows = [mean_rows(one) or 1.0 for one in (gains.first, gains.second)]
    if longer_rows(gains) or abs(rows[1] / rows[0] - 1) > LESS or grouped(gains):
        return Undecided(f"{said}, and so do rows that are put into batches in another way")
    return said


def _new_shapes(process: Process, steps: int) -> int:
    return sum(one.counters.get("new_shapes", 0) for one in process.finished[:steps])


def longer_rows(gains: Gains) -> str:
    """Return ``200 → 500 tokens in a row`` where rows hold so many more; empty where they do not."""
    before, after = _tokens_of_a_row(gains.first), _tokens_of_a_row(gains.second)
    return f"{before:,.0f} → {after:,.0f} tokens in a row" if before and after and after >= PACKED_ROWS * before else ""


def _tokens_of_a_row(process: Process) -> float | None:
    if not observed(process, "real"):
        return None
    rows = process.counter("rows").value
    if not rows:
        micro_steps = process.counter("micro_steps").value or process.counter("backwards").value
        rows = (mean_rows(process) or 0.0) * max(1.0, micro_steps)
    return process.counter("real").value / rows if rows else None


def _less_padding(gains: Gains) -> str:
    before, after = _padding(gains.first), _padding(gains.second)
    if after is None:
        after = _padding_by_labels(gains)
    if not before or after is None or before - after < LESS * before:
        return ""
    return f"padding {before:.0%} → {after:.0%} of the slots"


def _padding(process: Process) -> float | None:
    """Return the share of padding; without a mask only a batch of one row, as padding-free ones are, is known."""
    if process.unmasked:
        return 0.0 if mean_rows(process) == 1 else None
    if not (observed(process, "slots") and observed(process, "real")):
        return None
    return 1 - process.counter("real").value / process.counter("slots").value


def _padding_by_labels(gains: Gains) -> float | None:
    """Return the share of padding of a run without a mask: as many of its tokens have a label as before, no padding."""
    first, second = gains.first, gains.second
    if not second.unmasked or not all(observed(one, "labelled") and observed(one, "slots") for one in (first, second)):
        return None
    real, labelled = first.counter("real").value, first.counter("labelled").value
    if not labelled:
        return None
    return max(0.0, 1 - second.counter("labelled").value / second.counter("slots").value * real / labelled)


def _one_row(gains: Gains) -> bool:
    """Whether a batch became one row of the tokens that it had before: its rows were joined, none were added."""
    return mean_rows(gains.second) == 1 and abs(gains.tokens[1] / gains.tokens[0] - 1) < LESS


def _both(gains: Gains) -> tuple[Rows | None, Rows | None]:
    return rows_of(gains.first), rows_of(gains.second)


def _shapes(process: Process) -> set[tuple[int, int]]:
    return {(rows, slots) for rows, slots, _ in rectangles(process)}


def amount_changed(gains: Gains) -> str:
    """Return which count of what is loaded in a step differs; empty where none does, or none is known."""
    return setting(gains, "loader_batch_size", "per_device_train_batch_size", "gradient_accumulation_steps")
