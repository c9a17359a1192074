"""``stepprobe padding DATA``: what padding, cutting and the loss cost, from the lengths of a dataset."""

import argparse
import sys

from stepprobe.cli._dataset import add_dataset, ask, finish, model_files, planned
from stepprobe.cli._parser import positive

SUMMARY = "how much of each batch is padding, what max_length costs, what the loss needs"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    add_dataset(parser, more="dtype frozen-head loss-budget measure-loss")
    parser.add_argument("--oom", metavar="TEXT", help="an out-of-memory message: how many rows of logits is that?")
    parser.add_argument("--world-size", type=positive, default=1, help=argparse.SUPPRESS)
    parser.add_argument("--dtype", choices=("bf16", "fp32"), default="bf16", help=argparse.SUPPRESS)
    parser.add_argument("--frozen-head", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--loss-budget", type=positive, metavar="BYTES", help=argparse.SUPPRESS)
    parser.add_argument("--measure-loss", action="store_true", help=argparse.SUPPRESS)


def run(arguments: argparse.Namespace) -> int:
    """Report on a dataset, or on an out-of-memory message alone.

    Raises:
        UsageError: The command line asks for something impossible.
        NotObserved: The dataset cannot be read.
    """
    options = {
        "dtype": arguments.dtype,
        "frozen_head": "yes" if arguments.frozen_head else "",
        "budget": str(arguments.loss_budget or ""),
        "oom": arguments.oom or "",
    }
    if arguments.oom and not arguments.data:
        return _oom(arguments, options)
    more = model_files(arguments)
    if arguments.measure_loss:
        more |= _measured_loss(arguments, more)
    return finish(ask(arguments, "padding", options, more), arguments)


def _oom(arguments: argparse.Namespace, options: dict[str, str]) -> int:
    import msgspec

    from stepprobe import probes
    from stepprobe.cli._console import show
    from stepprobe.errors import UsageError

    files = model_files(arguments)
    if arguments.tokenizer and not files:
        from stepprobe.instruments.dataset import tokenizer

        options["vocabulary"] = str(tokenizer.load(arguments.tokenizer).vocabulary)
    if not files and not options.get("vocabulary"):
        raise UsageError("how many logits a row has is not known; name the model with --model, or its --tokenizer")
    evidence = msgspec.structs.replace(planned(arguments, "padding", options), files=files, subject=arguments.oom)
    return show(probes.load("padding").derive(evidence), as_json=arguments.json, stream=sys.stdout)


def _measured_loss(arguments: argparse.Namespace, files: dict[str, bytes]) -> dict[str, bytes]:
    from stepprobe.analysis.lengths.cost import model_sizes
    from stepprobe.errors import UsageError
    from stepprobe.instruments import cross_entropy

    sizes = model_sizes(files)
    if sizes is None:
        raise UsageError("--measure-loss needs the sizes of the model: name it with --model")
    return cross_entropy.measure(
        sizes.vocabulary, sizes.hidden, dtype=arguments.dtype, trained_head=not arguments.frozen_head
    )
