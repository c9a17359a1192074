"""The whole tour on a real small training: build a dataset, train a tiny model under ``run``, show the report."""

import argparse
import importlib.util
import os
import shlex
import subprocess
import sys
from pathlib import Path

import stepprobe
from stepprobe.cli._console import tell
from stepprobe.cli._parser import positive
from stepprobe.errors import NotObserved, UsageError

SUMMARY = "the whole tour on a real small training (CPU only)"

NEEDED = ("torch", "transformers", "tokenizers", "accelerate")
"""Packages that the demo's training script imports. They are the user's, so stepprobe does not depend on them."""

DATASET = "demo-dataset"
"""Folder below ``--out`` that keeps the dataset and the tokenizer for the next demo."""

STANDARD_ERROR = 2
"""Where the progress of the dataset builder goes: standard output is the report's."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``demo``."""
    parser.add_argument("--steps", type=positive, default=80, metavar="N", help="steps to train (default: 80)")
    parser.add_argument("--out", type=Path, default=Path("stepprobe-runs"), metavar="DIR", help="where run folders go")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the report")


def run(arguments: argparse.Namespace) -> int:
    """Build the dataset, then do what ``stepprobe run -- python examples/sft_trainer.py …`` does.

    Raises:
        UsageError: A package is missing, or ``--out`` cannot be written.
        NotObserved: The dataset could not be built.
    """
    from stepprobe.cli import main

    _require_packages()
    examples = find_examples()
    os.environ["HF_HUB_OFFLINE"] = "1"  # for the children: the demo loads nothing from anywhere
    dataset = _build_dataset(examples, arguments.out)
    training = [
        *(sys.executable, str(examples / "sft_trainer.py")),
        *("--data", str(dataset / "data"), "--tokenizer", str(dataset / "tokenizer"), "--steps", str(arguments.steps)),
    ]
    options = ["--out", str(arguments.out), *(["--json"] if arguments.json else [])]
    tell(f"2 of 2: stepprobe run -- {shlex.join(training)}")
    return main(["run", *options, "--", *training])


def find_examples() -> Path:
    """Return the folder of the example scripts: inside an installed package, or beside ``src`` in a checkout.

    Raises:
        UsageError: It is in neither place.
    """
    package = Path(stepprobe.__file__).parent
    for folder in (package / "examples", package.parent.parent / "examples"):
        if (folder / "sft_trainer.py").is_file():
            return folder
    raise UsageError(f"the example scripts are missing beside {package}; install stepprobe again")


def _require_packages() -> None:
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(
            f"the demo trains a tiny model, and this Python lacks {', '.join(missing)}; in the checkout of stepprobe: "
            f"{shlex.quote(sys.executable)} -m pip install '.[demo]'"
        )


def _build_dataset(examples: Path, out: Path) -> Path:
    dataset = out / DATASET
    try:
        dataset.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot write to {out}: {error.strerror}; choose another place with --out DIR") from error
    tell("1 of 2: a chat dataset and a tokenizer from this Python's standard library")
    command = [sys.executable, str(examples / "make_dataset.py"), "--out", str(dataset)]
    if status := subprocess.run(command, stdin=subprocess.DEVNULL, stdout=STANDARD_ERROR, check=False).returncode:
        raise NotObserved(
            f"the dataset could not be built (exit {status}; its own message is above). To see it alone: "
            f"{shlex.join(command)}"
        )
    return dataset
