"""The report as GitHub-flavoured Markdown, to paste into an issue."""

import re
from collections.abc import Iterable, Iterator, Sequence

from stepprobe.model.finding import Finding
from stepprobe.model.report import Report, Table
from stepprobe.report import findings as words
from stepprobe.report.ledger import OFF_CPU_MARK, Line, lines, off_cpu, wall_ms
from stepprobe.report.numbers import NBSP, column, decimals, figure, gain, interval, number, percent, step_wall
from stepprobe.report.text import visible

_MARKUP = re.compile(r"[\\`*\[\]<|&#~$]")
_EMPHASIS = re.compile(r"(?<![^\W_])_+|_+(?![^\W_])")
"""Underscores at the edge of a word; inside one, as in ``zero_grad``, they are only underscores."""
_BLOCK = re.compile(r"^(\d*)([-+.)=>](?=[-=>\s]|$))|^>")
"""What begins a list, a quotation, a rule or an underlined heading."""
_NAME = re.compile(r"[\w./:@<> -]*[./_][\w./:@<> -]*")
"""Text of a table cell that is a path, a place or a name in code."""
_PLAIN_CODE = re.compile(r"[^`|\\<>&]+")


def render(report: Report) -> str:
    """Return the report as Markdown, ending in a line break; every foreign text is escaped or in a code span."""
    parts = (_head, _ledger, _findings, _tables, _controls, _notes, _figures, _environment, _foot)
    written = "\n".join(line for part in parts for line in part(report))
    return written.rstrip("\n").replace(NBSP, " ") + "\n"


def prose(text: str) -> str:
    """Return ``text`` as Markdown that reads as that text: no markup, no mention, one line."""
    escaped = _MARKUP.sub(lambda found: "\\" + found[0], visible(text)).strip()
    escaped = _EMPHASIS.sub(lambda found: "\\_" * len(found[0]), escaped)
    return _BLOCK.sub(_unblocked, escaped).replace("@", "@<!---->")


def _unblocked(found: re.Match[str]) -> str:
    return f"{found[1] or ''}\\{found[2] or '>'}"


def cell(text: str) -> str:
    """Return the text of a table cell: a number as it is, a path or a name as code, all else as prose."""
    if not any(character.isalpha() for character in text) or not _NAME.fullmatch(text):
        return prose(text)
    return code(text)


def code(text: str) -> str:
    """Return ``text`` as a code span, also inside a table; empty text stays empty."""
    shown = visible(text).strip()
    if not shown:
        return ""
    if _PLAIN_CODE.fullmatch(shown):
        return f"`{shown}`"
    return (
        "<code>"
        + re.sub(r"[^\w .,:;/()=+-]|(?<![^\W_])_|_(?![^\W_])", lambda found: f"&#{ord(found[0])};", shown)
        + "</code>"
    )


def _head(report: Report) -> Iterator[str]:
    yield f"### {prose(report.headline)}"
    yield ""
    yield f"stepprobe {code(report.command)} · {code(report.title)}"
    if report.verdict != "ok":
        yield ""
        yield f"verdict: **{prose(words.verdict(report))}**"
    yield ""


def _ledger(report: Report) -> Iterator[str]:
    if not report.ledger:
        return
    wall, places = wall_ms(report), decimals(wall_ms(report))
    rows = [_row(report, line, places) for line in lines(report)]
    rows.append(("**wall**", f"**{number(wall, places)}**", f"**{percent(1.0)}**", "", ""))
    yield from _grid(("where", "ms", "%", "what to do", "would gain"), (False, True, True, False, True), rows)
    if marked := off_cpu(report):
        yield f"{OFF_CPU_MARK} off the CPU for much of its time: {marked}"
        yield ""
    if shared := words.apart(report):
        yield shared
        yield ""


def _row(report: Report, line: Line, places: int) -> tuple[str, ...]:
    label = prose(line.label) + (f" {OFF_CPU_MARK}" if line.off_cpu is not None else "")
    advice, gained = f"at {code(line.where)}" if line.where else "", ""
    if line.finding is not None:
        more = f" (+{line.more})" if line.more else ""
        advice = f"{line.number}. {prose(line.finding.title)}{more}"
        if line.finding.remedies:
            gained = gain(line.gains, step_wall(report))
    return label, number(line.ms, places), percent(line.share), advice, gained


def _findings(report: Report) -> Iterator[str]:
    if report.findings:
        yield f"#### {words.order(report)}"
        yield ""
        if said := words.base(report):
            yield prose(said)
            yield ""
    for place, finding in enumerate(report.findings, 1):
        yield from _finding(report, place, finding)
        yield ""


def _finding(report: Report, place: int, finding: Finding) -> Iterator[str]:
    wall = step_wall(report)
    indent = " " * len(f"{place}. ")
    where = f" · {code(finding.where)}" if finding.where else ""
    yield f"{place}. **{prose(finding.title)}**{where}  "
    yield f"{indent}{words.cost(finding)}"
    for remedy in finding.remedies:
        measured = words.outcome(remedy, wall)
        said = [prose(remedy.action), words.prediction(finding, remedy, wall), f"**{measured}**" if measured else ""]
        yield f"{indent}- " + f"  \n{indent}  ".join(filter(None, said))
    if shared := words.overlap(finding):
        yield f"{indent}- {shared}"
    if finding.cites:
        yield f"{indent}- seen in {', '.join(map(code, finding.cites))}"


def _tables(report: Report) -> Iterator[str]:
    for table in report.tables:
        yield f"#### {prose(table.title)}"
        yield ""
        yield from _table(table)
        if table.caption:
            yield prose(table.caption)
            yield ""


def _table(table: Table) -> Iterator[str]:
    if not table.columns:
        return
    columns = [column([row[place] for row in table.rows], head.unit) for place, head in enumerate(table.columns)]
    right = [not any(isinstance(row[place], str) for row in table.rows) for place in range(len(columns))]
    titles = [prose(head.title) + (" (ms)" if head.unit == "ms" else "") for head in table.columns]
    drawn = [code if head.code else cell for head in table.columns]
    rows = (tuple(draw(text) for draw, text in zip(drawn, cells, strict=True)) for cells in zip(*columns, strict=True))
    yield from _grid(titles, right, list(rows))


def _controls(report: Report) -> Iterator[str]:
    if report.controls:
        opened = "" if all(control.ok for control in report.controls) else " open"
        yield f"<details{opened}><summary>Controls: {words.controls(report)}</summary>"
        yield ""
        for control in report.controls:
            yield f"- {'✓' if control.ok else '✗'} {prose(words.control(control))}"
        yield ""
        yield "</details>"
        yield ""


def _notes(report: Report) -> Iterator[str]:
    if report.notes:
        yield "#### Skipped, sampled or estimated"
        yield ""
        yield from (f"- {prose(note)}" for note in report.notes)
        yield ""


def _figures(report: Report) -> Iterator[str]:
    rows = [
        (code(name), figure(held), held.unit, interval(held), str(held.n), prose(held.method))
        for name, held in report.figures.items()
    ]
    yield from _details(
        "Figures", ("name", "value", "unit", "95 %", "n", "method"), (False, True, False, True, True, False), rows
    )


def _environment(report: Report) -> Iterator[str]:
    rows = [(cell(name), cell(value)) for name, value in report.environment.items()]
    yield from _details("Environment", ("name", "value"), (False, False), rows)


def _foot(report: Report) -> Iterator[str]:
    if report.run is not None:
        yield f"run folder: {code(report.run)}"


def _details(title: str, heads: Sequence[str], right: Sequence[bool], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    if rows:
        yield f"<details><summary>{title}</summary>"
        yield ""
        yield from _grid(heads, right, rows)
        yield "</details>"
        yield ""


def _grid(heads: Sequence[str], right: Sequence[bool], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield _pipes(heads)
    yield _pipes(["---:" if number_column else "---" for number_column in right])
    yield from map(_pipes, rows)
    yield ""


def _pipes(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"
