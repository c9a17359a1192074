"""Why a device stood still: what its host was doing meanwhile, and whether work was already queued."""

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from stepprobe.analysis.trace.cover import Cover
from stepprobe.analysis.trace.joining import NOTHING
from stepprobe.analysis.trace.names import named
from stepprobe.analysis.trace.steps import MARK
from stepprobe.model.trace import ANNOTATION, LAUNCH, OP, Columns

if TYPE_CHECKING:
    from stepprobe.model.trace import Ints, Mask

_DATA = re.compile(r"DataLoader|dataloader")
"""Host rows with these words wait for, or make, the next batch."""
_SYNCS = re.compile(r"Synchronize|aten::(item|_local_scalar_dense|is_nonzero)")
"""Runtime calls and operations in which the host waits for the device."""
BLOCKING = ("cudaMemcpy", "hipMemcpy", "hipMemcpyWithStream", "cuMemcpyDtoH", "cuMemcpyHtoD")
"""Copies that return when they are done."""


class Host(msgspec.Struct, frozen=True):
    """What the threads of the host were doing, as unions."""

    data: Cover
    sync: Cover
    busy: Cover
    """Inside an operation or a runtime call."""
    data_rows: int
    """Host rows that ``data`` is the union of."""

    def states(self) -> Iterator[tuple[str, Cover]]:
        """Yield the idle accounts that a host state explains, the first that applies first; the rest is Python."""
        yield "idle.data", self.data
        yield "idle.sync", self.sync
        yield "idle.launch", self.busy


def observe_host(columns: Columns, rows: "Mask") -> Host:
    """Return the states of the host."""
    op = rows & (columns.kind == OP)
    op &= ~named(columns, op, lambda name: MARK in name)
    busy = op | rows & (columns.kind == LAUNCH)
    loading = named(columns, op | rows & (columns.kind == ANNOTATION), _DATA.search)
    return Host(
        data=_cover(columns, loading),
        sync=_cover(columns, named(columns, busy, lambda name: name in BLOCKING or _SYNCS.search(name))),
        busy=_cover(columns, busy),
        data_rows=int(loading.sum()),
    )


def queued(starts: "Ints", launches: "Ints", busy: Cover) -> Cover:
    """Return when the device stood still although its next row had been launched.

    In each gap the next row is the one that ends it. From its launch on, the host is no longer the cause: the device
    waits for another stream or rank, or takes its time to start. A row without a launch was queued all along; of rows
    that start together, the one that was launched first counts.
    """
    import numpy as np

    if not len(starts):
        return busy
    order = np.lexsort((launches, starts))
    starts, launches = starts[order], launches[order]
    gap_ends = busy.starts
    gap_starts = np.concatenate([[np.iinfo("<i8").min // 4], busy.ends[:-1]])
    first = np.searchsorted(starts, gap_ends, "left")
    launched = launches[np.minimum(first, len(starts) - 1)]
    since = np.where(launched == NOTHING, gap_starts, np.clip(launched, gap_starts, gap_ends))
    return Cover(since, gap_ends)


def _cover(columns: Columns, rows: "Mask") -> Cover:
    starts = columns.start[rows]
    return Cover(starts, starts + columns.duration[rows])
