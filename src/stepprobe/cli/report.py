"""``stepprobe report RUN``: a kept run, drawn again."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from stepprobe.cli._console import FORMATS, render, show, shown_path, tell, write
from stepprobe.cli._folder import add_folder, chosen
from stepprobe.errors import UsageError

if TYPE_CHECKING:
    from stepprobe.model.report import Report

SUMMARY = "draw the report of a run again, from its evidence"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    add_folder(parser)
    parser.add_argument("--format", choices=FORMATS, default="text", help="how to draw it (default: text)")
    parser.add_argument("--json", action="store_true", help="the same as --format json")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write to a file instead of standard output")
    parser.add_argument("--schema", action="store_true", help="print the JSON Schema of every command's --json")
    parser.add_argument(
        "--calibration",
        nargs="?",
        const=True,
        type=Path,
        metavar="DIR",
        help="how the predictions under a folder of run folders held (default: the place of run folders)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Draw the report.

    Raises:
        UsageError: The file cannot be written.
    """
    if arguments.schema:
        _deliver(_schema(), arguments.out)
        return 0
    drawn = _calibration(arguments) if arguments.calibration else _kept(arguments)
    form = "json" if arguments.json else arguments.format
    if form == "text" and arguments.out is None:
        return show(drawn, as_json=False, stream=sys.stdout)
    _deliver(render(drawn, form), arguments.out)
    return 3 if drawn.verdict == "not measured" else 0


def _kept(arguments: argparse.Namespace) -> "Report":
    from stepprobe import session

    result = session.report(chosen(arguments))
    for problem in result.problems:
        tell(problem)
    return result.report


def _calibration(arguments: argparse.Namespace) -> "Report":
    from stepprobe import session

    if arguments.folder is not None:
        raise UsageError("--calibration is about all runs of a folder: leave RUN out, or name a folder after it")
    return session.calibration(arguments.runs if arguments.calibration is True else arguments.calibration)


def _schema() -> str:
    from stepprobe.report import json

    return json.schema()


def _deliver(text: str, out: Path | None) -> None:
    if out is None:
        write(text, sys.stdout)
        return
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {shown_path(out)}: {error.strerror}; name another file with --out") from error
    tell(f"written to {shown_path(out)}")
