"""The device ledger: unions of what the device did, and why it stood still, inside each step of the host."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from stepprobe.analysis.trace.causes import Host, queued
from stepprobe.analysis.trace.cover import Cover, empty, union
from stepprobe.analysis.trace.joining import CARRIED, NOTHING, Join
from stepprobe.analysis.trace.ledgers import DeviceSteps, booked, together
from stepprobe.analysis.trace.processes import by_number
from stepprobe.analysis.trace.steps import OUTSIDE, Steps
from stepprobe.analysis.trace.validity import is_copy
from stepprobe.model.device import BUSY
from stepprobe.model.trace import Columns

if TYPE_CHECKING:
    from stepprobe.model.trace import Ints, Mask


STEPS_AT_ONCE = 1 << 14
"""Steps that are booked at a time, so that unions of everything need not be held at once."""


class DeviceRows(msgspec.Struct, frozen=True):
    """The rows of one device and their step; arrays run alike."""

    name: str
    at: "Ints"
    """Places in the columns."""
    starts: "Ints"
    ends: "Ints"
    launches: "Ints"
    """Start of the launch call; NOTHING where there is none."""
    steps: "Ints"
    """Step that launched it, or OUTSIDE."""
    kinds: "dict[str, Mask]"
    """For each account of ``BUSY``: which rows it holds."""

    def cover(self, account: str) -> Cover:
        """Return the union of the rows of one account."""
        rows = self.kinds[account]
        return Cover(self.starts[rows], self.ends[rows])


def devices(columns: Columns, joined: Join, steps: Steps, communicates: "Mask") -> Iterator[DeviceRows]:
    """Yield the rows of each device.

    Args:
        columns: The trace.
        joined: Its device rows and who launched them.
        steps: Its steps.
        communicates: For each device row whether it is communication.
    """
    import numpy as np

    label = [thread[0] for thread in columns.header.threads]
    numbers = {name: number for number, name in enumerate(sorted(set(label), key=by_number))}
    device_of = np.array([numbers[name] for name in label], "<i4")[columns.thread[joined.device]]
    launched = np.where(joined.launch == NOTHING, NOTHING, columns.start[joined.launch])
    step = np.where(joined.launch == NOTHING, OUTSIDE, steps.at(launched)).astype("<i4")
    carried = joined.outcome == CARRIED
    copies = is_copy(columns.kind[joined.device])
    kinds = {
        "compute": ~copies & ~communicates & ~carried,
        "communication": communicates & ~carried,
        "copy": copies & ~carried,
        "carried_over": carried,
    }
    for name, number in numbers.items():
        mine = np.flatnonzero(device_of == number)
        if len(mine):
            at = joined.device[mine]
            starts = columns.start[at]
            parts = {account: rows[mine] for account, rows in kinds.items()}
            yield DeviceRows(name, at, starts, starts + columns.duration[at], launched[mine], step[mine], parts)


def layers(rows: DeviceRows, host: Host) -> list[tuple[str, Cover]]:
    """Return what may hold an instant, by account: the first that does, has it; what none holds is ``idle.python``."""
    covers = [(account, rows.cover(account)) for account in BUSY]
    busy = union(cover for _, cover in covers)
    return [*covers, ("idle.queued", queued(rows.starts, rows.launches, busy)), *host.states()]


def ledger(rows: DeviceRows, steps: Steps, host: Host) -> DeviceSteps:
    """Return the ledger of every step on one device."""
    return together(_pieces(rows, steps, host), rows.name)


def _pieces(rows: DeviceRows, steps: Steps, host: Host) -> Iterator[DeviceSteps]:
    """Yield the ledger of some steps after the other."""
    import numpy as np

    launched, last = _launched(rows, len(steps.starts))
    tail = steps.ends - np.where(launched > 0, last, steps.starts)
    held = layers(rows, host)
    for first in range(0, len(steps.starts), STEPS_AT_ONCE):
        piece = slice(first, first + STEPS_AT_ONCE)
        found = _booked(held, steps.starts[piece], steps.ends[piece])
        yield booked(rows.name, found | {"launched": launched[piece], "tail": tail[piece]})


def _booked(held: list[tuple[str, Cover]], starts: "Ints", ends: "Ints") -> "dict[str, Ints]":
    """Book the time of some steps: what an account holds is how much wider the union gets with it."""
    near = [(account, cover.between(int(starts[0]), int(ends[-1]))) for account, cover in held]
    found: dict[str, Ints] = {"wall": ends - starts}
    rest, reached = found["wall"], empty()
    for account, cover in near:
        reached = reached | cover
        left = found["wall"] - reached.within(starts, ends)
        found[account], rest = rest - left, left
    found["idle.python"] = rest
    found["communicated"] = near[1][1].within(starts, ends)
    found["hidden"] = found["communicated"] - found["communication"]
    found["head"] = _head(union(cover for _, cover in near[: len(BUSY)]), starts, ends)
    return found


def _head(busy: Cover, starts: "Ints", ends: "Ints") -> "Ints":
    import numpy as np

    if not len(busy.starts):
        return ends - starts
    following = np.minimum(np.searchsorted(busy.ends, starts, "right"), len(busy.starts) - 1)
    first = np.where(busy.ends[following] > starts, busy.starts[following], ends)
    return np.clip(first, starts, ends) - starts


def _launched(rows: DeviceRows, count: int) -> "tuple[Ints, Ints]":
    """Return, for each step, the union of what it launched, and when the last of it ended.

    Each step's rows are moved onto a stretch of their own, so that one union serves all steps.
    """
    import numpy as np

    mine = rows.steps != OUTSIDE
    step, starts, ends = rows.steps[mine].astype("<i8"), rows.starts[mine], rows.ends[mine]
    last = np.zeros(count, "<i8")
    np.maximum.at(last, step, ends)
    first, reach = int(starts.min(initial=0)), int(ends.max(initial=0))
    width = reach - first + 1
    if count * width >= 2**62:  # more time than integers hold side by side
        each = [Cover(starts[step == number], ends[step == number]).total for number in range(count)]
        return np.array(each, "<i8"), last
    shift = step * width - first
    places = np.arange(count, dtype="<i8") * width
    return Cover(starts + shift, ends + shift).within(places, places + width), last
