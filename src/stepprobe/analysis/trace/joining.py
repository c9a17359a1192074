"""Joins device rows to the host: correlation → launch row → innermost operation on the launching thread.

``External id`` is not trusted: in many traces it is another id space. It is only compared with this join.
"""

from typing import TYPE_CHECKING

import msgspec

from stepprobe.model.trace import LAUNCH, OP, Columns

if TYPE_CHECKING:
    from stepprobe.model.trace import Ints, Mask

NOTHING = -1
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

    at = np.flatnonzero(device)
    launch = _launches(columns, np.flatnonzero(rows & (columns.kind == LAUNCH)), at)
    ops = np.flatnonzero(rows & (columns.kind == OP))
    parent, owner = _owners(columns, ops, launch)
    op = np.where(owner == NOTHING, NOTHING, ops[owner] if len(ops) else NOTHING)
    known = columns.correlation[at[launch != NOTHING]]
    floor = int(known.min()) if len(known) else 0
    correlation = columns.correlation[at]
    carried = (launch == NOTHING) & (correlation > 0) & (correlation < floor)
    outcome = np.select([op != NOTHING, launch != NOTHING, carried], [LINKED, OUTSIDE_OP, CARRIED], UNEXPLAINED)
    return Join(at, launch, op, outcome, ops, parent, owner)


def _launches(columns: Columns, launches: "Ints", device: "Ints") -> "Ints":
    """Return the first launch row with the correlation of each device row."""
    import numpy as np

    launches = launches[columns.correlation[launches] > 0]
    ids = columns.correlation[launches]
    order = np.argsort(ids, kind="stable")
    ids, launches = ids[order], launches[order]
    wanted = columns.correlation[device]
    if not len(ids):
        return np.full(len(device), NOTHING)
    place = np.minimum(np.searchsorted(ids, wanted), len(ids) - 1)
    return np.where(ids[place] == wanted, launches[place], NOTHING)


def _owners(columns: Columns, ops: "Ints", launch: "Ints") -> "tuple[Ints, Ints]":
    """Return the parent of each operation, and the operation of each device row, as places in ``ops``."""
    import numpy as np

    parent, owner = np.full(len(ops), NOTHING), np.full(len(launch), NOTHING)
    launched = np.flatnonzero(launch != NOTHING)
    op_thread = columns.thread[ops]
    launch_thread = columns.thread[launch[launched]]
    for thread in np.unique(op_thread).tolist():
        mine = np.flatnonzero(op_thread == thread)
        calls = launched[launch_thread == thread]
        calls = calls[np.argsort(columns.start[launch[calls]], kind="stable")]
        starts = columns.start[ops[mine]]
        parent[mine], found = nest(starts, starts + columns.duration[ops[mine]], columns.start[launch[calls]])
        parent[mine] = np.where(parent[mine] == NOTHING, NOTHING, mine[parent[mine]])
        owner[calls] = np.where(found == NOTHING, NOTHING, mine[found])
    return parent, owner


def nest(starts: "Ints", ends: "Ints", times: "Ints") -> "tuple[Ints, Ints]":
    """Sweep one thread: return the innermost interval that contains each interval, and each time.

    Intervals are sorted by (start, longest first), times ascending. Siblings that overlap count as nested as long as
    the outer one still runs.
    """
    import numpy as np

    parent = np.full(len(starts), NOTHING)
    owner = np.full(len(times), NOTHING)
    stack: list[tuple[int, int]] = []  # (end, place)
    calls, n_calls = times.tolist(), len(times)
    call = 0
    for first in range(0, len(starts), _SLICE):
        found = []
        part = zip(starts[first : first + _SLICE].tolist(), ends[first : first + _SLICE].tolist(), strict=True)
        for place, (start, end) in enumerate(part, first):
            while call < n_calls and calls[call] < start:
                owner[call] = _covering(stack, calls[call])
                call += 1
            while stack and stack[-1][0] <= start:
                stack.pop()
            found.append(stack[-1][1] if stack else NOTHING)
            stack.append((end, place))
        parent[first : first + _SLICE] = found
    for last in range(call, n_calls):
        owner[last] = _covering(stack, calls[last])
    return parent, owner


def _covering(stack: list[tuple[int, int]], time: int) -> int:
    """Return the topmost interval that still runs at ``time``; what ended before is dropped."""
    while stack and stack[-1][0] < time:
        stack.pop()
    return stack[-1][1] if stack else NOTHING
