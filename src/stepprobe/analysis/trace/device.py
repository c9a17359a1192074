"""The device ledger: unions of what the device did, and why it stood still, inside each step of the host."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from stepprobe.analysis.trace.causes import Host, queued
from stepprobe.analysis.trace.cover import Cover, empty, union
from stepprobe.analysis.trace.joining import CARRIED, NOTHING, Join
from stepprobe.analysis.trace.processes import by_number
from stepprobe.analysis.trace.steps import OUTSIDE, Steps
from stepprobe.analysis.trace.validity import is_copy
from stepprobe.errors import LedgerError
from stepprobe.model.device import BUSY, DEVICE_ACCOUNTS
from stepprobe.model.trace import Columns

if TYPE_CHECKING:
    from stepprobe.model.trace import Ints, Mask


class DeviceStep(msgspec.Struct, frozen=True, kw_only=True):
    """One step on one device, in ns.

    Raises:
        LedgerError: Its accounts do not sum to its wall time.
    """

    step: str
    device: str
    wall_ns: int
    accounts_ns: dict[str, int]
    launched_ns: int
    """Union of the rows that this step launched, whenever they ran."""
    communication_ns: int
    """Union of communication in the step."""
    hidden_ns: int
    """Part of it that compute runs beside."""
    head_ns: int
    """From the step's start to the first row in it."""
    tail_ns: int
    """From the last row that the step launched to the step's end; negative: the device ran on after it."""

    def __post_init__(self) -> None:
        wrong = self.wall_ns - sum(self.accounts_ns.values())
        if wrong or min(self.accounts_ns.values(), default=0) < 0:
            raise LedgerError(f"{self.step} on device {self.device} does not close: {wrong} ns of {self.wall_ns} ns")


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
    step = np.where(joined.launch == NOTHING, OUTSIDE, steps.at(launched))
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


def ledgers(rows: DeviceRows, steps: Steps, host: Host) -> list[DeviceStep]:
    """Return the ledger of each step on one device."""
    starts, ends = steps.starts, steps.ends
    held = layers(rows, host)
    accounts, reached = {}, empty()
    for account, cover in held:
        wider = reached | cover
        accounts[account] = wider.within(starts, ends) - reached.within(starts, ends)
        reached = wider
    accounts["idle.python"] = ends - starts - reached.within(starts, ends)
    communicated = held[1][1].within(starts, ends)
    hidden = communicated - accounts["communication"]
    head = _head(union(cover for _, cover in held[: len(BUSY)]), starts, ends)
    launched, last = (column.tolist() for column in _launched(rows, len(starts)))
    begins, reaches = starts.tolist(), ends.tolist()
    booked = list(zip(*(accounts[account].tolist() for account in DEVICE_ACCOUNTS), strict=True))
    talked, beside, before = communicated.tolist(), hidden.tolist(), head.tolist()
    found = []
    for step in range(len(starts)):
        found.append(
            DeviceStep(
                step=steps.names[step],
                device=rows.name,
                wall_ns=reaches[step] - begins[step],
                accounts_ns=dict(zip(DEVICE_ACCOUNTS, booked[step], strict=True)),
                launched_ns=launched[step],
                communication_ns=talked[step],
                hidden_ns=beside[step],
                head_ns=before[step],
                tail_ns=reaches[step] - (last[step] if launched[step] else begins[step]),
            )
        )
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
