"""``stepprobe compare A B``: two runs, account by account, and what came of what the first one promised."""

import argparse
import sys
from pathlib import Path

from stepprobe.cli._console import FORMATS, render, show, write
from stepprobe.cli._folder import existing
from stepprobe.cli._parser import Several

SUMMARY = "compare two runs by account: what changed, and what came of what was promised"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("before", type=Path, metavar="A", help="run folder before the change")
    parser.add_argument("after", type=Path, metavar="B", help="run folder after the change")
    parser.add_argument(
        "--repeat",
        action=Several,
        type=Path,
        nargs="+",
        default=[],
        metavar="RUN",
        help="further runs of the training before: what they differ by is no change, and no interval is narrower",
    )
    parser.add_argument("--format", choices=FORMATS, default="text", help="how to draw it (default: text)")
    parser.add_argument("--json", action="store_true", help="the same as --format json")


def run(arguments: argparse.Namespace) -> int:
    """Compare and print."""
    from stepprobe import session

    report = session.compare(
        existing(arguments.before), existing(arguments.after), [existing(one) for one in arguments.repeat]
    )
    if arguments.format in ("html", "markdown") and not arguments.json:
        write(render(report, arguments.format), sys.stdout)
        return 1 if report.verdict == "fail" else 0
    return show(report, as_json=arguments.json or arguments.format == "json", stream=sys.stdout)
