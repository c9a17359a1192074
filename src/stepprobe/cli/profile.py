"""``stepprobe profile -- CMD``: experiments on the user's own training step."""

import argparse
import math
from pathlib import Path

from stepprobe.cli._parser import positive
from stepprobe.cli._watched import end_as

SUMMARY = "ask the script's own step at chosen shapes: how its time grows, what padding and loss cost, what would help"
TAKES_COMMAND = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.epilog = (
        "After N observed steps the step of the running script is driven at other shapes; then all is put back, and "
        "the job ends (with --keep-training it goes on)."
    )
    parser.add_argument(
        "--steps", type=positive, default=10, metavar="N", help="steps observed before the experiments (default: 10)"
    )
    parser.add_argument(
        "--harness", type=harness, metavar="MODULE:FACTORY", help="drive this step, not the script's own"
    )
    parser.add_argument("--keep-training", action="store_true", help="let the script go on after the experiments")
    parser.add_argument("--anyway", action="store_true", help="measure on a busy machine, too, and mark every figure")
    parser.add_argument(
        "--time", type=seconds, default=120.0, metavar="S", help="seconds the experiments may take (default: 120)"
    )
    parser.add_argument("--no-trace", action="store_true", help="take no torch.profiler trace of a few steps")
    parser.add_argument("--out", type=Path, default=Path("stepprobe-runs"), metavar="DIR", help="where run folders go")
    parser.add_argument("--json", action="store_true", help="print one JSON object; the script's output goes to stderr")


def run(arguments: argparse.Namespace) -> int:
    """Run the command and the experiments, print the report, and end as the script ended.

    Raises:
        UsageError: There is no command, or it cannot be started.
        NotObserved: The machine is too busy to measure on.
    """
    from stepprobe import session

    result = session.profile(
        arguments.command_line,
        out=arguments.out,
        steps=arguments.steps,
        trace=not arguments.no_trace,
        experiments={
            "harness": arguments.harness or "",
            "keep_training": "yes" if arguments.keep_training else "no",
            "anyway": "yes" if arguments.anyway else "no",
            "seconds": str(arguments.time),
        },
        output_to_stderr=arguments.json,
    )
    return end_as(result, as_json=arguments.json)


def harness(text: str) -> str:
    """Read ``module:factory``."""
    module, colon, factory = text.partition(":")
    if not colon or not factory.isidentifier() or not all(part.isidentifier() for part in module.split(".")):
        raise argparse.ArgumentTypeError(f"{text!r} is not module:factory, such as my_steps:harness")
    return text


def seconds(text: str) -> float:
    """Read a positive number of seconds."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number of seconds")
    return value
