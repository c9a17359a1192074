"""``stepprobe run -- CMD``: the user's job, observed."""

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from stepprobe.cli._console import show, shown_path, tell
from stepprobe.cli._parser import positive, warmup

if TYPE_CHECKING:
    from stepprobe.session import Result

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
    from stepprobe.launch.script import mirror_exit

    result = session.run(
        arguments.command_line,
        out=arguments.out,
        steps=arguments.steps,
        warmup=arguments.warmup,
        leave_out=[name for name in ("trace", "masks") if getattr(arguments, f"no_{name}")],
        output_to_stderr=arguments.json,
    )
    try:
        wanted = _tell(result, as_json=arguments.json)
    except OSError:  # nobody reads the report, or its disk is full; how the script ended still counts
        wanted = 0
    return mirror_exit(result.status) or wanted


def _tell(result: "Result", *, as_json: bool) -> int:
    try:
        wanted = show(result.report, as_json=as_json, stream=sys.stderr)
    except OSError:
        raise
    except Exception as error:  # a defect of a renderer must not cost the script's exit code
        tell(f"the report could not be drawn: {type(error).__name__}: {error}; please report this")
        wanted = 1
    for problem in result.problems:
        tell(problem)
    page = result.folder / "report.html"
    tell(f"kept; open {shown_path(page)}" if os.path.isfile(page) else f"kept in {shown_path(result.folder)}")
    return wanted
