"""How far the fit of ``stepprobe profile`` is off at shapes that it did not see, over several runs of the example.

    python bench/heldout.py                                     # five runs of examples/sft_trainer.py, thread CPU time
    python bench/heldout.py --write docs/heldout.md             # and the page of the documentation

Two kinds of shapes: the held-out point, whose error widens every interval (so that the interval contains it by
construction), and those of the other experiments (padding, equal tokens, the usual shape): each of them is held against
the intervals that all the others have widened.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

EXAMPLE = Path(__file__).parent.parent / "examples" / "sft_trainer.py"


class Shape(NamedTuple):
    """A shape that the fit did not see."""

    rows: int
    length: int
    ms: float
    low: float
    predicted: float
    high: float

    @property
    def error(self) -> float:
        """Predicted over measured, less one."""
        return self.predicted / self.ms - 1

    @property
    def inside(self) -> bool:
        """Whether the interval of the prediction contains what was measured."""
        return self.low <= self.ms <= self.high


class Run(NamedTuple):
    """One run of the example."""

    heldout: Shape | None
    others: tuple[Shape, ...]
    why: str
    load: float


def main() -> int:
    """Run, print, and write the page when asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=60, help="that the experiments of a run may take")
    parser.add_argument("--anyway", action="store_true", help="on a busy machine, too")
    parser.add_argument("--write", type=Path, help="write the page of the documentation")
    arguments = parser.parse_args()
    runs = []
    with tempfile.TemporaryDirectory() as scratch:
        for number in range(arguments.runs):
            runs.append(asked(Path(scratch), arguments))
            print(f"run {number + 1}: {said(runs[-1])}", flush=True)
    print("\n".join(verdict(runs)))
    if arguments.write:
        arguments.write.write_text(page(runs, arguments), encoding="utf-8")
    return 0


def asked(out: Path, arguments: argparse.Namespace) -> Run:
    """Profile the example once."""
    from stepprobe import store
    from stepprobe.analysis.profile import growth
    from stepprobe.analysis.profile.answers import read_answers
    from stepprobe.analysis.profile.scaling import Fit

    words = ["profile", "--json", "--steps", "5", "--time", str(arguments.seconds), "--out", str(out)]
    words += ["--anyway"] if arguments.anyway else []
    done = subprocess.run(
        [sys.executable, "-m", "stepprobe", *words, "--", sys.executable, str(EXAMPLE), "--steps", "20"],
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if not done.stdout.startswith("{"):
        raise SystemExit(f"stepprobe profile ended with {done.returncode}: {done.stderr[-2000:]}")
    document = json.loads(done.stdout)
    load = float(document["environment"].get("cpu.load", "nan").split()[0])
    if document.get("run") is None:  # the machine was too busy for the script to be started
        return Run(None, (), document["headline"], load)
    answers, _ = read_answers(store.load(Path(document["run"])))
    found = growth.fitted(answers) if answers else None
    if not isinstance(found, Fit):
        return Run(None, (), found.reason if found else document["headline"], load)
    held = next((one for one in found.shapes if one.heldout), None)
    heldout = held and Shape(held.rows, held.length, held.measured, held.low, held.predicted, held.high)
    return Run(heldout, tuple(elsewhere(answers)), "" if held else "no shape was held out", load)


def elsewhere(answers) -> list[Shape]:
    """Shapes of the other experiments, each held against the fit that all but this one have widened."""
    from stepprobe.analysis.profile.scaling import Work, fit, witnessed

    found = fit(answers.samples)
    known = {(one.rows, one.length) for one in found.shapes}
    shapes = []
    for shape in sorted({one.shape for one in answers.witnesses} - known):
        others = [one for one in answers.witnesses if one.shape != shape]
        value, low, high = witnessed(found, others).time(Work.of([shape]))
        spent = [one.ms for one in answers.witnesses if one.shape == shape]
        shapes.append(Shape(*shape, statistics.median(spent), low, value, high))
    return shapes


def said(run: Run) -> str:
    """One line for a person."""
    if run.heldout is None:
        return run.why
    inside = sum(one.inside for one in run.others)
    worst = max((abs(one.error) for one in run.others), default=float("nan"))
    return (
        f"held out {of(run.heldout)}; other shapes: {inside} of {len(run.others)} inside, the worst {worst:.1%} off; "
        f"load {run.load:.1f}"
    )


def of(shape: Shape) -> str:
    """A shape, its error and its interval."""
    word = "contains" if shape.inside else "does not contain"
    return (
        f"{shape.rows} × {shape.length}: {shape.error:+.1%}, the interval {shape.low:.2f} to {shape.high:.2f} ms "
        f"{word} {shape.ms:.2f} ms"
    )


def verdict(runs: list[Run]) -> list[str]:
    """The two sentences that are asked for."""
    errors = [abs(run.heldout.error) for run in runs if run.heldout]
    others = [one for run in runs for one in run.others]
    if not errors:
        return ["no run held a shape out"]
    inside = sum(run.heldout.inside for run in runs if run.heldout)
    lines = [
        f"Held-out error {statistics.median(errors):.1%} at the median of {len(errors)} runs, {max(errors):.1%} at "
        f"worst; the interval contains the held-out truth in {inside} of {len(errors)}."
    ]
    if others:
        off = [abs(one.error) for one in others]
        lines.append(
            f"At {len(others)} shapes of other experiments the fit is {statistics.median(off):.1%} off at the median, "
            f"{max(off):.1%} at worst; its interval contains {sum(one.inside for one in others)} of them."
        )
    return lines


def page(runs: list[Run], arguments: argparse.Namespace) -> str:
    """The page of the documentation."""
    options = "".join(
        (
            f" --runs {arguments.runs}" if arguments.runs != 5 else "",
            f" --seconds {arguments.seconds:g}" if arguments.seconds != 60 else "",
            " --anyway" if arguments.anyway else "",
        )
    )
    loads = [run.load for run in runs]
    rows = [
        f"| {number} | {one.rows} × {one.length} | {one.ms:.2f} "
        f"| {one.predicted:.2f} ({one.low:.2f} to {one.high:.2f}) | {one.error:+.1%} "
        f"| {'yes' if one.inside else '**no**'} | {sum(other.inside for other in run.others)} of {len(run.others)} |"
        for number, run in enumerate(runs, 1)
        if (one := run.heldout)
    ]
    refused = [f"Run {number} gave no fit: {run.why}." for number, run in enumerate(runs, 1) if not run.heldout]
    return "\n".join(
        [
            "# How far the fit is off where it did not look",
            "",
            f"Made by `python bench/heldout.py{options} --write {arguments.write}` on {platform.machine()}, "
            f"{os.cpu_count()} cores, thread CPU time; {min(loads):.0f} to {max(loads):.0f} tasks wanted the cores in "
            "the minute before a run.",
            "",
            f"Each run is `stepprobe profile` of `examples/{EXAMPLE.name}`, which knows nothing of the others.",
            "",
            "| run | held out | measured, ms | fit, ms | error | contained | other shapes contained |",
            "|---:|---|---:|---:|---:|---|---:|",
            *rows,
            "",
            *refused,
            *verdict(runs),
            "",
            "The interval contains the held-out point by construction: its error widens every interval of the fit. The "
            "other shapes are an independent test: they belong to the experiments on padding, on equal tokens and on "
            "remedies, and each is held against intervals that all the others have widened, but not it.",
            "",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
