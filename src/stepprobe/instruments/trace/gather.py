"""Gathers decoded events into columns, chunk by chunk."""

from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import compress
from typing import TYPE_CHECKING, Any

from stepprobe.instruments.trace.events import LARGEST_EXACT, NO_ARGUMENTS, Event, ident, nanoseconds
from stepprobe.model.trace import ABSENT, ARRAYS, KIND_OF, narrowed

if TYPE_CHECKING:
    from stepprobe.model.trace import Ints

US_NS = 1000
EPOCH_NS = 10**17
"""A time stamp above this is in nanoseconds: in microseconds it would lie in the year 5000."""
_PHASES = {"s": "flow", "t": "flow", "f": "flow", "M": "metadata", "i": "instant", "I": "instant", "C": "counter"}


class _Interned(dict[Any, int]):
    """Gives each new key the next number."""

    def __missing__(self, key: object) -> int:
        self[key] = number = len(self)
        return number


class _Kinds(dict[Any, int]):
    """Kind of a category as it is written in the file; 0 is not kept."""

    def __missing__(self, key: object) -> int:
        self[key] = kind = KIND_OF.get(key.lower(), 0) if isinstance(key, str) else 0
        return kind


class TooCoarse(Exception):
    """Doubles cannot hold these time stamps: decode the chunk again with decimals."""


class _Column:
    """A column that grows in one piece, as wide as its values need."""

    def __init__(self, name: str) -> None:
        self._name, self._type, self._content = name, ARRAYS[name], bytearray()

    def extend(self, values: "Ints") -> None:
        """Append values."""
        import numpy as np

        wider = np.promote_types(self._type, narrowed(self._name, values).dtype).str
        if wider != self._type:
            self._content = bytearray(self.values().astype(wider).tobytes())
            self._type = wider
        self._content += values.astype(wider, copy=False).tobytes()

    def values(self) -> "Ints":
        """Return all of it; it cannot grow while somebody holds this."""
        import numpy as np

        return np.frombuffer(self._content, self._type)


class Gatherer:
    """Columns that grow, chunk by chunk."""

    def __init__(self) -> None:
        self.names, self.threads, self._kinds = _Interned(), _Interned(), _Kinds()
        self.columns = {name: _Column(name) for name in ARRAYS}
        self.skipped: Counter[str] = Counter()
        self.events = self.untimed = 0
        self.scale: int | None = None
        """ns in one unit of the file's time stamps; known after the first timed row."""

    def add(self, events: Sequence[Event], *, exact: bool) -> None:
        """Take the rows of decoded events.

        Raises:
            TooCoarse: They are not exact, and doubles lose nanoseconds here. Nothing was taken.
        """
        kind_of = self._kinds
        kinds = bytes([kind_of[event.cat] if event.ph == "X" else 0 for event in events])
        rows = events if all(kinds) else list(compress(events, kinds))
        starts = [row.ts for row in rows]
        if not exact and _loses_nanoseconds(starts):
            raise TooCoarse
        self._settle_unit(starts)
        self.events += len(events)
        if len(rows) < len(events):
            self._skip([event for event, kind in zip(events, kinds, strict=True) if not kind])
        if rows:
            self._take(rows, starts, kinds.replace(b"\0", b""))

    def _skip(self, events: list[Event]) -> None:
        phases = Counter([event.ph for event in events])
        for phase in [phase for phase in phases if phase not in _PHASES]:
            del phases[phase]
            self.skipped.update(f"{phase or '?'} {one.cat or ''}".rstrip() for one in events if one.ph == phase)
        for phase, count in phases.items():
            self.skipped[_PHASES[phase]] += count

    def _take(self, rows: Sequence[Event], starts: list[Any], kinds: bytes) -> None:
        import numpy as np

        scale = self.scale or US_NS
        start, timed = _times(starts, scale)
        duration, lasting = _times([row.dur for row in rows], scale)
        arguments = [row.args or NO_ARGUMENTS for row in rows]
        external = _ids([one.external for one in arguments])
        external_old = _ids([one.external_old for one in arguments])
        name_of, thread_of = self.names.__getitem__, self.threads.__getitem__
        threads = map(thread_of, zip([row.pid for row in rows], [row.tid for row in rows], strict=True))
        columns = {
            "start": start,
            "duration": duration,
            "correlation": _ids([one.correlation for one in arguments]),
            "external": np.where(external == ABSENT, external_old, external),
            "sequence": _ids([one.sequence for one in arguments]),
            "name": np.fromiter(map(name_of, [row.name for row in rows]), "<i4", len(rows)),
            "thread": np.fromiter(threads, "<i4", len(rows)),
            "kind": np.frombuffer(kinds, "<i1"),
        }
        usable = timed & lasting
        self.untimed += int((~usable).sum())
        for name, column in columns.items():
            self.columns[name].extend(column if usable.all() else column[usable])

    def _settle_unit(self, starts: list[Any]) -> None:
        if self.scale is None:
            found = sorted(time for time in (nanoseconds(start, 1) for start in starts[:999]) if time is not None)
            if found:
                self.scale = 1 if found[len(found) // 2] > EPOCH_NS else US_NS


def _loses_nanoseconds(starts: list[Any]) -> bool:
    plain = _plain_array(starts)
    if plain is not None:
        return bool(plain.dtype.kind == "f" and plain.max(initial=0) > LARGEST_EXACT)
    return any(type(start) is float and start > LARGEST_EXACT for start in starts)


def _times(values: list[Any], scale: int) -> "tuple[Ints, Any]":
    """Return nanoseconds and which of them are usable."""
    import numpy as np

    plain = _plain_array(values)
    if plain is not None and plain.dtype.kind == "i" and np.abs(plain).max(initial=0) < 2**62 // scale:
        return plain * scale, np.ones(len(values), bool)
    if plain is not None and plain.dtype.kind == "f" and np.abs(plain).max(initial=0) < LARGEST_EXACT:
        whole = np.floor(plain)
        return whole.astype("<i8") * scale + np.rint((plain - whole) * scale).astype("<i8"), np.ones(len(values), bool)
    return _one_by_one(values, lambda value: nanoseconds(value, scale))


def _ids(values: list[Any]) -> "Ints":
    plain = _plain_array(values)
    if plain is not None and plain.dtype.kind == "i":
        found: Ints = plain
        return found
    return _one_by_one(values, ident)[0]


def _plain_array(values: list[Any]) -> Any:  # noqa: ANN401 - of whatever type the values have
    """Return the values as an array of integers or finite doubles; None where they are anything else."""
    import numpy as np

    for code, kind in (("q", "<i8"), ("d", "<f8")):
        try:
            found = np.frombuffer(array(code, values), kind)
        except (TypeError, OverflowError):  # an array takes no other type for its own
            continue
        return found if np.isfinite(found).all() else None
    return None


def _one_by_one(values: list[Any], convert: Callable[[Any], int | None]) -> "tuple[Ints, Any]":
    import numpy as np

    found = [convert(value) for value in values]
    usable = np.array([value is not None for value in found], bool)
    return np.array([0 if value is None else value for value in found], "<i8"), usable
