"""``stepprobe mask MODEL``: attention, layer by layer, before the job and without weights."""

import argparse

from stepprobe.cli._models import add_model, ask

SUMMARY = "say which layers keep attention's fast path and whether every mask is right, without weights"
WITH = "comma list: compile, remote-code, or an attention implementation such as eager"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    add_model(parser)
    parser.add_argument("--use-cache", action="store_true", help="the loop does not pass use_cache=False")
    parser.add_argument("--with", dest="options", type=words, default=(), metavar="WORDS", help=WITH)


def run(arguments: argparse.Namespace) -> int:
    """Probe the model and print the report.

    Raises:
        UsageError: There is no such model, card or implementation.
        NotObserved: transformers is missing, or the class cannot be built.
    """
    return ask(arguments, arguments.options, not arguments.use_cache)


def words(text: str) -> tuple[str, ...]:
    """Read a list with commas."""
    return tuple(word.strip() for word in text.split(",") if word.strip())
