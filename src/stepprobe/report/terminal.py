"""The report in a terminal: plain text that keeps its columns at any width, coloured on request."""

import textwrap
from collections.abc import Iterable
from io import StringIO
from typing import TYPE_CHECKING

from stepprobe.model.finding import Finding
from stepprobe.model.report import Report, Verdict
from stepprobe.report import findings as words
from stepprobe.report.ledger import OFF_CPU_MARK, off_cpu
from stepprobe.report.numbers import NBSP, spans_zero, step_wall
from stepprobe.report.terminal_tables import ledger, table
from stepprobe.report.text import visible

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

MEASURE = 104
"""Columns after which running text is hard to read, however wide the terminal is."""
NARROWEST = 40

VERDICT_STYLES: dict[Verdict, str] = {
    "ok": "green",
    "warn": "yellow",
    "fail": "bold red",
    "undecided": "magenta",
    "not measured": "bold red",
}


def render(report: Report, *, width: int = 80, color: bool = False) -> str:
    """Return the report as text of at most ``width`` columns (at least 40), ending in a line break.

    Args:
        report: What to draw.
        width: Columns of the terminal.
        color: Whether to write escape codes; without it the text is plain.
    """
    from rich.text import Text

    console = _console(max(width, NARROWEST), color)
    for part in (_head, _ledger, _findings, _tables, _controls, _notes, _foot):
        for element in part(report, console.width):
            console.print(element, soft_wrap=isinstance(element, str | Text))
    written = console.file.getvalue() if isinstance(console.file, StringIO) else ""
    return "\n".join(line.rstrip() for line in written.replace(NBSP, " ").splitlines()).strip("\n") + "\n"


def _console(width: int, color: bool) -> "Console":
    from rich.console import Console

    return Console(
        file=StringIO(),
        width=width,
        force_terminal=color,
        color_system="standard" if color else None,
        no_color=not color,
        highlight=False,
        markup=False,
        emoji=False,
        soft_wrap=False,
        legacy_windows=False,
        force_jupyter=False,
    )


def _text(text: str, width: int, style: str = "", indent: int = 0, hanging: int = 0) -> "Text":
    """Return ``text`` as one wrapped paragraph; lines after the first are indented by ``hanging`` more."""
    from rich.text import Text

    wrapped = textwrap.fill(
        text.replace(" · ", f"{NBSP}· "),  # no line begins with a dot
        min(width, MEASURE),
        initial_indent=" " * indent,
        subsequent_indent=" " * (indent + hanging),
        break_on_hyphens=False,
    )
    return Text(wrapped, style)


def _whole(text: str, style: str = "", indent: int = 0) -> "Text":
    """Return ``text`` on one line of its own, however long: a command or path that is to be copied."""
    from rich.text import Text

    return Text(" " * indent + text, style)


def _section(title: str, width: int) -> Iterable["RenderableType"]:
    return "", _text(title, width, "bold underline"), ""


def _head(report: Report, width: int) -> Iterable["RenderableType"]:
    yield _text(visible(report.headline), width, "bold")
    yield _text(visible(report.title), width, "dim")
    if report.verdict != "ok":
        yield _text(f"verdict: {words.verdict(report)}", width, VERDICT_STYLES[report.verdict], hanging=2)


def _ledger(report: Report, width: int) -> Iterable["RenderableType"]:
    if report.ledger:
        yield ""
        yield from ledger(report, width)
    if marked := off_cpu(report):
        yield ""
        yield _text(f"{OFF_CPU_MARK} off the CPU for much of its time: {marked}", width, "dim", indent=2, hanging=2)
    if shared := words.apart(report):
        yield ""
        yield _text(shared, width, "dim", indent=2)


def _findings(report: Report, width: int) -> Iterable["RenderableType"]:
    if not report.findings:
        return
    yield from _section(words.order(report), width)
    if shared := words.base(report):
        yield _text(shared, width, "dim", indent=2)
        yield ""
    for number, finding in enumerate(report.findings, 1):
        if number > 1:
            yield ""
        yield from _finding(report, number, finding, width)


def _finding(report: Report, number: int, finding: Finding, width: int) -> Iterable["RenderableType"]:
    wall = step_wall(report)
    yield _text(f"{f'[{number}]':<3} {visible(finding.title)}", width, "bold", hanging=4)
    if finding.where:
        yield _whole(visible(finding.where), "cyan", indent=4)
    yield _text(words.cost(finding), width, indent=4)
    for remedy in finding.remedies:
        yield _text(f"→ {visible(remedy.action)}", width, indent=4, hanging=2)
        open_ended = remedy.predicted is None or spans_zero(remedy.predicted)
        style = "dim" if open_ended else "" if remedy.predicted and remedy.predicted.bound else "green"
        if said := words.prediction(finding, remedy, wall):
            yield _text(said, width, style, indent=6)
        if measured := words.outcome(remedy, wall):
            yield _text(measured, width, "bold green", indent=6)
    if shared := words.overlap(finding):
        yield _text(shared, width, "dim", indent=4)
    if finding.cites:
        yield _text(f"seen in {visible(', '.join(finding.cites))}", width, "dim", indent=4)


def _tables(report: Report, width: int) -> Iterable["RenderableType"]:
    for shown in report.tables:
        yield from _section(visible(shown.title), width)
        yield from table(shown, width)
        if shown.caption:
            yield _text(visible(shown.caption), width, "dim", indent=2)


def _controls(report: Report, width: int) -> Iterable["RenderableType"]:
    if not report.controls:
        return
    yield from _section("Controls: questions with a known answer", width)
    failed = [control for control in report.controls if not control.ok]
    for control in failed:
        yield _text(f"✗ {visible(words.control(control))}", width, "bold red", indent=2, hanging=2)
    yield _text(words.controls(report), width, "" if failed else "green", indent=2)


def _notes(report: Report, width: int) -> Iterable["RenderableType"]:
    if not report.notes:
        return
    yield from _section("Skipped, sampled or estimated", width)
    for note in report.notes:
        yield _text(f"· {visible(note)}", width, indent=2, hanging=2)


def _foot(report: Report, width: int) -> Iterable["RenderableType"]:
    if report.run is None:
        return
    yield from _section("Where it lies and what comes next", width)
    yield _whole(visible(report.run), "cyan", indent=2)
    for command, purpose in words.next_steps(report):
        yield _whole(visible(command), indent=2)
        yield _text(purpose, width, "dim", indent=4)
