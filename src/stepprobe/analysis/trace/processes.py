"""Tells apart the processes that one file may hold; each is a rank of its own."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from stepprobe.analysis.trace.steps import marks
from stepprobe.analysis.trace.validity import is_device
from stepprobe.model.trace import DEVICE_ANNOTATION, LAUNCH, Columns, narrowed

if TYPE_CHECKING:
    from stepprobe.model.trace import Ints, Mask


def processes(columns: Columns, rows: "Mask") -> Iterator[tuple[str, "Mask"]]:
    """Yield the name and the rows of each process that marks steps; where none does, of each that launches work.

    One process alone has all rows, whatever number they carry: in a container the profiler and the driver may know it
    by different ones. A stream of a device belongs to the process whose launches its rows follow.
    """
    import numpy as np

    header = columns.header
    pids = sorted({process for process, _ in header.threads})
    pid_of = narrowed("thread", np.array([pids.index(process) for process, _ in header.threads] or [0]))[columns.thread]
    hosted = rows & ~is_device(columns.kind) & (columns.kind != DEVICE_ANNOTATION)
    working = hosted & (columns.kind == LAUNCH)
    found = np.unique(pid_of[marks(columns, hosted)]).tolist() or np.unique(pid_of[working]).tolist()
    if len(found) < 2:
        yield pids[found[0]] if found else (pids[0] if pids else ""), rows
        return
    stream_of = _streams(columns, rows, pid_of, found)
    for pid in found:
        yield pids[pid], rows & np.where(hosted, pid_of == pid, stream_of[columns.thread] == pid)


def by_number(name: str) -> tuple[int, str]:
    """Sort key that puts numbers in their order, before all other names."""
    return (int(name), "") if name.isascii() and name.isdigit() else (1 << 31, name)


def _streams(columns: Columns, rows: "Mask", pid_of: "Ints", found: list[int]) -> "Ints":
    """Return the process of each thread that is a stream: most rows of its device have their launch there.

    Processes number their launches alike, so a vote can be a tie; then devices and processes are paired in order.
    """
    import numpy as np

    owners = [owner for owner, _ in columns.header.threads]
    device_of = np.array([sorted(set(owners), key=by_number).index(owner) for owner in owners])
    votes = np.zeros((int(device_of.max()) + 1, len(found)))
    device = np.flatnonzero(rows & is_device(columns.kind))
    for place, pid in enumerate(found):
        launches = np.flatnonzero(rows & (columns.kind == LAUNCH) & (pid_of == pid) & (columns.correlation > 0))
        ids, first = np.unique(columns.correlation[launches], return_index=True)
        if not len(ids):
            continue
        wanted = columns.correlation[device]
        spot = np.minimum(np.searchsorted(ids, wanted), len(ids) - 1)
        hit = (ids[spot] == wanted) & (columns.start[launches[first[spot]]] <= columns.start[device])
        np.add.at(votes[:, place], device_of[columns.thread[device[hit]]], 1)
    seen = np.unique(device_of[columns.thread[device]])
    votes[seen, np.arange(len(seen)) % len(found)] += 0.5
    winner: Ints = np.array(found)[votes.argmax(axis=1)][device_of]
    return winner
