"""What ``stepprobe profile`` forecast beside what came: six changes to a tiny training, each made for real.

    python bench/forecast.py --draw 7                                # six pairs of trainings
    python bench/forecast.py --draw 7 8 --write docs/forecasts.md    # twelve, and the table of the documentation
    python bench/forecast.py --draw 7 --case packing

The training before runs under ``stepprobe profile``, which forecasts; the one after under ``stepprobe run``; the
outcome is that of ``stepprobe compare``. What each draw holds is said in ``forecast_cases.py``. Both trainings of a
pair begin at the same time, so that a machine that is busy with other things is so for both.
"""

import argparse
import json
import math
import os
import platform
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from forecast_cases import Case, cases

JOB = Path(__file__).with_name("forecast_job.py")
SECONDS = 40
"""Of the experiments."""
TRIES = 2
"""Of a pair whose profile refuses to fit its points, since the machine changed meanwhile, or runs out of seconds."""


class Range(NamedTuple):
    """Milliseconds per step with their 95 % interval."""

    value: float
    low: float
    high: float

    @property
    def width(self) -> float:
        """Length of the interval over the value."""
        return (self.high - self.low) / abs(self.value) if self.value else math.inf


NOTHING = Range(math.nan, math.nan, math.nan)


class Row(NamedTuple):
    """One pair of runs."""

    draw: int
    case: str
    step_ms: float
    predicted: Range
    measured: Range
    verdict: str
    ceiling: bool
    aside: str
    """What else is to be said of it."""
    load: float
    """Runnable tasks of the machine in the minute before the run after."""

    @property
    def inside(self) -> bool:
        """Whether the measured gain lies in the predicted interval."""
        return self.predicted.low <= self.measured.value <= self.predicted.high

    @property
    def decided(self) -> bool:
        """Whether the whole measured interval lies inside or outside."""
        return not self.verdict.startswith("un")


def main() -> int:
    """Run, print, and write the page when asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draw", type=int, nargs="+", required=True, help="numbers from which all sizes follow")
    parser.add_argument("--case", action="append", help="only this change")
    parser.add_argument("--at-once", type=int, default=1, help="pairs that run beside each other (default: 1)")
    parser.add_argument("--out", type=Path, help="keep the run folders there")
    parser.add_argument("--write", type=Path, help="write the page of the documentation")
    arguments = parser.parse_args()
    begun, rows = time.monotonic(), []
    with tempfile.TemporaryDirectory() as scratch:
        out = (arguments.out or Path(scratch)).resolve()
        chosen = [(draw, case) for draw in arguments.draw for case in cases(draw)]
        chosen = [one for one in chosen if not arguments.case or one[1].forecast in arguments.case]
        with ThreadPoolExecutor(arguments.at_once) as pool:
            for row in pool.map(lambda one: pair(*one, out), chosen):
                rows.append(row)
                print(line_of(row), flush=True)
        log = stepprobe("report", "--calibration", str(out), check=False).stdout.replace(str(out), "the runs")
        if arguments.write:
            arguments.write.write_text(page(rows, log, arguments, time.monotonic() - begun), encoding="utf-8")
    print(summary(rows))
    return 0


def pair(draw: int, case: Case, out: Path) -> Row:
    """Run both trainings at the same time and compare them; again where the profile refused to fit what it saw."""
    before = ("profile", "--anyway", "--steps", str(case.steps), "--time", str(SECONDS))
    refused: list[str] = []
    while True:
        with ThreadPoolExecutor(2) as pool:
            first = pool.submit(observe, before, (*case.both, *case.before), 2 * case.steps, out)
            second = pool.submit(observe, ("run",), (*case.both, *case.after), case.steps_after, out)
            profiled, ran = first.result(), second.result()
        if f"forecast.{case.forecast}" in profiled["figures"] or len(refused) == TRIES - 1:
            break
        fit = profiled["verdict"] == "not measured"
        refused.append(profiled["headline"].partition(";")[0] if fit else "not asked in the seconds that there were")
        print(f"{draw} {case.name}: {refused[-1]}; once more", flush=True)
    row = row_of(draw, case, json.loads(stepprobe("compare", profiled["run"], ran["run"], "--json").stdout))
    return row._replace(aside="; ".join([*refused, *filter(None, [row.aside])]))


def observe(command: tuple[str, ...], words: tuple[str, ...], steps: int, out: Path) -> dict:
    """Train under a command of stepprobe and return its report."""
    script = (sys.executable, str(JOB), "--steps", str(steps), *words)
    return json.loads(stepprobe(*command, "--json", "--out", str(out), "--", *script).stdout)


def row_of(draw: int, case: Case, document: dict) -> Row:
    """Return what a comparison says of the forecast of a change."""
    measured = range_of(document["figures"].get("outcome.measured"))
    wall = document["figures"].get("step.wall", {"value": math.nan})["value"]
    load = float(document["environment"].get("cpu.load", "nan").split()[0])
    name = f"forecast.{case.forecast}"
    told = {one["name"]: one for finding in document["findings"] for one in finding["remedies"]}
    if name not in told or not told[name]["predicted"]:
        why = "; ".join(document["notes"][:2])
        return Row(draw, case.name, wall, NOTHING, measured, "unseen", False, why, load)
    promise = told[name]
    predicted, aside = range_of(promise["predicted"]), []
    if promise["outcome"]:
        measured = range_of(promise["outcome"])
    else:
        aside.append(f"seen with {', '.join(sorted(set(told) - {name}))}, so by the whole step")
    if case.says not in promise["action"]:
        aside.append(f"forecast for “{promise['action']}”")
    verdict = judged(predicted, measured)
    return Row(
        draw, case.name, wall, predicted, measured, verdict, promise["predicted"]["bound"], "; ".join(aside), load
    )


def judged(predicted: Range, measured: Range) -> str:
    """The product's own judgement."""
    from stepprobe.model.estimate import Estimate
    from stepprobe.model.promise import judge

    one, other = (
        Estimate(value=held.value, unit="ms", low=held.low, high=held.high, n=1, method="")
        for held in (predicted, measured)
    )
    return judge(one, other)


def range_of(figure: dict | None) -> Range:
    """A figure of JSON as numbers."""
    if figure is None:
        return NOTHING
    low, high = (figure[end] if figure[end] is not None else math.nan for end in ("low", "high"))
    return Range(figure["value"], low, high)


def stepprobe(*words: str, check: bool = True) -> subprocess.CompletedProcess:
    """Run a command of stepprobe; one that finds the second run slower ends with 1, one that refuses to say with 3."""
    done = subprocess.run(
        [sys.executable, "-m", "stepprobe", *words], env=environment(), capture_output=True, text=True, check=False
    )
    if check and done.returncode and not (done.returncode in (1, 3) and done.stdout):
        raise SystemExit(f"stepprobe {' '.join(words[:3])} ended with {done.returncode}: {done.stderr[-2000:]}")
    return done


KEPT_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 34),
    "MALLOC_TOP_PAD_": str(1 << 26),
}
"""The C library keeps what was freed, as PyTorch's allocator does on a card. By default it gives large blocks back, and
whether a step faults them in again hangs on what lies behind them: a tenth to a half of a step, one way in the script
and the other where the step is driven (docs/log.md)."""


def environment() -> dict[str, str]:
    """One thread, so that the thread's CPU time is all the work there is; memory that is kept; no hub."""
    fixed = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "COLUMNS": "100", "NO_COLOR": "1"}
    return {**os.environ, **KEPT_MEMORY, **fixed}


def line_of(row: Row) -> str:
    """One line for a person."""
    return (
        f"{row.draw} {row.case}: of {row.step_ms:.1f} ms, predicted {span(row.predicted)}, width "
        f"{row.predicted.width:.0%}, came {span(row.measured)}: {word(row)}, {row.verdict}"
        f"{' (a ceiling)' if row.ceiling else ''}{f' [{row.aside}]' if row.aside else ''}; load {row.load:.1f}"
    )


def word(row: Row) -> str:
    """Inside or not; or nothing was forecast."""
    if math.isnan(row.predicted.value):
        return "not forecast"
    return "inside" if row.inside else "outside"


def summary(rows: list[Row]) -> str:
    """The counts, in a sentence or two."""
    by_case = {name: [row for row in rows if row.case == name] for name in dict.fromkeys(row.case for row in rows)}
    whole = [name for name, own in by_case.items() if all(row.inside for row in own)]
    decided = [row for row in rows if row.decided]
    held = sum(row.verdict == "held" for row in decided)
    misses = "; ".join(f"{row.case} (draw {row.draw}, {word(row)})" for row in rows if not row.inside)
    widths = sorted(row.predicted.width for row in rows if not math.isnan(row.predicted.value))
    middle = f"{widths[len(widths) // 2]:.0%}" if widths else "none"
    return (
        f"The measured gain lies inside the predicted interval in {sum(row.inside for row in rows)} of {len(rows)} "
        f"pairs, in all pairs of {len(whole)} of {len(by_case)} changes"
        f"{f'; not so: {misses}' if misses else ''}. {held} of the {len(decided)} pairs that are decided held. The "
        f"predicted interval is {middle} of its value wide at the median, and {sum(row.ceiling for row in rows)} of "
        "the forecasts are ceilings."
    )


def page(rows: list[Row], log: str, arguments: argparse.Namespace, seconds: float) -> str:
    """The page of the documentation."""
    cells = [
        f"| {row.case} | {row.draw} | {row.step_ms:.1f} | {span(row.predicted)} | {percent(row.predicted.width)} "
        f"| {span(row.measured)} | {'yes' if row.inside else '**no**'} "
        f"| {row.verdict if row.decided else 'undecided'} |"
        for row in rows
    ]
    asides = [f"- {row.case}, draw {row.draw}: {row.aside}." for row in rows if row.aside]
    loads = [row.load for row in rows]
    command = f"python bench/forecast.py --draw {' '.join(map(str, arguments.draw))}"
    command += f"{f' --at-once {arguments.at_once}' if arguments.at_once != 1 else ''} --write {arguments.write}"
    return "\n".join(
        [
            "# What was predicted, and what came",
            "",
            f"Made by `{command}` on {platform.machine()}, {os.cpu_count()} cores, one thread a training, freed memory "
            f"kept as on a card (docs/log.md), in {seconds / 60:.0f} minutes.",
            "",
            "Each row is a pair of real trainings of a tiny model that differ in one change. The one before ran under "
            "`stepprobe profile`, whose `forecast.<remedy>` is the prediction: it had seen nothing of the one after. "
            "The outcome is that of `stepprobe compare BEFORE AFTER`. All sizes, lengths and seeds follow from the "
            "number of the draw (`bench/forecast_cases.py`); these draws were first run after the last change of a "
            "rule, and every pair of them is shown.",
            "",
            "| change | draw | step, ms | would save, ms | width | saved, ms | inside | verdict |",
            "|---|---:|---:|---:|---:|---:|---|---|",
            *cells,
            "",
            "*Inside*: the measured value lies in the predicted interval. *Verdict*: the product's own, which asks for "
            "the whole measured interval; where that reaches over an end of the prediction, nothing is decided. "
            "*Width*: of the predicted interval, as part of its value.",
            "",
            summary(rows),
            *(["", *asides] if asides else []),
            "",
            f"The machine was shared: a load of {min(loads):.1f} to {max(loads):.1f} on {os.cpu_count()} cores in "
            "the minute before a run after, so every profile ran with `--anyway`. Both trainings of a pair begin at "
            "the same time, and `compare` leaves out the time in which a thread was put aside while it computed. What "
            "it cannot leave out is that caches, memory and the other half of a core are shared: a busy machine makes "
            "the CPU time of a step itself larger, by another amount from minute to minute. That widens the measured "
            "interval, so pairs stay undecided, and it moves the measured value.",
            "",
            "The calibration log of these pairs (`stepprobe report --calibration`):",
            "",
            "```",
            log.rstrip(),
            "```",
            "",
        ]
    )


def percent(share: float) -> str:
    """``12%``."""
    return "–" if math.isnan(share) else f"{share:.0%}"


def span(one: Range) -> str:
    """``12.3 (10 to 14)``."""
    if math.isnan(one.value):
        return "–"
    return f"{one.value:.1f} ({one.low:.1f} to {one.high:.1f})"


if __name__ == "__main__":
    sys.exit(main())
