"""The options that describe a model and its batch, shared by ``mask`` and ``check``."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from stepprobe.cli._console import show, shown_path, tell
from stepprobe.cli._parser import positive

if TYPE_CHECKING:
    from stepprobe.instruments.attention.subject import Model

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


def ask(arguments: argparse.Namespace, command: str, options: tuple[str, ...] = (), cache_off: bool = True) -> int:
    """Probe the model, print the report, and return the exit code that it asks for.

    Raises:
        UsageError: There is no such model, card or implementation.
        NotObserved: transformers is missing, or the class cannot be built.
    """
    from stepprobe import session

    subject, name = _chosen(arguments, command, options, cache_off), Path(arguments.model).stem
    result = session.ask(subject, "mask", out=arguments.out, name=name, argv=("stepprobe", command, arguments.model))
    code = show(result.report, as_json=arguments.json, stream=sys.stdout)
    for problem in result.problems:
        tell(problem)
    tell(f"kept, with report.html, in {shown_path(result.folder)}")
    return code


def _chosen(arguments: argparse.Namespace, command: str, options: tuple[str, ...], cache_off: bool) -> "Model":
    """Return the subject that the options describe.

    Raises:
        UsageError: The card is not known.
    """
    from stepprobe.analysis.attention.kernels import CARDS
    from stepprobe.cli._parser import nearest
    from stepprobe.errors import UsageError
    from stepprobe.instruments.attention.subject import Model, Question

    card = arguments.card.lower()
    if card and card not in CARDS:
        raise UsageError(f"unknown card {card!r}{nearest(card, CARDS)}; there are: {', '.join(CARDS)}")
    return Model(
        Question(
            model=arguments.model,
            length=arguments.length,
            size=arguments.batch_size,
            padding=arguments.padding,
            card=card,
            command=command,
            passes_cache_off=cache_off,
            options=options,
        )
    )
