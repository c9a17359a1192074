"""``stepprobe report RUN``: a kept run, drawn again."""

import argparse
import sys
from pathlib import Path

from stepprobe.cli._console import FORMATS, render, show, shown_path, tell, write
from stepprobe.cli._folder import add_folder, chosen
from stepprobe.errors import UsageError

SUMMARY = "draw the report of a run again, from its evidence"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    add_folder(parser)
    parser.add_argument("--format", choices=FORMATS, default="text", help="how to draw it (default: text)")
    parser.add_argument("--json", action="store_true", help="the same as --format json")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write to a file instead of standard output")
    parser.add_argument("--schema", action="store_true", help="print the JSON Schema of every command's --json")


def run(arguments: argparse.Namespace) -> int:
    """Draw the report.

    Raises:
        UsageError: The file cannot be written.
    """
    if arguments.schema:
        _deliver(_schema(), arguments.out)
        return 0
    from stepprobe import session

    result = session.report(chosen(arguments))
    for problem in result.problems:
        tell(problem)
    form = "json" if arguments.json else arguments.format
    if form == "text" and arguments.out is None:
        return show(result.report, as_json=False, stream=sys.stdout)
    _deliver(render(result.report, form), arguments.out)
    return 3 if result.report.verdict == "not measured" else 0


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
