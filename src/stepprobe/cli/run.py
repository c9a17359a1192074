"""``stepprobe run -- CMD``: the user's job, observed."""

import argparse
from pathlib import Path

from stepprobe.cli._parser import positive, warmup
from stepprobe.cli._watched import end_as

SUMMARY = "run a training script unchanged and say where each step's time went"
TAKES_COMMAND = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.epilog = "The script keeps standard output; the report goes to standard error and into the run folder."
    parser.add_argument(
        "--steps", type=positive, metavar="N", help="end the job after the warm-up and N more steps, and the trace"
    )
    parser.add_argument(
        "--warmup", type=warmup, default="auto", metavar="N", help="leave out the first N steps (default: auto)"
    )
    parser.add_argument("--out", type=Path, default=Path("stepprobe-runs"), metavar="DIR", help="where run folders go")
    parser.add_argument("--no-trace", action="store_true", help="take no torch.profiler trace of a few steps")
    parser.add_argument("--no-masks", action="store_true", help="spend no seconds at the end on attention masks")
    parser.add_argument("--json", action="store_true", help="print one JSON object; the script's output goes to stderr")


def run(arguments: argparse.Namespace) -> int:
    """Run the command, print its report, and end as the script ended.

    Raises:
        UsageError: There is no command, or it cannot be started.
    """
    from stepprobe import session

    result = session.run(
        arguments.command_line,
        out=arguments.out,
        steps=arguments.steps,
        warmup=arguments.warmup,
        leave_out=[name for name in ("trace", "masks") if getattr(arguments, f"no_{name}")],
        output_to_stderr=arguments.json,
    )
    return end_as(result, as_json=arguments.json)
