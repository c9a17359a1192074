"""Puts gathered rows into one order, whatever order the file had, and numbers names and threads alike."""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from stepprobe.instruments.trace.events import About
from stepprobe.instruments.trace.gather import US_NS, Gatherer
from stepprobe.model.trace import ARRAYS, Columns, Loss, TraceHeader, narrowed

if TYPE_CHECKING:
    from stepprobe.model.trace import Ints

_RANK = re.compile(r"rank[_-]?(\d{1,6})", re.IGNORECASE)


def finished(gatherer: Gatherer, about: Sequence[About], losses: Sequence[Loss], **known: Any) -> Columns:  # noqa: ANN401
    """Return the columns of everything that was gathered; the gatherer is empty afterwards."""
    import numpy as np

    names, name_of = _in_order([_text(name) for name in gatherer.names])
    threads, thread_of = _in_order([(_text(process), _text(thread)) for process, thread in gatherer.threads])
    columns = {column: gatherer.columns.pop(column).values() for column in ARRAYS}
    columns["name"] = name_of[columns["name"]]
    columns["thread"] = narrowed("thread", thread_of)[columns["thread"]]
    origin = int(columns["start"].min()) if len(columns["start"]) else 0
    columns["start"] -= origin
    order = _order(columns)
    for column in () if (order[1:] > order[:-1]).all() else ARRAYS:
        columns[column] = columns[column][order]
    grid = np.gcd.reduce(columns["start"] | 0) if len(order) else 0
    header = TraceHeader(
        **known,
        events=gatherer.events,
        rows=len(order),
        skipped=dict(sorted(gatherer.skipped.items())),
        losses=tuple(losses),
        origin_ns=origin,
        unit="ns" if gatherer.scale == 1 else "µs",
        resolution_ns=float(US_NS if grid and grid % US_NS == 0 else 1),
        rank=_rank(about, str(known.get("name", ""))),
        world_size=next((one.distributed.world_size for one in about if one.distributed), None),
        devices=next((tuple(card.name for card in one.devices) for one in about if one.devices), ()),
        names=names,
        threads=threads,
    )
    return Columns(header=header, **columns)


def _text(word: object) -> str:
    return "" if word is None else str(word)


def _in_order(words: list[Any]) -> "tuple[tuple[Any, ...], Ints]":
    """Return the distinct words sorted, and the new number of each old one."""
    import numpy as np

    ordered = sorted(set(words))
    place = {word: number for number, word in enumerate(ordered)}
    return tuple(ordered), np.array([place[word] for word in words], "<i4")


def _order(columns: "dict[str, Ints]") -> "Ints":
    """Return the canonical order: by start, the longest first, then by everything else.

    Few rows share a start, so all but the first key are compared among those alone.
    """
    import numpy as np

    start = columns["start"]
    order = np.argsort(start, kind="stable")
    ordered = start[order]
    same = ordered[1:] == ordered[:-1]
    tied = np.zeros(len(start), bool)
    tied[1:] |= same
    tied[:-1] |= same
    rows = order[tied]
    keys = [columns[name][rows] for name in ("external", "sequence", "correlation", "name", "kind", "thread")]
    order[tied] = rows[np.lexsort((*keys, np.negative(columns["duration"][rows], dtype="<i8"), start[rows]))]
    return order


def _rank(about: Sequence[About], name: str) -> int | None:
    """Return the rank that the file states, else the one in its name."""
    stated = [one.distributed.rank for one in about if one.distributed and one.distributed.rank is not None]
    if stated:
        return stated[0]
    named = _RANK.search(name)
    return int(named[1]) if named else None
