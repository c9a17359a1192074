"""What was predicted beside what came: six changes to a tiny training, each made for real.

    python bench/forecast.py                                  # twenty-four short trainings, two at a time
    python bench/forecast.py --write docs/forecasts.md        # and the table of the documentation
    python bench/forecast.py --case packing --pairs 4

Each case is pairs of trainings that differ in one change; both of a pair run at the same time, so that the machine is
the same for both. The prediction is made from the run before alone, the outcome by ``stepprobe compare``; where the
machine was busy, both leave out the time in which the thread was put aside while it computed. The window is the one
change that a run does not predict: there the step itself is asked, as ``stepprobe profile`` asks it.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

JOB = Path(__file__).with_name("forecast_job.py")
WINDOW = 512


class Case(NamedTuple):
    """A change: the words of both trainings, and the remedy that predicts it."""

    name: str
    remedy: str
    both: tuple[str, ...]
    before: tuple[str, ...]
    after: tuple[str, ...]


CASES = (
    Case("bucketing", "padding.group", (), ("--order", "random"), ("--order", "grouped")),
    Case("packing", "padding.pack", (), ("--order", "random"), ("--order", "packed")),
    Case(
        "head and loss on labelled rows only",
        "loss.labelled_rows",
        ("--spread", "0", "--median", "96", "--prompt", "0.8", "--vocabulary", "8192"),
        (),
        ("--labelled-rows",),
    ),
    Case(
        "gradient checkpointing off",
        "checkpointing.off",
        ("--spread", "0", "--median", "128", "--width", "96"),
        ("--checkpointing",),
        (),
    ),
    Case(
        "workers for a slow dataset",
        "loader.workers",
        ("--spread", "0", "--median", "96", "--slow-ms", "5"),
        (),
        ("--workers", "2"),
    ),
    Case(
        "T = window − 1",
        "window",
        ("--spread", "0", "--rows", "2", "--vocabulary", "512", "--width", "32", "--window", str(WINDOW)),
        ("--median", str(WINDOW)),
        ("--median", str(WINDOW - 1)),
    ),
)


class Range(NamedTuple):
    """Milliseconds per step with their 95 % interval."""

    value: float
    low: float
    high: float


class Row(NamedTuple):
    """One pair of runs."""

    case: str
    step_ms: float
    predicted: Range
    measured: Range
    held: str
    source: str
    load: float
    """Runnable tasks of the machine in the minute before the run after."""


def main() -> int:
    """Run, print, and write the page when asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case", action="append", choices=[case.name for case in CASES])
    parser.add_argument("--pairs", type=int, default=2)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--out", type=Path, help="keep the run folders there")
    parser.add_argument("--write", type=Path, help="write the page of the documentation")
    arguments = parser.parse_args()
    begun, rows = time.monotonic(), []
    with tempfile.TemporaryDirectory() as scratch:
        out = (arguments.out or Path(scratch)).resolve()
        for case in CASES:
            if not arguments.case or case.name in arguments.case:
                for row in pairs_of(case, out, arguments):
                    rows.append(row)
                    print(line_of(row), flush=True)
        log = stepprobe("report", "--calibration", str(out / "runs"), check=False).stdout
        log = log.replace(str(out / "runs"), "the runs")
    if arguments.write:
        arguments.write.write_text(page(rows, log, arguments, time.monotonic() - begun), encoding="utf-8")
    inside = cases_inside(rows)
    print(f"inside the predicted interval: {sum(inside.values())} of {len(inside)} changes")
    return 0


def pairs_of(case: Case, out: Path, arguments: argparse.Namespace) -> list[Row]:
    """Run the pairs of a case in turn and compare each."""
    asked = window_gain(case) if case.remedy == "window" else None
    found = []
    for number in range(arguments.pairs):
        sides = [case.before, case.after] if number % 2 == 0 else [case.after, case.before]
        with ThreadPoolExecutor(2) as pool:  # under the same load of the machine
            ran = pool.map(lambda side: observe((*case.both, *side), out, arguments.steps), sides)
            folders = dict(zip(sides, ran, strict=True))
        document = json.loads(stepprobe("compare", folders[case.before], folders[case.after], "--json").stdout)
        found.append(row_of(case, document, asked))
    return found


def observe(words: tuple[str, ...], out: Path, steps: int) -> str:
    """Train under ``stepprobe run`` and return the run folder."""
    command = [sys.executable, str(JOB), "--steps", str(steps), *words]
    done = stepprobe("run", "--json", "--out", str(out / "runs"), "--", *command)
    return json.loads(done.stdout)["run"]


def row_of(case: Case, document: dict, asked: Range | None) -> Row:
    """Return what a comparison says of the change, or of the step's own answer where no finding predicts it."""
    measured = range_of(document["figures"]["outcome.measured"])
    wall = next(row for table in document["tables"] if table["name"] == "accounts" for row in table["rows"])
    load = float(document["environment"].get("cpu.load", "nan").split()[0])
    if asked is not None:
        return Row(case.name, wall[1], asked, measured, judged(asked, measured), "the step at both lengths", load)
    for finding in document["findings"]:
        for remedy in finding["remedies"]:
            if remedy["name"] == case.remedy and remedy["outcome"]:
                predicted = range_of(remedy["predicted"])
                own = range_of(remedy["outcome"])
                source = f"finding {finding['kind']}" + (", a ceiling" if remedy["predicted"]["bound"] else "")
                return Row(case.name, wall[1], predicted, own, judged(predicted, own), source, load)
    nothing = Range(float("nan"), float("nan"), float("nan"))
    return Row(case.name, wall[1], nothing, measured, "not predicted", "; ".join(document["notes"][:3]), load)


def judged(predicted: Range, measured: Range) -> str:
    """The product's own judgement."""
    from stepprobe.model.estimate import Estimate
    from stepprobe.model.promise import judge

    one, other = (
        Estimate(value=held.value, unit="ms", low=held.low, high=held.high, n=1, method="")
        for held in (predicted, measured)
    )
    return judge(one, other)


def range_of(figure: dict) -> Range:
    """A figure of JSON as numbers."""
    low, high = (figure[end] if figure[end] is not None else float("nan") for end in ("low", "high"))
    return Range(figure["value"], low, high)


def window_gain(case: Case) -> Range:
    """Ask the step itself at both lengths, in turn: CPU ms of forward and backward saved, with its interval."""
    words = [word for word in case.both if word not in ("--spread", "0")]
    done = subprocess.run(
        [sys.executable, str(JOB.with_name("forecast_step.py")), *words],
        env=environment(),
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return Range(*json.loads(done.stdout.splitlines()[-1]))


def stepprobe(*words: str, check: bool = True) -> subprocess.CompletedProcess:
    """Run a command of stepprobe; a comparison that finds the second run slower ends with 1."""
    done = subprocess.run(
        [sys.executable, "-m", "stepprobe", *words], env=environment(), capture_output=True, text=True, check=False
    )
    slower = words[0] == "compare" and done.returncode == 1 and done.stdout
    if check and done.returncode and not slower:
        raise SystemExit(f"stepprobe {' '.join(words[:3])} ended with {done.returncode}: {done.stderr[-2000:]}")
    return done


def environment() -> dict[str, str]:
    """One thread, so that the thread's CPU time is all the work there is; no hub."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "COLUMNS": "100", "NO_COLOR": "1"}


def line_of(row: Row) -> str:
    """One line for a person."""
    predicted, measured = (
        f"{one.value:.1f} ({one.low:.1f} to {one.high:.1f})" for one in (row.predicted, row.measured)
    )
    return f"{row.case}: of {row.step_ms:.1f} ms, predicted {predicted}, came {measured}: {row.held} [{row.source}]"


def cases_inside(rows: list[Row]) -> dict[str, bool]:
    """Whether the mean gain of a case's pairs lies in the mean of its predicted intervals."""
    found = {}
    for case in dict.fromkeys(row.case for row in rows):
        own = [row for row in rows if row.case == case]
        low, high, came = (
            sum(values) / len(own)
            for values in (
                [row.predicted.low for row in own],
                [row.predicted.high for row in own],
                [row.measured.value for row in own],
            )
        )
        found[case] = low <= came <= high
    return found


def page(rows: list[Row], log: str, arguments: argparse.Namespace, seconds: float) -> str:
    """The page of the documentation."""
    inside = cases_inside(rows)
    cells = [
        f"| {row.case} | {row.step_ms:.1f} | {span(row.predicted)} | {span(row.measured)} | {row.held} "
        f"| {'yes' if row.predicted.low <= row.measured.value <= row.predicted.high else 'no'} | {row.source} |"
        for row in rows
    ]
    loads = [row.load for row in rows]
    misses = [name for name, held in inside.items() if not held]
    return "\n".join(
        [
            "# What was predicted, and what came",
            "",
            f"Made by `python bench/forecast.py --steps {arguments.steps} --write {arguments.write}` on "
            f"{platform.machine()}, {os.cpu_count()} cores, one thread a training, in {seconds / 60:.0f} minutes.",
            "",
            "Each row is a pair of real trainings of a tiny model that differ in one change and run at the same time, "
            "so that the machine is the same for both; where it was busy, the time in which a thread was put aside "
            "while it computed is left out of prediction and outcome. The prediction comes from "
            "the run before alone, the outcome from `stepprobe compare`. *Held*, *missed* and *undecided* judge the "
            "whole measured interval; *inside* asks only whether the measured value lies in the predicted interval.",
            "",
            "| change | step before, ms | predicted, ms | came, ms | judgement | inside | predicted by |",
            "|---|---:|---:|---:|---|---|---|",
            *cells,
            "",
            f"By the mean of its pairs, the gain lies inside the predicted interval in {sum(inside.values())} of "
            f"{len(inside)} changes" + (f"; outside: {', '.join(misses)}." if misses else "."),
            "",
            f"The machine was shared: {min(loads):.0f} to {max(loads):.0f} tasks wanted its {os.cpu_count()} cores. An "
            "outcome whose interval is wider than the prediction decides nothing; on a quiet machine both are "
            "narrower.",
            "",
            "A ceiling is a prediction from nothing to the most that the change can save. It is easily held, and says "
            "little; it is printed where the run cannot know more.",
            "",
            "The calibration log of these pairs (`stepprobe report --calibration`):",
            "",
            "```",
            log.rstrip(),
            "```",
            "",
        ]
    )


def span(one: Range) -> str:
    """``12.3 (10 to 14)``."""
    return f"{one.value:.1f} ({one.low:.1f} to {one.high:.1f})"


if __name__ == "__main__":
    sys.exit(main())
