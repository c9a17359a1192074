"""Which rows of a trace can be believed, and what is said of the others.

One malformed duration can be most of a trace's time, so it is named and left out, never summed.
"""

from typing import TYPE_CHECKING

import msgspec

from stepprobe.model.trace import KERNEL, MEMCPY, MEMSET, Columns, Loss

if TYPE_CHECKING:
    from stepprobe.model.trace import Ints, Mask

SECOND_NS = 10**9
DAY_NS = 86_400 * SECOND_NS
"""A start this far from the middle of the trace, or a duration this long, is an overflow or another clock."""


class Believed(msgspec.Struct, frozen=True):
    """Rows that are used, and what was left out."""

    rows: "Mask"
    losses: tuple[Loss, ...]


def is_device(kind: "Ints") -> "Mask":
    """Tell which rows are time of the device: kernels, copies and fills; annotations are not."""
    found: Mask = (kind >= KERNEL) & (kind <= MEMSET)
    return found


def is_copy(kind: "Ints") -> "Mask":
    """Tell which rows are copies or fills."""
    found: Mask = (kind == MEMCPY) | (kind == MEMSET)
    return found


def believe(columns: Columns) -> Believed:
    """Return the rows that can be used."""
    import numpy as np

    start, duration, count = columns.start, columns.duration, len(columns.start)
    middle = int(start[count // 2]) if count else 0  # rows stand in order of their start
    checks = {
        "rows with a negative duration": duration < 0,
        "rows more than a day from the middle of the trace (another clock)": (start < middle - DAY_NS)
        | (start > middle + DAY_NS),
        "rows longer than a day (an overflow)": duration > DAY_NS,
    }
    rows, losses = np.ones(count, bool), []
    for what, broken in checks.items():
        hit = int((broken & rows).sum())
        if hit:
            losses.append(Loss(what=what, count=hit, of=count))
            rows &= ~broken
    absurd = _absurd(columns, rows)
    if len(absurd):
        rows[absurd] = False
        what = "device rows that last seconds across other rows of their stream, or beyond the end of the trace"
        losses.append(Loss(what=what, count=len(absurd), of=count))
    return Believed(rows, tuple(losses))


def _absurd(columns: Columns, rows: "Mask") -> "Ints":
    """Return device rows of more than a second that others contradict.

    A stream runs one row after the other, so a row that spans the starts of later ones is malformed; so is one that
    ends far behind everything else in the file.
    """
    import numpy as np

    device = rows & is_device(columns.kind)
    long = np.flatnonzero(device & (columns.duration > SECOND_NS))
    if not len(long):
        return long
    short = rows.copy()
    short[long] = False
    ends = columns.start[short] + columns.duration[short]
    reach = max(int(ends.max(initial=0)), int(columns.start[rows].max(initial=0)))
    first = int(columns.start[rows].min(initial=0))
    behind = columns.start[long] + columns.duration[long] > reach + max(SECOND_NS, reach - first)
    found = [
        row for row, late in zip(long.tolist(), behind.tolist(), strict=True) if late or _spans(columns, row, device)
    ]
    return np.array(found, "<i8")


def _spans(columns: Columns, row: int, device: "Mask") -> bool:
    start, end = columns.start[row], columns.start[row] + columns.duration[row]
    stream = device & (columns.thread == columns.thread[row])
    return bool(((columns.start > start) & (columns.start < end - 1000) & stream).any())
