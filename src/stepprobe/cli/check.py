"""``stepprobe check MODEL [--data DATA]``: the verdict before a job, with an exit code."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from stepprobe.cli._dataset import add_reading
from stepprobe.cli._models import add_model, question, tell_result
from stepprobe.cli._parser import positive

if TYPE_CHECKING:
    from stepprobe.instruments.dataset.subject import Dataset

SUMMARY = "say before a job whether masks, kernels, loss and batches are as they should be, with an exit code"

SETTINGS = ("batch_size", "length", "max_length", "padding")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.epilog = (
        "Exit code 1 when an assertion does not hold, 3 when there is no verdict. More options, here or in "
        "stepprobe.toml: max-length (as length), source, full, column, loss-mask, template, skip-broken, sample."
    )
    add_model(parser)
    add_reading(parser)
    parser.add_argument("--source", help=argparse.SUPPRESS)
    parser.add_argument("--full", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--max-length", dest="length", type=positive, help=argparse.SUPPRESS)
    parser.add_argument("--data", action="append", default=[], metavar="DATA", help="the dataset, as in padding DATA")
    parser.add_argument("--tokenizer", metavar="T", help="counts the tokens of text in DATA (default: MODEL's own)")


def run(arguments: argparse.Namespace) -> int:
    """Check the model and the dataset and print the report.

    Raises:
        UsageError: There is no such model, card or dataset, or one does not fit the other.
        NotObserved: transformers is missing, the class cannot be built, or the dataset cannot be read.
    """
    from stepprobe import session
    from stepprobe.cli._dataset import config_file
    from stepprobe.errors import UsageError
    from stepprobe.instruments.attention.checked import Checked

    asked, shape = question(arguments, "check")
    if arguments.tokenizer and not arguments.data:
        raise UsageError("--tokenizer counts the tokens of a dataset; name it with --data")
    subject = Checked(
        question=asked,
        config=config_file(arguments.model),
        data=_data(arguments),
        max_length=int(shape.max_length.value) if shape.max_length else None,
        decides_padding=shape.padding is None,
        sources={f"{name}_from": told.source for name in SETTINGS if (told := getattr(shape, name))},
    )
    argv = ("stepprobe", "check", arguments.model, *arguments.data)
    name = Path(arguments.model).stem
    return tell_result(session.ask(subject, "check", out=arguments.out, name=name, argv=argv), arguments)


def _data(arguments: argparse.Namespace) -> "Dataset | None":
    """Return the dataset to count.

    Raises:
        UsageError: Its tokenizer cannot be loaded, or numpy is missing.
    """
    if not arguments.data:
        return None
    from stepprobe.cli._dataset import cache, reading
    from stepprobe.cli._packages import need_numpy
    from stepprobe.instruments.dataset.subject import Dataset
    from stepprobe.instruments.environment import environment
    from stepprobe.model.evidence import Evidence

    need_numpy("counting lengths")
    own = Path(arguments.model)
    named = arguments.tokenizer or (str(own) if (own / "tokenizer.json").is_file() else None)
    planned = Evidence(
        probe="check", command="check", subject=" ".join(arguments.data), environment=environment(), files={}
    )
    return Dataset(
        sources=tuple(arguments.data),
        planned=planned,
        settings=reading(arguments, named),
        cache=cache(),
    )
