"""The part of a trace event that is kept, as typed structures: everything else is skipped by the decoder."""

import math
from decimal import Decimal

import msgspec

from stepprobe.model.trace import ABSENT

Number = int | float | str | None
Word = str | int | float | None

LARGEST_EXACT = 2.0**43
"""µs below which a double holds a time stamp to the nanosecond; larger ones are decoded as decimals."""
MOST_NS = 2**62
"""Times beyond this do not fit the columns."""


class Arguments(msgspec.Struct, gc=False):
    """``args`` of an event."""

    correlation: Number = ABSENT
    external: Number = msgspec.field(default=ABSENT, name="External id")
    external_old: Number = msgspec.field(default=ABSENT, name="external id")
    sequence: Number = msgspec.field(default=ABSENT, name="Sequence number")


NO_ARGUMENTS = Arguments()


class Event(msgspec.Struct, gc=False):
    """An event whose time stamps are integers or small enough for doubles."""

    ph: str = ""
    cat: str | None = None
    name: Word = ""
    pid: Word = ""
    tid: Word = ""
    ts: Number = None
    dur: Number = None
    args: Arguments | None = None


class ExactEvent(Event, gc=False):
    """The same with decimal time stamps: slower, and exact whatever their size."""

    ts: Decimal | None = None  # type: ignore[assignment]
    dur: Decimal | None = None  # type: ignore[assignment]


class Distributed(msgspec.Struct, gc=False):
    """``distributedInfo``."""

    rank: int | None = None
    world_size: int | None = None


class Device(msgspec.Struct, gc=False):
    """One of ``deviceProperties``."""

    name: str = ""


class About(msgspec.Struct, gc=False):
    """The keys of a trace beside its events, on either side of them."""

    distributed: Distributed | None = msgspec.field(default=None, name="distributedInfo")
    devices: list[Device] | None = msgspec.field(default=None, name="deviceProperties")


class Whole(About, gc=False, kw_only=True):
    """A trace file, or the rest of one from its first undecoded event on."""

    events: list[Event] = msgspec.field(name="traceEvents")


class ExactWhole(About, gc=False, kw_only=True):
    """The same with decimal time stamps."""

    events: list[ExactEvent] = msgspec.field(name="traceEvents")


def lenient(item: object) -> Event | None:
    """Return an event from any JSON value; None where it is no event at all."""
    if not isinstance(item, dict):
        return None
    arguments = item.get("args")
    found = arguments if isinstance(arguments, dict) else {}
    return Event(
        ph=_text(item.get("ph")),
        cat=_text(item.get("cat")),
        name=_text(item.get("name")),
        pid=_text(item.get("pid")),
        tid=_text(item.get("tid")),
        ts=_number(item.get("ts")),
        dur=_number(item.get("dur")),
        args=Arguments(
            correlation=_number(found.get("correlation")),
            external=_number(found.get("External id")),
            external_old=_number(found.get("external id")),
            sequence=_number(found.get("Sequence number")),
        ),
    )


def _text(value: object) -> str:
    return value if isinstance(value, str) else "" if value is None else str(value)


def _number(value: object) -> Number:
    return value if isinstance(value, int | float | str) and not isinstance(value, bool) else None


def ident(value: Number) -> int:
    """Return an id as an integer that fits the columns, else ABSENT."""
    if type(value) is not int:
        try:
            value = int(str(value))
        except ValueError:
            return ABSENT
    return value if 0 <= value < MOST_NS else ABSENT


def nanoseconds(value: Number | Decimal, scale: int) -> int | None:
    """Return a time given in units of ``scale`` ns, to the nearest nanosecond; None where it is none."""
    if isinstance(value, str):
        try:
            value = Decimal(value.strip())
        except ArithmeticError:
            return None
    if value is None or not math.isfinite(value):
        return None
    if isinstance(value, float):
        whole = math.floor(value)
        found = whole * scale + round((value - whole) * scale)
    else:
        found = round(value * scale)
    return found if -MOST_NS < found < MOST_NS else None
