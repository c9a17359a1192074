"""The options that describe a model and its batch, shared by ``mask`` and ``check``."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from stepprobe.cli._console import show, shown_path, tell
from stepprobe.cli._dataset import BATCH_SIZE
from stepprobe.cli._parser import positive

if TYPE_CHECKING:
    from stepprobe.analysis.ledger.recorded import Told
    from stepprobe.instruments.attention.subject import Question
    from stepprobe.session import Result

LENGTH = 4096
KINDS = ("none", "ones", "right", "left", "packed", "packed-ones", "padding-free")


def add_model(parser: argparse.ArgumentParser) -> None:
    """Add MODEL and what its batch looks like."""
    parser.add_argument("model", metavar="MODEL", help="a folder, a config.json, a cached hub id, or a run folder")
    parser.add_argument("--length", type=positive, metavar="N", help=f"tokens of a row (default: a run's, or {LENGTH})")
    parser.add_argument(
        "--batch-size", type=positive, metavar="N", help=f"rows of a batch (default: a run's, or {BATCH_SIZE})"
    )
    parser.add_argument("--padding", choices=KINDS, help="what the collator makes (default: a run's, or none)")
    parser.add_argument("--card", default="", metavar="NAME", help="a100 (default), h100, b200, l4, 4090, t4, …, cpu")
    parser.add_argument("--out", type=Path, default=Path("stepprobe-runs"), metavar="DIR", help="where run folders go")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


class Shape(NamedTuple):
    """The batch that is asked about, each part with where it is known from."""

    batch_size: "Told"
    length: "Told"
    """Tokens of a row of the batch."""
    max_length: "Told | None"
    """Tokens after which rows of a dataset are cut; None cuts nothing."""
    padding: "Told | None"
    """None where nobody says."""
    dtype: "Told | None"
    """Element type in which the run computed; None where that is not known."""
    made: bool
    """An option asks for a batch of this shape, though a run may have kept its own."""


def shape_of(arguments: argparse.Namespace) -> Shape:
    """Return the shape of the batch: what the command line says, else what the run recorded, else the defaults.

    Raises:
        EvidenceError: What the run kept is damaged.
    """
    from stepprobe import session
    from stepprobe.analysis.ledger.recorded import Recorded, Told

    folder = Path(arguments.model)
    run = session.recorded(folder) if (folder / "manifest.json").is_file() else Recorded()

    def given(value: object, option: str) -> Told | None:
        return Told(value=str(value), source=option) if value else None

    size, length = given(arguments.batch_size, "--batch-size"), given(arguments.length, "--length")
    padding = given(arguments.padding, "--padding")
    return Shape(
        batch_size=size or run.batch_size or Told(value=str(BATCH_SIZE), source="the default, set it: --batch-size"),
        length=length or run.length or Told(value=str(LENGTH), source="the default, set it: --length"),
        max_length=length or run.max_length,
        padding=padding or run.padding,
        dtype=run.dtype,
        made=any((size, length, padding)),
    )


def ask(arguments: argparse.Namespace, options: tuple[str, ...] = (), cache_off: bool = True) -> int:
    """Probe the model, print the report, and return the exit code that it asks for.

    Raises:
        UsageError: There is no such model, card or implementation.
        NotObserved: transformers is missing, or the class cannot be built.
    """
    from stepprobe import session
    from stepprobe.instruments.attention.subject import Model

    asked, _ = question(arguments, "mask", options, cache_off)
    subject, name = Model(asked), Path(arguments.model).stem
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
) -> tuple["Question", Shape]:
    """Return what the options ask of the model, and the shape of its batch with where each part is known from.

    Raises:
        UsageError: The card is not known.
        EvidenceError: MODEL is a run, and what it kept is damaged.
    """
    from stepprobe.analysis.attention.kernels import CARDS
    from stepprobe.cli._parser import nearest
    from stepprobe.errors import UsageError
    from stepprobe.instruments.attention.subject import Question

    card = arguments.card.lower()
    if card and card not in CARDS:
        raise UsageError(f"unknown card {card!r}{nearest(card, CARDS)}; there are: {', '.join(CARDS)}")
    shape = shape_of(arguments)
    asked = Question(
        model=arguments.model,
        length=int(shape.length.value),
        size=int(shape.batch_size.value),
        padding=shape.padding.value if shape.padding else "none",
        **({"dtype": shape.dtype.value, "dtype_from": shape.dtype.source} if shape.dtype else {}),
        made=shape.made,
        card=card,
        command=command,
        passes_cache_off=cache_off,
        options=options,
    )
    return asked, shape
