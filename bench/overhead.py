"""What the instrument costs: CPU time of the training thread with and without it, paired and interleaved.

    python bench/overhead.py                  # both trainings; blocks of steps alternate inside one process
    python bench/overhead.py --processes      # pairs of whole processes instead: noisier, but nothing is shared

Read the median of the pairs with its quartiles; beside it, what the tool itself says that it costs in the same steps.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from training import BLOCK, TRAININGS, attached_in

import stepprobe
from stepprobe.model.records import Step, decode_process

os.environ["STEPPROBE_TRACE"] = "off"  # the hooks are measured, not the profiler
TRAINING = Path(__file__).with_name("training.py")
INJECT = Path(stepprobe.__file__).parent / "launch" / "inject"
WARMUP_BLOCKS = 4


class Pair(NamedTuple):
    """Mean CPU ms per step, with and without the instrument, side by side in time; and what the tool says it cost."""

    attached_ms: float
    bare_ms: float
    said_ms: float


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="What the instrument costs.")
    parser.add_argument("--training", choices=TRAININGS, nargs="*", default=list(TRAININGS))
    parser.add_argument("--pairs", type=int, default=30)
    parser.add_argument("--processes", action="store_true", help="pairs of whole processes")
    arguments = parser.parse_args()
    for training in arguments.training:
        measure = process_pairs if arguments.processes else block_pairs
        show(training, measure(training, arguments.pairs))


def show(training: str, pairs: list[Pair]) -> None:
    """Print one line for a training."""
    cost_ms = statistics.median(pair.attached_ms - pair.bare_ms for pair in pairs)
    said_ms = statistics.median(pair.said_ms for pair in pairs)
    low, middle, high = statistics.quantiles([100 * (pair.attached_ms / pair.bare_ms - 1) for pair in pairs], n=4)
    print(
        f"{training}: bare step {statistics.median(pair.bare_ms for pair in pairs):.1f} ms, {len(pairs)} pairs: "
        f"overhead {middle:+.2f} % (quartiles {low:+.2f} .. {high:+.2f}) = {cost_ms:.3f} ms; "
        f"the tool says {said_ms:.3f} ms, {said_ms / cost_ms:.2f} of it",
        flush=True,
    )


def block_pairs(training: str, pairs: int) -> list[Pair]:
    """Alternate inside one process; the first step of each block is dropped, the switch falls into it."""
    with tempfile.TemporaryDirectory() as folder:
        steps = BLOCK * (2 * pairs + WARMUP_BLOCKS)
        ends = run([str(TRAINING), training, str(steps), "--alternate", folder], {})
        said_ms = statistics.fmean(step.self_ns for step in observed(folder)[2 * BLOCK :]) / 1e6
    means = []
    for begin in range(WARMUP_BLOCKS * BLOCK, steps, BLOCK):
        means.append(statistics.fmean(after - before for before, after in pairwise(ends[begin : begin + BLOCK])) / 1e6)
    found = []
    for number in range(0, len(means), 2):
        both = means[number], means[number + 1]
        attached, bare = both if attached_in((WARMUP_BLOCKS + number) * BLOCK) else both[::-1]
        found.append(Pair(attached, bare, said_ms))
    return found


def process_pairs(training: str, pairs: int) -> list[Pair]:
    """Run whole processes in turn, attached and bare, bare and attached."""
    found = []
    steps, first = 60, 10
    for number in range(pairs):
        with tempfile.TemporaryDirectory() as folder:
            attach = {"PYTHONPATH": str(INJECT), "STEPPROBE_RUN": folder}
            cpu_ms = {}
            for attached in (True, False) if number % 2 else (False, True):
                ends = run([str(TRAINING), training, str(steps)], attach if attached else {})
                cpu_ms[attached] = statistics.fmean(b - a for a, b in pairwise(ends[first:])) / 1e6
            said_ms = statistics.fmean(step.self_ns for step in observed(folder)[first:]) / 1e6
        found.append(Pair(cpu_ms[True], cpu_ms[False], said_ms))
    return found


def run(command: list[str], more: dict[str, str]) -> list[int]:
    """Run a training and return the thread's CPU time at each step's end, ns."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", **more}
    done = subprocess.run([sys.executable, *command], env=environment, check=True, stdout=subprocess.PIPE, text=True)
    return [cpu_ns for cpu_ns, _ in json.loads(done.stdout.splitlines()[-1])]


def observed(folder: str) -> tuple[Step, ...]:
    """Return the steps in the evidence."""
    (file,) = Path(folder).glob("steps-*.jsonl")
    return decode_process(file.name, file.read_bytes()).steps


if __name__ == "__main__":
    main()
