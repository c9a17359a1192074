"""Time that steps with a first-seen batch shape take above the steady step: compilation, autotuning, fresh memory."""

import re
from collections.abc import Sequence

import msgspec

from stepprobe.analysis.ledger.process import NS_PER_MS, Process
from stepprobe.analysis.statistics import Line, fit_line, median
from stepprobe.model.records import Step

RECTANGLE = re.compile(r"(\d+)×(\d+)( masked)?")
"""Shape of input ids of rows × slots, as it is written into evidence; which of three dimensions holds the slots is not
known."""
EXPLAINED_ENOUGH = 0.5
"""R² from which a line through slots predicts a step better than the median does."""
SEEN_FEWEST = 3
"""Steps of known shapes needed to know what a steady step takes."""


class FirstSeen(msgspec.Struct, frozen=True, kw_only=True):
    """Steps after the first one that held a new shape."""

    steps: int
    excess_ms: float
    """Wall time of those steps above what steps of known shapes with as many slots take, summed; below zero: none."""
    each_ms: tuple[float, ...]
    """The excess of each."""
    wall_ms: float
    """Wall time of everything seen."""
    steady_ms: float
    """Median step of known shapes after the warm-up."""
    unplaced: int
    """First-seen shapes in steps that are kept only in sums: their time could not be told apart."""

    @property
    def share(self) -> float:
        """Part of the wall time of everything seen that the excess takes."""
        return max(0.0, self.excess_ms) / self.wall_ms


def first_seen(process: Process) -> FirstSeen | None:
    """Return what first-seen shapes took; None when no steady step of known shapes was kept.

    The first step is left out: its shape is new by necessity, and what it takes more is the start of the run.
    """
    seen = [step for step in process.steady if not step.counters.get("new_shapes")]
    if len(seen) < SEEN_FEWEST:
        return None
    new = [step for step in process.finished if step.counters.get("new_shapes") and step.index > 0]
    line = steady_line([step.counters.get("slots", 0) for step in seen], [step.wall_ns for step in seen])
    steady = median([step.wall_ns for step in seen])
    each = tuple((step.wall_ns - _expected(step, line, steady)) / NS_PER_MS for step in new)
    return FirstSeen(
        steps=len(new),
        excess_ms=sum(each),
        each_ms=each,
        wall_ms=sum(one.wall_ns for one in process.everything) / NS_PER_MS,
        steady_ms=steady / NS_PER_MS,
        unplaced=sum(summary.counters.get("new_shapes", 0) for summary in process.records.summaries),
    )


def steady_line(slots: Sequence[int], ns: Sequence[int]) -> Line | None:
    """Return ns by slots over steps of known shapes, where slots explain enough of it."""
    line = fit_line(slots, ns)
    return line if line and line.slope > 0 and line.explained >= EXPLAINED_ENOUGH else None


def _expected(step: Step, line: Line | None, steady: float) -> float:
    return line.intercept + line.slope * step.counters.get("slots", 0) if line else steady


def mean_rows(process: Process) -> float | None:
    """Return the mean rows of a micro-batch, from the shapes that were counted; None where none was."""
    counted = rectangles(process)
    batches = sum(times for _, _, times in counted)
    return sum(rows * times for rows, _, times in counted) / batches if batches else None


def rectangles(process: Process) -> list[tuple[int, int, int]]:
    """Return rows, slots and times of the shapes that were counted, in the order of the evidence."""
    shapes = process.records.sites.shapes if process.records.sites else []
    return [(int(match[1]), int(match[2]), times) for shape, times in shapes if (match := RECTANGLE.fullmatch(shape))]
