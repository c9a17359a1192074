"""``stepprobe bucket DATA``: the way of batching that costs least."""

import argparse
from pathlib import Path

from stepprobe.cli._dataset import add_dataset, ask, finish, model_files
from stepprobe.cli._parser import positive

SUMMARY = "which way of batching costs least: buckets, packing, token budgets"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    add_dataset(parser, more="recipe")
    parser.add_argument("--world-size", type=positive, default=1, metavar="N", help="devices that train together")
    parser.add_argument("--recipe", type=Path, metavar="FILE", help=argparse.SUPPRESS)


def run(arguments: argparse.Namespace) -> int:
    """Report on a dataset.

    Raises:
        UsageError: The command line asks for something impossible.
        NotObserved: The dataset cannot be read.
    """
    result = ask(arguments, "bucket", {}, model_files(arguments))
    if arguments.recipe and "packing.bins" in result.report.figures:
        _write_recipe(result.folder, arguments.recipe)
    return finish(result, arguments)


def _write_recipe(folder: Path, target: Path) -> None:
    """Write the moves of the packing (length, first bin, bins, rows a bin), in falling order of length."""
    import numpy as np

    from stepprobe import store
    from stepprobe.errors import UsageError
    from stepprobe.probes.bucket import recipe

    try:
        with open(target, "wb") as file:
            np.save(file, recipe(store.load(folder)))
    except OSError as error:
        raise UsageError(f"cannot write {target}: {error.strerror}; name another file with --recipe") from error
