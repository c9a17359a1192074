"""How a table is fitted to the width: titles wrap, then text wraps, then columns stand in blocks below each other."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from stepprobe.report.text import is_place, pinched, shortened

GAP = 2
"""Blanks between columns."""
NARROWEST_TEXT = 12
"""A text column is never narrower than this, or than its widest cell."""
WORD_MOST = 32
"""A text column that cannot be wrapped whole at this many characters may be narrowed to them, and its cells cut."""
LINES_MOST = 3
"""Lines over which a cell is wrapped; a longer one is cut in its middle."""
BLOCKS_MOST = 3
"""Blocks of columns; a table that wants more is drawn as a list of records."""


@dataclass(frozen=True)
class Drawn:
    """One column as text."""

    title: str
    cells: Sequence[str]
    textual: bool
    code: bool = False
    """Its cells are to be copied: they are never wrapped nor cut."""

    @property
    def width(self) -> int:
        """Characters of the widest cell or of the title."""
        return max(map(len, [self.title, *self.cells]))

    @property
    def narrowest(self) -> int:
        """Characters below which the column is not drawn; its title may be wrapped."""
        title = max(map(len, self.title.split()), default=0)
        widest = max(map(len, self.cells), default=0)
        if not self.textual or self.code:
            return max(title, widest)
        return max(title, min(widest, max(map(_least, self.cells), default=0)))


def _least(cell: str) -> int:
    """Return the characters from which on a cell can be wrapped, at most ``WORD_MOST``."""
    if len(cell) <= NARROWEST_TEXT:
        return len(cell)
    wide = range(NARROWEST_TEXT, WORD_MOST)
    return next((room for room in wide if _lines(cell, room)), WORD_MOST)


def _lines(text: str, room: int) -> list[str]:
    """Return a text over a few whole lines; none where it wants more, or holds a longer word."""
    lines = textwrap.wrap(text, room, break_long_words=False, break_on_hyphens=False)
    return lines if len(lines) <= LINES_MOST and max(map(len, lines), default=0) <= room else []


Block = tuple[tuple[int, int], ...]
"""Columns that stand side by side, each as (place, width)."""


def blocks(columns: Sequence[Drawn], room: int) -> list[Block] | None:
    """Return the columns in blocks that fit ``room``, the first column in each; None where they do not fit in few.

    Args:
        columns: The table.
        room: Characters of a line.
    """
    if whole := _fit(columns, tuple(range(len(columns))), room):
        return [whole]
    found: list[Block] = []
    taken: tuple[int, ...] = (0,)
    for place in range(1, len(columns)):
        if len(taken) > 1 and _fit(columns, (*taken, place), room) is None:
            taken = (0,)
        fitted = _fit(columns, (*taken, place), room)
        if fitted is None:
            return None
        found = [*found[: len(found) - (len(taken) > 1)], fitted]
        taken = (*taken, place)
    return found if 0 < len(found) <= BLOCKS_MOST else None


def _fit(columns: Sequence[Drawn], places: tuple[int, ...], room: int) -> Block | None:
    """Return columns side by side: titles of numbers are wrapped before text is narrowed; None where nothing helps."""
    widths = {place: columns[place].width for place in places}
    most = room - GAP * (len(places) - 1)
    for textual in (False, True):
        while sum(widths.values()) > most:
            slack = [one for one in places if columns[one].textual is textual and widths[one] > columns[one].narrowest]
            if not slack:
                break
            widths[max(slack, key=lambda one: widths[one])] -= 1
    return tuple(widths.items()) if sum(widths.values()) <= most else None


def wrapped(text: str, room: int) -> str:
    """Return a cell over a few lines; a place, and what does not fit, is cut in its middle to ``room`` characters."""
    if len(text) <= room:
        return text
    return "\n".join([] if is_place(text) else _lines(text, room)) or pinched(text, room)


def told_apart(cells: Sequence[str], room: int) -> list[str]:
    """Return the cells of a column, each wrapped or cut to ``room``: different texts stay different.

    Those that would read the same are cut again, so that what they differ in is kept; if that is of no use, numbered.
    """
    drawn = [wrapped(cell, room) for cell in cells]
    for same in {text for text in drawn if text not in cells}:
        alike = list(dict.fromkeys(cell for cell, text in zip(cells, drawn, strict=True) if text == same))
        if len(alike) == 1:
            continue
        ends = zip(min(alike), max(alike), strict=False)
        common = next((place for place, (one, other) in enumerate(ends) if one != other), len(min(alike)))
        head = room // 3
        cut = {cell: f"{cell[:head]}…{shortened(cell[max(head, common - 2) :], room - head - 1)}" for cell in alike}
        if len({*cut.values()}) < len(alike):
            cut = {cell: pinched(cell, room - 4) + f" ({number})" for number, cell in enumerate(alike, 1)}
        drawn = [cut[cell] if text == same else text for cell, text in zip(cells, drawn, strict=True)]
    return drawn


def heads(columns: Sequence[Drawn], block: Block) -> list[str]:
    """Return the titles of a block, wrapped, all of one height and standing on the line below."""
    parted = [textwrap.wrap(columns[place].title, width) or [""] for place, width in block]
    height = max(map(len, parted), default=1)
    return ["\n".join([*[""] * (height - len(lines)), *lines]) for lines in parted]
