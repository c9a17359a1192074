"""``stepprobe compare A B``: two runs, account by account."""

import argparse
import sys
from pathlib import Path

from stepprobe.cli._console import show
from stepprobe.cli._folder import existing

SUMMARY = "compare two runs by account, and say where no difference can be told"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("before", type=Path, metavar="A", help="run folder before the change")
    parser.add_argument("after", type=Path, metavar="B", help="run folder after the change")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """Compare and print."""
    from stepprobe import session

    report = session.compare(existing(arguments.before), existing(arguments.after))
    return show(report, as_json=arguments.json, stream=sys.stdout)
