"""How a micro-step grows: t = a + b·rows·length + c·rows·length², from the user's own step at a few shapes.

Three shapes decide three terms, so the residual of the fit says nothing: what it is worth is told by a shape that the
fit did not see. Its error, beyond what the scatter of the repetitions explains, is taken as the error of the form
itself at any shape, and goes into every interval.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TYPE_CHECKING

from stepprobe.analysis.distributions import t_quantile
from stepprobe.analysis.statistics import CONFIDENCE, drift, median, robust_spread

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

TERMS = 3
CONDITION = 10.0
"""Condition number of the scaled system above which the terms cannot be told apart: real fits were twice as wrong."""
BLOCKS_FEWEST = 4
"""Repetitions below which their scatter gives no interval."""
DRAWS = 400
"""Resamplings of the blocks."""
WITNESSES = 3
"""Shapes that the fit did not see from which on their errors say how far off the form is anywhere."""
MOVED = 0.05
"""Relative change from the first to the last repetition above which the clock moved; below, the order evens it out."""


@dataclass(frozen=True)
class Sample:
    """One repetition of one shape."""

    rows: int
    length: int
    block: int
    ms: float
    heldout: bool = False

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and slots of a row."""
        return self.rows, self.length


@dataclass(frozen=True)
class Refusal:
    """Why there is no fit, with the next step."""

    reason: str


@dataclass(frozen=True)
class Shape:
    """One shape: what was measured beside what the fit says."""

    rows: int
    length: int
    measured: float
    """Median in ms."""
    predicted: float
    low: float
    high: float
    repetitions: int
    heldout: bool

    @property
    def error(self) -> float:
        """Predicted over measured, less one."""
        return self.predicted / self.measured - 1


@dataclass(frozen=True)
class Work:
    """What is to be computed: micro-steps, slots, and the sum over all rows of the square of their slots."""

    batches: float
    slots: float
    squares: float

    @classmethod
    def of(cls, shapes: Sequence[tuple[int, int]]) -> "Work":
        """Return the work of micro-batches of (rows, length)."""
        return cls(
            len(shapes), sum(rows * length for rows, length in shapes), sum(rows * length**2 for rows, length in shapes)
        )

    @property
    def terms(self) -> tuple[float, float, float]:
        """The three numbers that a, b and c multiply."""
        return self.batches, self.slots, self.squares


@dataclass(frozen=True)
class Fit:
    """The three terms, in ms."""

    terms: tuple[float, float, float]
    halves: tuple[float, float, float]
    """Half-widths of the intervals that hold all three terms together in 95 % of all measurements."""
    draws: "Floats"
    """Terms of the resampled blocks, one row each."""
    condition: float
    model_error: float
    """Relative error of the form at the held-out shape, beyond what the scatter explains; 0 where none was measured."""
    heldout_error: float | None
    """Largest relative error at held-out shapes, signed: predicted over measured, less one."""
    spread: float
    """Factor on the standard deviation of ``draws`` that gives half a 95 % interval."""
    shapes: tuple[Shape, ...]
    blocks: int
    elsewhere: float = 0.0
    """Relative half-width within which 95 % of all shapes lie, judged by those of other experiments; 0: not judged."""

    def time(self, work: Work) -> tuple[float, float, float]:
        """Return the ms that some work takes, and the ends of their interval."""
        return self._around(self._of(work), self.draws @ work.terms)

    def ratio(self, after: Work, before: Work) -> tuple[float, float, float]:
        """Return the time of some work over that of other work, and the ends of its interval."""
        return self._around(
            self._of(after) / self._of(before), (self.draws @ after.terms) / (self.draws @ before.terms)
        )

    @property
    def widening(self) -> float:
        """Relative half-width that no interval goes below: it then holds what was measured at the held-out shape."""
        error = self.heldout_error or 0.0
        return max(self.model_error, abs(1 / (1 + error) - 1), self.elsewhere)

    def part(self, work: Work, term: int) -> float:
        """Return the ms of one term."""
        return self.terms[term] * work.terms[term]

    def _of(self, work: Work) -> float:
        return sum(self.part(work, term) for term in range(TERMS))

    def _around(self, value: float, drawn: "Floats") -> tuple[float, float, float]:
        half = float(((self.spread * drawn.std(ddof=1)) ** 2 + (self.widening * value) ** 2) ** 0.5)
        return value, max(0.0, value - half), value + half


def fit(samples: Sequence[Sample]) -> Fit | Refusal:
    """Fit the three terms to the medians of the shapes; samples come in the order in which they were measured."""
    fitted = _distinct(one for one in samples if not one.heldout)
    if len(fitted) < TERMS:
        return Refusal(_too_few(fitted))
    times = _times(samples, fitted)
    blocks = times.shape[1]
    if blocks < BLOCKS_FEWEST:
        return Refusal(
            f"{blocks} repetitions hold every shape, {BLOCKS_FEWEST} are needed; allow the experiments longer"
        )
    if moved := _moved(samples):
        return Refusal(moved)
    design, middles = _design(fitted), _medians(times)
    terms, condition = _terms(design, middles[None])[0], _condition(design, middles)
    if condition > CONDITION:
        return Refusal(
            f"the shapes {listed(fitted)} cannot tell the three terms apart (condition {condition:,.3g}, at most "
            f"{CONDITION:g} is believed); add {_better(fitted, terms)}"
        )
    found = Fit(
        terms=_three(terms),
        halves=(0.0, 0.0, 0.0),
        draws=_terms(design, _resampled(times)),
        condition=condition,
        model_error=0.0,
        heldout_error=None,
        spread=t_quantile((1 + CONFIDENCE) / 2, blocks - 1),
        shapes=(),
        blocks=blocks,
    )
    return _checked(found, samples, fitted, middles)


def witnessed(found: Fit, samples: Sequence[Sample]) -> Fit:
    """Let the shapes of other experiments say, too, how far the form is off where the fit did not look.

    One held-out shape can lie on the curve by chance. Where there are ``WITNESSES`` or more, their errors are taken as
    drawn from all errors of the form, and every interval is as wide as 95 % of those.
    """
    known = {(one.rows, one.length) for one in found.shapes}
    off = [abs(one.error) for one in found.shapes if one.heldout]
    for shape in _distinct(one for one in samples if one.shape not in known):
        off.append(abs(found.time(Work.of([shape]))[0] / median([one.ms for one in samples if one.shape == shape]) - 1))
    if len(off) < WITNESSES:
        return found
    usual = (sum(error**2 for error in off) / len(off)) ** 0.5
    wider = replace(found, elsewhere=usual * t_quantile((1 + CONFIDENCE) / 2, len(off)))
    return replace(wider, shapes=tuple(_again(one, wider) for one in found.shapes))


def _again(shape: Shape, found: Fit) -> Shape:
    predicted, low, high = found.time(Work.of([(shape.rows, shape.length)]))
    return replace(shape, predicted=predicted, low=low, high=high)


def per_row(points: Sequence[tuple[float, float]]) -> tuple[float, float] | None:
    """Return (ms a micro-step, ms a row) from (rows, ms) at one length; None with fewer than three points.

    A large second term with a small first one: the device is full already, and more rows bring nothing.
    """
    if len({rows for rows, _ in points}) < TERMS:
        return None
    middle_rows, middle_ms = (sum(column) / len(points) for column in zip(*points, strict=True))
    spread = sum((rows - middle_rows) ** 2 for rows, _ in points)
    slope = sum((rows - middle_rows) * (ms - middle_ms) for rows, ms in points) / spread
    return middle_ms - slope * middle_rows, slope


def listed(shapes: Sequence[tuple[int, int]]) -> str:
    """Return shapes as a person writes them."""
    return ", ".join(f"{rows}×{length}" for rows, length in shapes)


def _checked(found: Fit, samples: Sequence[Sample], fitted: Sequence[tuple[int, int]], middles: "Floats") -> Fit:
    """Hold the fit against the shapes that it did not see, and widen its intervals by what they show."""
    heldout = _distinct(one for one in samples if one.heldout)
    errors, beyond = [], 0.0
    for shape in heldout:
        values = [one.ms for one in samples if one.shape == shape]
        predicted, low, high = found.time(Work.of([shape]))
        error = median(values) / predicted - 1
        errors.append(predicted / median(values) - 1)
        noise = ((high - low) / 2 / predicted) ** 2 + (found.spread * _median_error(values) / median(values)) ** 2
        beyond = max(beyond, max(0.0, error**2 - noise) ** 0.5)
    worst = max(errors, key=abs, default=None)
    halves = _halves(found, _design(fitted) / middles[:, None], beyond)
    widened = replace(found, halves=halves, model_error=beyond, heldout_error=worst)
    return replace(widened, shapes=tuple(_shape(shape, samples, widened) for shape in (*fitted, *heldout)))


def _shape(shape: tuple[int, int], samples: Sequence[Sample], found: Fit) -> Shape:
    values = [one.ms for one in samples if one.shape == shape]
    heldout = any(one.heldout for one in samples if one.shape == shape)
    predicted, low, high = found.time(Work.of([shape]))
    return Shape(*shape, median(values), predicted, low, high, len(values), heldout)


def _median_error(values: Sequence[float]) -> float:
    """Return the standard error of a median, as for normal noise, from the robust spread."""
    return float(1.2533 * robust_spread(values) * median(values) / len(values) ** 0.5)


def _too_few(fitted: Sequence[tuple[int, int]]) -> str:
    seen = (
        f"only {listed(fitted)} {'was' if len(fitted) == 1 else 'were'} measured" if fitted else "nothing was measured"
    )
    return (
        f"{seen}, and three terms need three shapes: two points fit where they lie and can be wrong by a factor of "
        "two elsewhere; add few rows of few tokens, many rows of few tokens, or few rows of many tokens"
    )


def _moved(samples: Sequence[Sample]) -> str:
    """Say so when the same step became slower or faster from the first repetition to the last."""
    usual = {shape: median([one.ms for one in samples if one.shape == shape]) for shape in _distinct(samples)}
    trend = drift([one.ms / usual[one.shape] for one in samples])
    if not trend.matters or abs(trend.change) < MOVED:
        return ""
    word = "longer" if trend.change > 0 else "shorter"
    return (
        f"the clock moved: the same shapes take {abs(trend.change):.0%} {word} at the end than at the beginning; "
        "let the machine reach its steady temperature and load, then measure again"
    )


def _distinct(samples: Iterable[Sample]) -> list[tuple[int, int]]:
    return sorted({one.shape for one in samples})


def _times(samples: Sequence[Sample], fitted: Sequence[tuple[int, int]]) -> "Floats":
    """Return ms by shape and block, for the blocks that hold every shape."""
    import numpy as np

    held: dict[tuple[int, int], dict[int, float]] = {shape: {} for shape in fitted}
    for one in samples:
        if not one.heldout:
            held[one.shape][one.block] = one.ms
    whole = sorted(set.intersection(*(set(blocks) for blocks in held.values())))
    return np.array([[held[shape][block] for block in whole] for shape in fitted], float).reshape(len(fitted), -1)


def _design(shapes: Sequence[tuple[int, int]]) -> "Floats":
    import numpy as np

    return np.array([Work.of([shape]).terms for shape in shapes], float)


def _medians(times: "Floats") -> "Floats":
    import numpy as np

    return np.asarray(np.median(times, axis=-1))


def _condition(design: "Floats", middles: "Floats") -> float:
    import numpy as np

    relative = design / middles[:, None]
    return float(np.linalg.cond(relative / relative.max(axis=0)))


def _terms(design: "Floats", middles: "Floats") -> "Floats":
    """Return the terms that fit each row of medians best: least relative squares, no term below zero.

    The best of all subsets of the terms whose free solution is not negative; with three terms there are seven.
    """
    import numpy as np

    relative = design[None] / middles[:, :, None]
    scale = relative.max(axis=1, keepdims=True)
    scaled = relative / scale
    best = np.zeros((len(middles), TERMS))
    least = np.full(len(middles), np.inf)
    for count in range(1, TERMS + 1):
        for kept in combinations(range(TERMS), count):
            columns = scaled[:, :, kept]
            solved = np.linalg.pinv(columns).sum(axis=2)
            rest = ((columns @ solved[:, :, None])[:, :, 0] - 1) ** 2
            better = (solved >= 0).all(axis=1) & (rest.sum(axis=1) < least - 1e-18)
            least[better] = rest.sum(axis=1)[better]
            best[better] = 0.0
            best[np.ix_(better, kept)] = solved[better]
    return np.asarray(best / scale[:, 0, :])


def _resampled(times: "Floats") -> "Floats":
    """Return the medians of blocks that are drawn again and again; a block keeps its shapes together."""
    import numpy as np

    blocks = times.shape[1]
    drawn = np.random.default_rng(0).integers(0, blocks, (DRAWS, blocks))
    return np.asarray(np.median(times[:, drawn], axis=2).T)


def _halves(found: Fit, relative: "Floats", model_error: float) -> tuple[float, float, float]:
    """Return half-widths that hold all three terms at once.

    To the scatter of the repetitions comes the error of the form: as much as at the held-out shape may sit in each of
    the fitted ones, and a term answers for it by the inverse of the system.
    """
    import numpy as np

    level = t_quantile(1 - (1 - CONFIDENCE) / 2 / TERMS, found.blocks - 1)
    scatter = level * found.draws.std(axis=0, ddof=1)
    form = model_error * np.sqrt((np.linalg.pinv(relative) ** 2).sum(axis=1))
    return _three(np.hypot(scatter, form))


def _better(fitted: Sequence[tuple[int, int]], terms: "Floats") -> str:
    """Name the shape whose measurement would separate the terms best, among those around the measured ones."""
    rows, lengths = ([shape[axis] for shape in fitted] for axis in (0, 1))
    few, short = min(rows), min(lengths)
    many, long = max(8 * few, max(rows)), max(8 * short, max(lengths))
    usual = terms if (terms > 0).any() else [1.0, 0.0, 0.0]
    best, least = "", float("inf")
    for shape in ((few, short), (many, short), (few, long), (many, long)):
        if shape in fitted:
            continue
        design = _design([*fitted, shape])
        condition = _condition(design, design @ usual)
        if condition < least:
            best, least = f"{shape[0]} rows of {shape[1]} tokens", condition
    return best or "shapes that differ in rows at one length, and in length at one number of rows"


def _three(values: "Floats") -> tuple[float, float, float]:
    return float(values[0]), float(values[1]), float(values[2])
