"""The options that describe a model and its batch, shared by ``mask`` and ``check``."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from stepprobe.cli._console import show, shown_path, tell
from stepprobe.cli._parser import positive

if TYPE_CHECKING:
    from stepprobe.instruments.attention.subject import Question
    from stepprobe.session import Result

KINDS = ("none", "ones", "right", "left", "packed", "packed-ones", "padding-free")


def add_model(parser: argparse.ArgumentParser) -> None:
    """Add MODEL and what its batch looks like."""
    parser.add_argument("model", metavar="MODEL", help="a folder, a config.json, a cached hub id, or a run folder")
    parser.add_argument("--length", type=positive, default=4096, metavar="N", help="tokens of a row (default: 4096)")
    parser.add_argument("--batch-size", type=positive, default=2, metavar="N", help="rows of a batch (default: 2)")
    parser.add_argument("--padding", choices=KINDS, default="none", help="what the collator makes (default: none)")
    parser.add_argument("--card", default="", metavar="NAME", help="a100 (default), h100, b200, l4, 4090, t4, …, cpu")
    parser.add_argument("--out", type=Path, default=Path("stepprobe-runs"), metavar="DIR", help="where run folders go")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def ask(arguments: argparse.Namespace, options: tuple[str, ...] = (), cache_off: bool = True) -> int:
    """Probe the model, print the report, and return the exit code that it asks for.

    Raises:
        UsageError: There is no such model, card or implementation.
        NotObserved: transformers is missing, or the class cannot be built.
    """
    from stepprobe import session
    from stepprobe.instruments.attention.subject import Model

    subject, name = Model(question(arguments, "mask", options, cache_off)), Path(arguments.model).stem
    argv = ("stepprobe", "mask", arguments.model)
    return tell_result(session.ask(subject, "mask", out=arguments.out, name=name, argv=argv), arguments)


def tell_result(result: "Result", arguments: argparse.Namespace) -> int:
    """Print the report, say where it lies, and return the exit code that it asks for."""
    code = show(result.report, as_json=arguments.json, stream=sys.stdout)
    for problem in result.problems:
        tell(problem)
    tell(f"kept, with report.html, in {shown_path(result.folder)}")
    return code


def question(
    arguments: argparse.Namespace, command: str, options: tuple[str, ...] = (), cache_off: bool = True
) -> "Question":
    """Return what the options ask of the model.

    Raises:
        UsageError: The card is not known.
    """
    from stepprobe.analysis.attention.kernels import CARDS
    from stepprobe.cli._parser import nearest
    from stepprobe.errors import UsageError
    from stepprobe.instruments.attention.subject import Question

    card = arguments.card.lower()
    if card and card not in CARDS:
        raise UsageError(f"unknown card {card!r}{nearest(card, CARDS)}; there are: {', '.join(CARDS)}")
    return Question(
        model=arguments.model,
        length=arguments.length,
        size=arguments.batch_size,
        padding=arguments.padding,
        card=card,
        command=command,
        passes_cache_off=cache_off,
        options=options,
    )
