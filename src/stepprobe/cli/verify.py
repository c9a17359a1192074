"""``stepprobe verify RUN``: does the evidence still give the report?"""

import argparse
import sys

from stepprobe.cli._console import show, write
from stepprobe.cli._folder import add_folder, chosen

SUMMARY = "check every hash of a run and derive every figure of its report again"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    add_folder(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """Verify; what does not hold is raised."""
    from stepprobe import session

    report = session.verify(chosen(arguments))
    if arguments.json:
        return show(report, as_json=True, stream=sys.stdout)
    write(report.headline, sys.stdout)
    return 0
