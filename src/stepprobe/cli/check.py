"""``stepprobe check MODEL``: the verdict before a job, with an exit code."""

import argparse

from stepprobe.cli._models import add_model, ask

SUMMARY = "say before a job whether masks are right and which kernels are missing, with an exit code"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.epilog = "Exit code 1 when an assertion does not hold, 3 when there is no verdict."
    add_model(parser)


def run(arguments: argparse.Namespace) -> int:
    """Probe the model and print the report.

    Raises:
        UsageError: There is no such model or card.
        NotObserved: transformers is missing, or the class cannot be built.
    """
    return ask(arguments, "check")
