"""The steps of a trace, as the host marked them."""

from typing import TYPE_CHECKING

import msgspec

from stepprobe.analysis.trace.names import named
from stepprobe.model.trace import ANNOTATION, DEVICE_ANNOTATION, OP, Columns

if TYPE_CHECKING:
    from stepprobe.model.trace import Ints, Mask

MARK = "ProfilerStep"
OUTSIDE = -1


class Steps(msgspec.Struct, frozen=True):
    """Windows on the host's clock that do not overlap, ns after the trace's origin."""

    names: tuple[str, ...]
    starts: "Ints"
    ends: "Ints"
    marked: bool
    """False: the trace marks no step, and the one window is all of it."""
    notes: tuple[str, ...]

    def at(self, times: "Ints") -> "Ints":
        """Return the step in which each time lies, or OUTSIDE."""
        import numpy as np

        place = np.searchsorted(self.starts, times, "right") - 1
        return np.where((place >= 0) & (times < self.ends[np.maximum(place, 0)]), place, OUTSIDE)


def marks(columns: Columns, rows: "Mask") -> "Mask":
    """Return those of the rows with which the host marked a step."""
    host = rows & ((columns.kind == ANNOTATION) | (columns.kind == OP))
    return named(columns, host, lambda name: name.startswith(MARK))


def find_steps(columns: Columns, rows: "Mask") -> Steps:
    """Return the marked steps in order, or the whole trace where none is marked."""
    import numpy as np

    found = np.flatnonzero(marks(columns, rows & (columns.duration > 0)))
    starts, ends = columns.start[found], columns.start[found] + columns.duration[found]
    keep, reach = [], None
    for place, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        if reach is None or start >= reach:
            keep.append(place)
            reach = end
    if not keep:
        return _whole(columns, rows)
    notes = []
    if len(keep) < len(found):
        notes.append(f"{len(found) - len(keep)} of {len(found)} step marks lie inside another one: left out")
    names = tuple(columns.header.names[columns.name[found[place]]] for place in keep)
    return Steps(names, starts[keep], ends[keep], True, tuple(notes))


def _whole(columns: Columns, rows: "Mask") -> Steps:
    import numpy as np

    kept = rows & (columns.kind != DEVICE_ANNOTATION)
    start = int(columns.start[kept].min(initial=2**62)) if kept.any() else 0
    end = int((columns.start[kept] + columns.duration[kept]).max(initial=0)) if kept.any() else 0
    note = f"no {MARK} row marks a step: the whole trace counts as one (call profiler.step() after each step)"
    return Steps(("whole trace",), np.array([start]), np.array([max(end, start)]), False, (note,))
