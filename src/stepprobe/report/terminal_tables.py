"""The tables of the terminal report: the ledger with its bars, and any other table, fitted to the width."""

import textwrap
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from stepprobe.model.estimate import Estimate
from stepprobe.model.report import Report, Table
from stepprobe.report.fitting import GAP, NARROWEST_TEXT, Block, Drawn, blocks, heads, told_apart
from stepprobe.report.ledger import OFF_CPU_MARK, Line, lines, wall_ms
from stepprobe.report.numbers import column, decimals, gain, number, percent, step_wall
from stepprobe.report.text import pinched, shortened, visible

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table as RichTable
    from rich.text import Text

_EIGHTHS = ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")
_INDENT = 2
GAIN_TITLE = "would gain"
_ROOMY = 36
"""Columns from which on the ledger says what a finding is, not only where."""


def bar(part: float, cells: int) -> str:
    """Return a bar of ``part`` (0..1) of ``cells`` columns, to an eighth of a column; never empty above zero."""
    eighths = round(min(1.0, max(0.0, part)) * cells * 8)
    if part > 0 and cells > 0:
        eighths = max(eighths, 1)
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8]


def ledger(report: Report, width: int) -> Iterable["RenderableType"]:
    """Yield the ledger with its bars and the wall row; a narrow terminal drops advice, then gains, then bars."""
    from rich.padding import Padding
    from rich.text import Text

    rows, wall = lines(report), wall_ms(report)
    places = decimals(wall)
    gains = [_gain(line, step_wall(report)) for line in rows]
    gainful = width >= 66 and any(gains)
    cells, room = _widths(rows, max(map(len, gains), default=0) if gainful else 0, len(number(wall, places)), width)
    advised = room >= NARROWEST_TEXT and any(line.finding or line.where for line in rows)
    largest = max((line.share for line in rows), default=0.0) or 1.0
    drawn = _grid(width if advised else None)
    drawn.add_column("where", footer=Text("wall", "bold"), no_wrap=True, overflow="ellipsis", max_width=width - 18)
    drawn.add_column(
        "ms", footer=Text(number(wall, places), "bold"), justify="right", min_width=len(number(wall, places))
    )
    drawn.add_column("%", footer=Text(percent(1.0), "bold"), justify="right", min_width=5)
    drawn.add_column("", no_wrap=True, width=cells + 1)
    if advised:
        drawn.add_column("what to do", no_wrap=True, overflow="ellipsis", ratio=1)
    if gainful:
        drawn.add_column(GAIN_TITLE, justify="right", no_wrap=True)
    for line, gained in zip(rows, gains, strict=True):
        style = "bold" if line.finding else "dim" if line.family == "unattributed" else ""
        told = [Text(line.label, style), Text(number(line.ms, places)), Text(percent(line.share))]
        told.append(Text(bar(line.share / largest, cells), "blue"))
        told[-1].append(OFF_CPU_MARK if line.off_cpu is not None else "", "magenta")
        told += [_advice(line, room)] if advised else []
        told += [Text(gained, "green" if gained.startswith("−") else "dim")] if gainful else []
        drawn.add_row(*told)
    yield Padding(drawn, (0, 0, 0, 2))


def _widths(rows: tuple[Line, ...], gained: int, digits: int, width: int) -> tuple[int, int]:
    """Return the columns of the bars and of the advice; bars are given up before a place is cut."""
    taken = max((len(line.label) for line in rows), default=0) + digits + 5 + 2 * GAP
    taken += max(gained, len(GAIN_TITLE)) + GAP if gained else 0
    places = (_near(line.finding.where if line.finding else line.where, width) for line in rows)
    wanted = max(map(len, places), default=0) + len("[1] ")
    for cells in range(16 if width >= 100 else 5, 0, -1) if width >= 56 else ():
        room = width - 2 - taken - cells - 1 - 2 * GAP
        if room >= min(wanted, _ROOMY):
            return cells, room
    return 0, width - 2 - taken - 1 - 2 * GAP


def table(shown: Table, width: int) -> Iterable["RenderableType"]:
    """Yield one table, fitted to the width; where it cannot be, as lines to copy or as a list of records."""
    columns = [
        Drawn(
            title=visible(head.title) + (f" {head.unit}" if head.unit in ("ms", "ns", "s") else ""),
            cells=[visible(text) for text in column([row[place] for row in shown.rows], head.unit)],
            textual=_is_text(shown, place),
            code=head.code,
        )
        for place, head in enumerate(shown.columns)
    ]
    room = width - _INDENT
    fitted = blocks(columns, room) if columns else []
    if any(one.code for one in columns) and (fitted is None or len(fitted) > 1):
        yield from _to_copy(columns, room)
    elif fitted is None:
        yield from _records(columns, width)
    else:
        yield from _blocks(columns, fitted)


def _blocks(columns: Sequence[Drawn], fitted: Sequence[Block]) -> Iterable["RenderableType"]:
    from rich.padding import Padding
    from rich.text import Text

    for below, block in enumerate(fitted):
        if below:
            yield ""
        drawn = _grid(None, footer=False)
        for title, (place, _) in zip(heads(columns, block), block, strict=True):
            drawn.add_column(title, justify="left" if columns[place].textual else "right", no_wrap=True)
        told = [told_apart(columns[place].cells, room) for place, room in block]
        for cells in zip(*told, strict=True):
            drawn.add_row(*map(Text, cells))
        yield Padding(drawn, (0, 0, 0, _INDENT))


def _to_copy(columns: Sequence[Drawn], room: int) -> Iterable["RenderableType"]:
    """Yield each row as a line that names it and, below, its cells that are to be copied, however long."""
    from rich.text import Text

    names = [one for one in columns if not one.code]
    lines = [one for one in columns if one.code]
    titles = ["  " + " · ".join(one.title for one in names), *("    " + one.title for one in lines)]
    yield Text("\n".join(filter(str.strip, titles)) + "\n  " + "─" * (room // 2), "dim")
    for row in range(len(columns[0].cells)):
        said = " · ".join(cell for one in names if (cell := one.cells[row]))
        yield Text(textwrap.fill(said, room + _INDENT, initial_indent="  ", subsequent_indent="  "))
        for one in lines:
            yield Text("    " + one.cells[row], "cyan")


def _grid(width: int | None, footer: bool = True) -> "RichTable":
    from rich import box
    from rich.table import Table as RichTable

    return RichTable(
        box=box.SIMPLE,
        padding=(0, 1, 0, 0),
        show_edge=False,
        pad_edge=False,
        show_footer=footer,
        header_style="dim",
        border_style="dim",
        width=None if width is None else width - 2,
    )


def _advice(line: Line, room: int) -> "Text":
    """Say what to do about a row: its finding's number, place and title; else its hottest line."""
    from rich.text import Text

    if line.finding is None:
        return Text(f"at {_near(line.where, room - 3)}" if line.where else "", "dim")
    ordinal = f"[{line.number}] "
    told = Text().append(ordinal, "bold yellow")
    more = f" +{line.more}" if line.more else ""
    place = _near(line.finding.where, room - len(ordinal) - len(more))
    if place and room < _ROOMY:
        return told.append(place, "cyan").append(more)
    title = visible(line.finding.title or next((remedy.action for remedy in line.finding.remedies), ""))
    return told.append(f"{place} · " if place else "", "cyan").append(
        shortened(title, room - len(place) - len(ordinal) - 3 - len(more)) + more
    )


def _near(where: str, room: int) -> str:
    """Return ``file:line`` without its folders and function, pinched to ``room``; empty where it is no line."""
    place = visible(where)
    rank, comma, place = place.rpartition(", ") if place.startswith("rank ") else ("", "", place)
    line = place.partition(" ")[0].rpartition("/")[2]
    if ":" not in line:
        return ""
    place = rank + comma + line
    return pinched(place, max(room, 1) if room < _ROOMY else _ROOMY)


def _gain(line: Line, wall: Estimate | None) -> str:
    if line.finding is None or not line.finding.remedies:
        return ""
    return gain(line.gains, wall)


def _is_text(shown: Table, place: int) -> bool:
    return any(isinstance(row[place], str) for row in shown.rows) or not shown.rows


def _records(columns: Sequence[Drawn], width: int) -> Iterable["RenderableType"]:
    from rich.text import Text

    label = max((len(one.title) for one in columns), default=0)
    for row in range(len(columns[0].cells) if columns else 0):
        if row:
            yield Text("")
        for one in columns:
            text = Text("  " + one.title.ljust(label + GAP), "dim")
            yield text.append(pinched(one.cells[row], max(NARROWEST_TEXT, width - label - GAP - _INDENT)), "default")
