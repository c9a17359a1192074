"""What one process of a trace amounts to: small, serialisable, and independent of all others.

A summary is made from one trace alone, so many of them can be made side by side, on one machine or on a cluster, and
compared afterwards (``ranks.py``).
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from stepprobe.analysis.trace import kernels as kernel_tables
from stepprobe.analysis.trace.causes import observe_host
from stepprobe.analysis.trace.cover import Cover
from stepprobe.analysis.trace.device import DeviceRows, devices, ledger
from stepprobe.analysis.trace.families import communicate, families
from stepprobe.analysis.trace.hosts import HostRow, host_rows
from stepprobe.analysis.trace.joining import CARRIED, NOTHING, OUTCOMES, UNEXPLAINED, Join, join
from stepprobe.analysis.trace.kernels import Group
from stepprobe.analysis.trace.ledgers import DeviceSteps
from stepprobe.analysis.trace.naive import Naive, naive_sums
from stepprobe.analysis.trace.phases import PHASES, modules, phases
from stepprobe.analysis.trace.processes import processes
from stepprobe.analysis.trace.steps import OUTSIDE, Steps, find_steps
from stepprobe.analysis.trace.validity import believe, is_copy, is_device
from stepprobe.model.trace import Columns, Loss, TraceHeader

if TYPE_CHECKING:
    from stepprobe.model.trace import Ints, Mask

COLLECTIVES_MOST = 20_000
"""Communication rows that a summary keeps one by one."""
GROUPS_MOST = 2_000
"""Labels of a table that a summary keeps; the rest are added up."""


class Collective(msgspec.Struct, frozen=True, kw_only=True):
    """One communication row."""

    name: str
    start_ns: int
    """On the clock of its own file."""
    duration_ns: int


class TraceSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One process of one trace. Times are ns."""

    file: str
    process: str
    """Process id on the host, as text."""
    rank: int | None
    world_size: int | None
    cards: tuple[str, ...]
    events: int
    rows: int
    text_bytes: int
    read_cpu_ns: int
    layout: str
    resolution_ns: float
    marked: bool
    """The trace marks steps."""
    step_names: tuple[str, ...]
    step_walls_ns: tuple[int, ...]
    devices: tuple[DeviceSteps, ...]
    """The device ledger: of each device every step."""
    window_ns: int
    """From the start of the first step to the end of the last."""
    outcomes: dict[str, tuple[int, int]]
    """What came of the join: (device rows, their sum) by outcome."""
    outside_steps: tuple[int, int]
    """(rows, sum) launched inside the recording but in no step."""
    before_launch: int
    """Device rows that start before the call that launched them: clocks that disagree."""
    kernels: int
    copies: int
    collective_rows: int
    streams: int
    busy_ns: int
    """Union of the device rows over the whole trace, summed over devices."""
    data_ns: int
    """Union of the loader's host rows inside the steps."""
    data_rows: int
    naive: Naive
    by_name: tuple[Group, ...]
    by_family: tuple[Group, ...]
    by_op: tuple[Group, ...]
    by_phase: tuple[Group, ...]
    by_module: tuple[Group, ...] | None
    host: tuple[HostRow, ...]
    collectives: tuple[Collective, ...]
    losses: tuple[Loss, ...]
    notes: tuple[str, ...]


def summarise(columns: Columns) -> list[TraceSummary]:
    """Return a summary of each process that a trace holds."""
    believed = believe(columns)
    found = []
    for process, rows in processes(columns, believed.rows):
        found.append(_summary(columns, process, rows, (*columns.header.losses, *believed.losses)))
    return found


def encode_summaries(columns: Columns) -> bytes:
    """Return the summaries of a trace as a file that stands for it."""
    return msgspec.json.encode(summarise(columns))


class _Parts(msgspec.Struct, frozen=True):
    """Everything that the parts of a summary are made from."""

    columns: Columns
    rows: "Mask"
    joined: Join
    steps: Steps
    devices: tuple[DeviceRows, ...]
    communicates: "Mask"


def _summary(columns: Columns, process: str, rows: "Mask", losses: tuple[Loss, ...]) -> TraceSummary:
    import numpy as np

    header = columns.header
    steps = find_steps(columns, rows)
    joined = join(columns, rows, rows & is_device(columns.kind))
    communicates = communicate(columns, joined.device)
    parts = _Parts(columns, rows, joined, steps, tuple(devices(columns, joined, steps, communicates)), communicates)
    copies = int(is_copy(columns.kind[joined.device]).sum())
    return TraceSummary(
        **_identity(header, process),
        marked=steps.marked,
        step_names=steps.names,
        step_walls_ns=tuple((steps.ends - steps.starts).tolist()),
        **_ledgers(parts),
        window_ns=int(steps.ends[-1] - steps.starts[0]),
        outcomes=_outcomes(columns, joined),
        outside_steps=_outside(parts),
        before_launch=_before_launch(columns, joined),
        kernels=len(joined.device) - copies,
        copies=copies,
        collective_rows=int(communicates.sum()),
        streams=len(np.unique(columns.thread[joined.device])),
        busy_ns=sum(Cover(one.starts, one.ends).total for one in parts.devices),
        naive=naive_sums(columns, joined, rows),
        **_tables(parts),
        host=host_rows(columns, joined),
        collectives=tuple(_collectives(parts)),
        losses=losses,
        notes=steps.notes,
    )


def _ledgers(parts: _Parts) -> dict[str, Any]:
    """Return what depends on the host's states; they are the largest of what is derived, and gone afterwards."""
    host, steps = observe_host(parts.columns, parts.rows), parts.steps
    return {
        "devices": tuple(ledger(one, steps, host) for one in parts.devices),
        "data_ns": int(host.data.within(steps.starts, steps.ends).sum()),
        "data_rows": host.data_rows,
    }


def _identity(header: TraceHeader, process: str) -> dict[str, Any]:
    return {
        "file": header.name,
        "process": process,
        "rank": header.rank,
        "world_size": header.world_size,
        "cards": tuple(dict.fromkeys(header.devices)),
        "events": header.events,
        "rows": header.rows,
        "text_bytes": header.text_bytes,
        "read_cpu_ns": header.read_cpu_ns,
        "layout": header.layout,
        "resolution_ns": header.resolution_ns,
    }


def _outcomes(columns: Columns, joined: Join) -> dict[str, tuple[int, int]]:
    duration = columns.duration[joined.device]
    hits = ((name, joined.outcome == outcome) for outcome, name in enumerate(OUTCOMES))
    return {name: (int(hit.sum()), int(duration[hit].sum())) for name, hit in hits}


def _outside(parts: _Parts) -> tuple[int, int]:
    rows = [
        (int(hit.sum()), int((one.ends - one.starts)[hit].sum())) for one in parts.devices for hit in [_strays(one)]
    ]
    return sum(count for count, _ in rows), sum(length for _, length in rows)


def _strays(rows: DeviceRows) -> "Mask":
    found: Mask = (rows.steps == OUTSIDE) & (rows.launches != NOTHING)
    return found


def _before_launch(columns: Columns, joined: Join) -> int:
    known = joined.launch != NOTHING
    return int((columns.start[joined.device[known]] < columns.start[joined.launch[known]]).sum())


def _tables(parts: _Parts) -> dict[str, Any]:
    """Return the kernel tables; rows of no step stand in them under a label of their own."""
    import numpy as np

    columns, joined = parts.columns, parts.joined
    names = columns.header.names
    places = [np.searchsorted(joined.device, one.at) for one in parts.devices]
    times = kernel_tables.timed(len(joined.device), places, parts.devices)
    phase, node = phases(columns, joined, parts.rows)
    named = columns.name[joined.device]
    # what has no operation stands under why that is so
    op = np.where(joined.op == NOTHING, joined.outcome.astype("<i4") + len(names), columns.name[joined.op])
    by_module = modules(columns, joined, parts.rows, phase, node)
    aside = _aside(parts, places)

    def table(codes: "Ints", labels: list[str]) -> tuple[Group, ...]:
        everything = [*labels, *_ASIDE]
        return _bounded(kernel_tables.group(np.where(aside == NOTHING, codes, len(labels) + aside), everything, times))

    return {
        "by_name": table(named, list(names)),
        "by_family": table(named, families(columns, joined.device)),
        "by_phase": table(phase, list(PHASES)),
        "by_op": _bounded(kernel_tables.group(op, [*names, *(f"({name})" for name in OUTCOMES)], times)),
        "by_module": None if by_module is None else table(*by_module),
    }


_ASIDE = ("(carried over)", "(launched outside any step)", "(no launch row)")


def _aside(parts: _Parts, places: "Sequence[Ints]") -> "Ints":
    """Return, for each device row, the place in ``_ASIDE`` of why it belongs to no step, or NOTHING."""
    import numpy as np

    stray = np.zeros(len(parts.joined.device), bool)
    for place, one in zip(places, parts.devices, strict=True):
        stray[place] = _strays(one)
    outcome = parts.joined.outcome
    return np.select([outcome == CARRIED, stray, outcome == UNEXPLAINED], [0, 1, 2], NOTHING)


def _bounded(groups: tuple[Group, ...]) -> tuple[Group, ...]:
    if len(groups) <= GROUPS_MOST:
        return groups
    rest = [msgspec.structs.replace(one, label="(further labels)") for one in groups[GROUPS_MOST:]]
    return (*groups[:GROUPS_MOST], *kernel_tables.merge([(one,) for one in rest]))


def _collectives(parts: _Parts) -> Iterator[Collective]:
    columns = parts.columns
    for row in parts.joined.device[parts.communicates][:COLLECTIVES_MOST].tolist():
        yield Collective(
            name=columns.header.names[columns.name[row]],
            start_ns=columns.header.origin_ns + int(columns.start[row]),
            duration_ns=int(columns.duration[row]),
        )
