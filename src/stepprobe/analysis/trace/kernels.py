"""Kernel tables that count each microsecond once: device rows only, by name, family, operation, module and phase."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from stepprobe.analysis.trace.cover import Cover, empty
from stepprobe.analysis.trace.device import DeviceRows
from stepprobe.analysis.trace.joining import NOTHING
from stepprobe.model.device import BUSY

if TYPE_CHECKING:
    from stepprobe.model.trace import Ints, Mask


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """Device rows under one label, in ns; two groups of one label merge by adding."""

    label: str
    count: int
    total_ns: int
    """Sum of the rows."""
    exclusive_ns: int
    """Part of the union that is counted here: nowhere twice."""
    late: int
    """Rows for which the device stood still because their launch came late."""
    waited_ns: int
    """How long it stood still for them."""


class Timed(msgspec.Struct, frozen=True):
    """For each device row of a join, in ns."""

    total: "Ints"
    exclusive: "Ints"
    waited: "Ints"


def timed(count: int, places: "Sequence[Ints]", devices: Sequence[DeviceRows]) -> Timed:
    """Return the times of all device rows.

    Args:
        count: Device rows of the join.
        places: For each device where its rows stand among those of the join.
        devices: The devices.
    """
    import numpy as np

    found = Timed(np.zeros(count, "<i8"), np.zeros(count, "<i8"), np.zeros(count, "<i8"))
    for place, rows in zip(places, devices, strict=True):
        found.total[place] = rows.ends - rows.starts
        found.exclusive[place] = exclusive(rows)
        found.waited[place] = waited(rows)
    return found


def exclusive(rows: DeviceRows) -> "Ints":
    """Return the part of each row that no row before it covers; their sum is the union of all rows.

    Rows of an earlier account of ``BUSY`` come first, then those that started earlier.
    """
    import numpy as np

    found = np.zeros(len(rows.starts), "<i8")
    before = empty()
    for account in BUSY:
        mine = np.flatnonzero(rows.kinds[account])
        mine = mine[np.argsort(rows.starts[mine], kind="stable")]
        starts, ends = rows.starts[mine], rows.ends[mine]
        if len(mine) > 1:
            starts = starts.copy()
            starts[1:] = np.maximum(starts[1:], np.maximum.accumulate(ends)[:-1])
        bare = np.maximum(ends - starts, 0)
        found[mine] = bare - before.within(starts, starts + bare)
        before = before | rows.cover(account)
    return found


def waited(rows: DeviceRows) -> "Ints":
    """Return, for each row that ended a gap, how long of it passed before the row was launched."""
    import numpy as np

    found = np.zeros(len(rows.starts), "<i8")
    gaps = Cover(rows.starts, rows.ends).gaps()
    order = np.argsort(rows.starts, kind="stable")
    first = order[np.searchsorted(rows.starts[order], gaps.ends, "left")]
    launches = rows.launches[first]
    late = np.where(launches == NOTHING, 0, np.minimum(launches, gaps.ends) - gaps.starts)
    found[first] = np.maximum(late, 0)
    return found


def group(codes: "Ints", labels: Sequence[str], times: Timed) -> tuple[Group, ...]:
    """Sum the rows of each label, dearest first.

    Args:
        codes: Place in ``labels`` of each device row.
        labels: The labels; several places may hold the same one.
        times: Times of each device row.
    """
    import numpy as np

    if not len(codes):
        return ()
    used = np.flatnonzero(np.bincount(codes)).tolist()
    distinct = sorted({labels[code] for code in used})
    number = {label: place for place, label in enumerate(distinct)}
    table = np.zeros(used[-1] + 1, np.min_scalar_type(len(distinct)))  # narrow numbers are sorted fastest
    table[used] = [number[labels[code]] for code in used]
    place = table[codes]
    order = np.argsort(place, kind="stable")
    count = np.bincount(place)
    first = np.cumsum(count) - count

    def summed(values: "Ints | Mask") -> list[int]:
        return [int(value) for value in np.add.reduceat(values[order], first, dtype="<i8")]

    sums = (summed(times.total), summed(times.exclusive), summed(times.waited > 0), summed(times.waited))
    groups = (
        Group(label=label, count=rows, total_ns=total, exclusive_ns=own, late=late, waited_ns=waited)
        for label, rows, total, own, late, waited in zip(distinct, count.tolist(), *sums, strict=True)
    )
    return tuple(sorted(groups, key=lambda one: (-one.total_ns, one.label)))


def merge(tables: Sequence[tuple[Group, ...]]) -> tuple[Group, ...]:
    """Add tables label by label, dearest first."""
    found: dict[str, Group] = {}
    for one in (group for table in tables for group in table):
        other = found.get(one.label)
        found[one.label] = one if other is None else _added(one, other)
    return tuple(sorted(found.values(), key=lambda one: (-one.total_ns, one.label)))


def _added(one: Group, other: Group) -> Group:
    return Group(
        label=one.label,
        count=one.count + other.count,
        total_ns=one.total_ns + other.total_ns,
        exclusive_ns=one.exclusive_ns + other.exclusive_ns,
        late=one.late + other.late,
        waited_ns=one.waited_ns + other.waited_ns,
    )
