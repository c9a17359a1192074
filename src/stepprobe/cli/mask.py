"""``stepprobe mask MODEL``: attention, layer by layer, before the job and without weights."""

import argparse
import sys
from pathlib import Path

from stepprobe.cli._console import show, shown_path, tell
from stepprobe.cli._models import add_model, chosen_model

SUMMARY = "say which layers keep attention's fast path and whether every mask is right, without weights"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    add_model(parser)
    parser.add_argument("--use-cache", action="store_true", help="the loop does not pass use_cache=False")
    parser.add_argument(
        "--with", dest="options", type=_words, default=(), metavar="WORDS",
        help="comma list: compile, remote-code, or an attention implementation such as eager",
    )  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    """Probe the model and print the report.

    Raises:
        UsageError: There is no such model, card or implementation.
        NotObserved: transformers is missing, or the class cannot be built.
    """
    from stepprobe import session

    subject = chosen_model(arguments, arguments.options, not arguments.use_cache)
    name = Path(arguments.model).stem
    result = session.ask(subject, "mask", out=arguments.out, name=name, argv=("stepprobe", "mask", arguments.model))
    code = show(result.report, as_json=arguments.json, stream=sys.stdout)
    for problem in result.problems:
        tell(problem)
    tell(f"kept, with report.html, in {shown_path(result.folder)}")
    return code


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())
