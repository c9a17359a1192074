"""Unions of intervals, exact in integers: the only way in which this package adds up times that may overlap."""

from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

    from stepprobe.model.trace import Ints


class Cover:
    """The union of half-open intervals, as sorted disjoint ones."""

    def __init__(self, starts: "Ints", ends: "Ints") -> None:
        """Take intervals in any order; empty ones cover nothing."""
        import numpy as np

        keep = ends > starts
        if not keep.all():
            starts, ends = starts[keep], ends[keep]
        if len(starts) > 1:
            if (starts[1:] < starts[:-1]).any():
                order = np.argsort(starts, kind="stable")
                starts, ends = starts[order], ends[order]
            reach = np.maximum.accumulate(ends)
            first = np.ones(len(starts), bool)
            first[1:] = starts[1:] > reach[:-1]
            last = np.append(first[1:], True)
            starts, ends = starts[first], reach[last]
        self.starts, self.ends = starts, ends

    @cached_property
    def _before(self) -> "Ints":
        """Length of the union before each of its intervals; most unions are never asked for it."""
        import numpy as np

        lengths = self.ends - self.starts
        before: Ints = np.cumsum(lengths) - lengths
        return before

    @property
    def total(self) -> int:
        """Length of the union."""
        return int((self.ends - self.starts).sum())

    def until(self, times: "Ints") -> "Ints":
        """Return the length of the union before each time."""
        import numpy as np

        if not len(self.starts):
            return np.zeros(len(times), "<i8")
        place = np.searchsorted(self.starts, times, "right") - 1
        inside = np.maximum(place, 0)
        found = self._before[inside] + np.minimum(times, self.ends[inside]) - self.starts[inside]
        return np.where(place < 0, 0, found)

    def within(self, starts: "Ints", ends: "Ints") -> "Ints":
        """Return the length of the union inside each interval [start, end)."""
        return self.until(ends) - self.until(starts)

    def holds(self, times: "Ints") -> "np.ndarray[tuple[int], np.dtype[np.bool_]]":
        """Tell which times lie inside the union."""
        import numpy as np

        if not len(self.starts):
            return np.zeros(len(times), bool)
        place = np.searchsorted(self.starts, times, "right") - 1
        return (place >= 0) & (times < self.ends[np.maximum(place, 0)])

    def gaps(self) -> "Cover":
        """Return what lies between the first start and the last end and is not covered."""
        return Cover(self.ends[:-1], self.starts[1:])

    def between(self, start: int, end: int) -> "Cover":
        """Return the intervals of the union that reach into [start, end), whole."""
        import numpy as np

        first, last = np.searchsorted(self.ends, start, "right"), np.searchsorted(self.starts, end, "left")
        return Cover(self.starts[first:last], self.ends[first:last])

    def __or__(self, other: "Cover") -> "Cover":
        return union([self, other])


def empty() -> Cover:
    """Return the union of nothing."""
    import numpy as np

    nothing = np.empty(0, "<i8")
    return Cover(nothing, nothing)


def union(covers: Iterable[Cover]) -> Cover:
    """Return the union of several."""
    import numpy as np

    found = [cover for cover in covers if len(cover.starts)]
    if len(found) < 2:
        return found[0] if found else empty()
    return Cover(np.concatenate([one.starts for one in found]), np.concatenate([one.ends for one in found]))
