"""What a person sees: reports and messages, on the stream where they belong."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from stepprobe.model.report import Report

FORMATS = ("text", "html", "markdown", "json")


def render(report: "Report", form: str, stream: TextIO | None = None) -> str:
    """Draw a report in one of ``FORMATS``; text as wide and as coloured as the stream allows, if it goes to one."""
    if form == "json":
        from stepprobe.report import json

        return json.render(report)
    if form == "html":
        from stepprobe.report import html

        return html.render(report)
    if form == "markdown":
        from stepprobe.report import markdown

        return markdown.render(report)
    from stepprobe.report import terminal

    if stream is None:
        return terminal.render(report)
    return terminal.render(report, width=_width(stream), color=stream.isatty() and not os.environ.get("NO_COLOR"))


def show(report: "Report", *, as_json: bool, stream: TextIO) -> int:
    """Print a report and return the exit code that it asks for; JSON always goes to standard output.

    Where nothing at all was measured, the headline says everything.
    """
    if as_json:
        write(render(report, "json"), sys.stdout)
    elif report.verdict == "not measured" and not report.ledger:
        tell(report.headline)
    else:
        write(render(report, "text", stream), stream)
    return {"fail": 1, "not measured": 3}.get(report.verdict, 0)


def write(text: str, stream: TextIO | None) -> None:
    """Print text, ending in exactly one newline; nothing where the stream was closed before we began.

    Raises:
        OSError: Nobody reads it any more, or its disk is full; the stream then leads nowhere, so that the flush at exit
            is silent.
    """
    if stream is None:  # which `print` would take for standard output: that is the script's
        return
    try:
        print(text.rstrip("\n"), file=stream, flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        raise


def hold_streams() -> None:
    """Let closed standard streams lead nowhere: no file of ours may be opened as one. The script finds them closed."""
    while (file := os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)) <= 2:
        pass
    os.close(file)


def tell(message: str) -> None:
    """Print a message about the run itself, on standard error."""
    write(f"stepprobe: {message}", sys.stderr)


def shown_path(path: Path) -> str:
    """Return a path as a person would type it from here, printable whatever it is called."""
    from stepprobe.store import as_text

    try:
        text = as_text(str(path.relative_to(Path.cwd())))
    except (ValueError, FileNotFoundError):  # elsewhere, or the working folder is gone
        text = as_text(str(path))
    return text if text.isprintable() else ascii(text)


def _width(stream: TextIO) -> int:
    """Columns of the terminal behind the stream, in 40 .. 160; 80 where there is none."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isascii() and columns.isdigit() and int(columns) > 0:
        return min(max(int(columns), 40), 160)
    try:
        return min(max(os.get_terminal_size(stream.fileno()).columns or 80, 40), 160)
    except (OSError, ValueError):
        return 80
