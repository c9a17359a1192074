"""Joins device rows to the host: correlation → launch row → innermost operation on the launching thread.

``External id`` is not trusted: in many traces it is another id space. It is only compared with this join.
"""

from typing import TYPE_CHECKING

import msgspec

from stepprobe.model.trace import LAUNCH, OP, Columns

if TYPE_CHECKING:
    from stepprobe.model.trace import Ints, Mask

NOTHING = -1
PLACE = "<i4"
"""Type of places among rows: a file of two thousand million rows would be hundreds of gigabytes."""
_SLICE = 1 << 16
"""Rows that are turned into Python integers at a time."""

LINKED, OUTSIDE_OP, CARRIED, UNEXPLAINED = range(4)
OUTCOMES = ("linked to an operation", "launched outside any operation", "carried over", "no launch row, unexplained")
"""What can come of a device row, in words."""


class Join(msgspec.Struct, frozen=True):
    """For each device row: who launched it."""

    device: "Ints"
    """Rows of the device, places in the columns."""
    launch: "Ints"
    """Launch row of each, or NOTHING."""
    op: "Ints"
    """Innermost operation of each, or NOTHING."""
    outcome: "Ints"
    """LINKED, OUTSIDE_OP, CARRIED or UNEXPLAINED."""
    ops: "Ints"
    """All operations, places in the columns."""
    parent: "Ints"
    """For each of ``ops`` the place *in ops* of the one that contains it, or NOTHING."""
    owner: "Ints"
    """For each device row the place *in ops* of its operation, or NOTHING."""


def join(columns: Columns, rows: "Mask", device: "Mask") -> Join:
    """Join the device rows among ``rows``."""
    import numpy as np

    at = np.flatnonzero(device).astype(PLACE)
    launch = _launches(columns, np.flatnonzero(rows & (columns.kind == LAUNCH)), at)
    ops = np.flatnonzero(rows & (columns.kind == OP)).astype(PLACE)
    parent, owner = _owners(columns, ops, launch)
    op = chosen(ops, owner)
    known = columns.correlation[at[launch != NOTHING]]
    floor = int(known.min()) if len(known) else 0
    correlation = columns.correlation[at]
    carried = (launch == NOTHING) & (correlation > 0) & (correlation < floor)
    outcome = np.select([op != NOTHING, launch != NOTHING, carried], [LINKED, OUTSIDE_OP, CARRIED], UNEXPLAINED)
    return Join(at, launch, op, outcome.astype("<i1"), ops, parent, owner)


def _launches(columns: Columns, launches: "Ints", device: "Ints") -> "Ints":
    """Return the first launch row with the correlation of each device row."""
    import numpy as np

    launches = launches[columns.correlation[launches] > 0].astype(PLACE)
    ids = columns.correlation[launches]
    order = np.argsort(ids, kind="stable")
    ids, launches = ids[order], launches[order]
    wanted = columns.correlation[device]
    if not len(ids):
        return np.full(len(device), NOTHING, PLACE)
    place = np.minimum(np.searchsorted(ids, wanted), len(ids) - 1)
    return chosen(launches, np.where(ids[place] == wanted, place, NOTHING))


def chosen(values: "Ints", places: "Ints") -> "Ints":
    """Return the values at these places; NOTHING where a place is NOTHING."""
    import numpy as np

    return np.concatenate([values, np.array([NOTHING], values.dtype)])[places]


def _owners(columns: Columns, ops: "Ints", launch: "Ints") -> "tuple[Ints, Ints]":
    """Return the parent of each operation, and the operation of each device row, as places in ``ops``."""
    import numpy as np

    launched = np.flatnonzero(launch != NOTHING)
    calls = launch[launched]
    parent, owner = np.full(len(ops), NOTHING, PLACE), np.full(len(launch), NOTHING, PLACE)
    op_thread, call_thread = columns.thread[ops], columns.thread[calls]
    for thread in np.unique(op_thread).tolist():
        mine, here = np.flatnonzero(op_thread == thread), np.flatnonzero(call_thread == thread)
        starts = columns.start[ops[mine]]
        found, holders = nest(starts, starts + columns.duration[ops[mine]], columns.start[calls[here]])
        parent[mine], owner[launched[here]] = chosen(mine, found), chosen(mine, holders)
    return parent, owner


def nest(starts: "Ints", ends: "Ints", times: "Ints") -> "tuple[Ints, Ints]":
    """Sweep one thread: return the innermost interval that contains each interval, and each time.

    Intervals are sorted by (start, longest first). One contains another if it is the last before it that still runs at
    its start, and a time up to its own end; so siblings that overlap count as nested as long as the outer one runs.
    """
    import numpy as np

    moments, count = np.concatenate([starts, times]), len(starts)
    order = np.argsort(moments, kind="stable")
    found = np.full(len(order), NOTHING, PLACE)
    running, places = [1 << 63], [NOTHING]  # a stack whose bottom never ends
    for first in range(0, len(order) if count else 0, _SLICE):
        piece = order[first : first + _SLICE]
        # in integers, what runs at a time is what ends after the one before it
        since = moments[piece] - (piece >= count)
        until = ends[np.minimum(piece, count - 1)]
        held = []
        for begin, end, place in zip(since.tolist(), until.tolist(), piece.tolist(), strict=True):
            while running[-1] <= begin:
                running.pop()
                places.pop()
            held.append(places[-1])
            if place < count:
                running.append(end)
                places.append(place)
        found[piece] = held
    return found[:count], found[count:]
