"""The operations of the host by their own time: what a trace without device rows can still tell."""

import msgspec

from stepprobe.analysis.trace.joining import NOTHING, Join
from stepprobe.model.trace import Columns

ROWS_MOST = 200


class HostRow(msgspec.Struct, frozen=True, kw_only=True):
    """One operation, in ns."""

    name: str
    count: int
    own_ns: int
    """Its time without the operations inside it."""


def host_rows(columns: Columns, joined: Join) -> tuple[HostRow, ...]:
    """Return the operations with the most time of their own."""
    import numpy as np

    duration = columns.duration[joined.ops].astype("<i8")
    own = duration.copy()
    inner = joined.parent != NOTHING
    np.subtract.at(own, joined.parent[inner], duration[inner])
    own = np.maximum(own, 0)  # siblings that overlap would take time from each other
    names = columns.name[joined.ops]
    total = np.zeros(len(columns.header.names), "<i8")
    np.add.at(total, names, own)
    count = np.bincount(names, minlength=len(total))
    found = [
        HostRow(name=columns.header.names[name], count=int(count[name]), own_ns=int(total[name]))
        for name in np.flatnonzero(count).tolist()
    ]
    return tuple(sorted(found, key=lambda row: (-row.own_ns, row.name))[:ROWS_MOST])
