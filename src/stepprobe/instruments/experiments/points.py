"""Which shapes tell the three parts of t = a + b·B·L + c·B·L² apart, as well as pilot times can say.

Everything here is arithmetic on a handful of points, in plain Python. ``analysis`` fits again, from all repetitions and
with intervals; what is fitted here only chooses points and foretells what they take.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from stepprobe.instruments.experiments.plan import Plan, Point

WORST_CONDITION = 10.0
"""Above it a fit predicts badly: over designs of a real model, the median error more than doubled from 10 to 30."""
GOOD_CONDITION = 5.0
"""Below it nothing is gained by going further out."""
QUADRATIC_SHARE = 0.1
"""Part of a step at the longest point that c·B·L² should be, or c is read off the noise."""
SPREAD = 4
"""The shortest rows are that much shorter than the run's longest, and the fewest rows that much fewer."""
LONGEST = 16
"""No point has rows that are longer than the run's by more than this."""
MOST_TOKENS = 4
"""No point has more tokens than the run's largest micro-batch by more than this."""

Row = tuple[float, float, float]
_WITHOUT: Row = (0.0, 0.0, 0.0)


class Seen(NamedTuple):
    """The shapes of the run."""

    rows: int
    longest: int
    shortest: int
    """Slots of the shortest micro-batch."""
    tokens: int
    """Slots of the largest micro-batch."""


class Design(NamedTuple):
    """Where the fit is measured: two numbers of rows, two lengths."""

    rows: Point
    """(fewest, most)."""
    lengths: Point
    """(shortest, longest)."""

    @property
    def points(self) -> tuple[Point, Point, Point]:
        """The three points of the fit, smallest first."""
        (few, many), (short, long) = self
        return (few, short), (many, short), (few, long)

    @property
    def heldout(self) -> Point:
        """The point in the middle: geometric means, so that none of the three parts decides alone."""
        (few, many), (short, long) = self
        rows = min(many, max(few + 1, round(math.sqrt(few * many))))
        return rows, min(long, max(short, aligned(round(math.sqrt(short * long)))))


def aligned(length: int) -> int:
    """Return a length that kernels like: a multiple of 8 where that changes it little."""
    return length if length < 64 else -(-length // 8) * 8


def seen(batches: Sequence[Sequence[int]]) -> "Seen | None":
    """Return the shapes of the micro-batches that were seen; None where none was."""
    shapes = [(len(batch), max(batch)) for batch in batches if batch and max(batch) > 0]
    if not shapes:
        return None
    lengths = [length for _, length in shapes]
    tokens = max(rows * length for rows, length in shapes)
    return Seen(max(rows for rows, _ in shapes), max(lengths), min(lengths), tokens)


def first_design(shapes: Seen, longest: int | None) -> Design:
    """Return the design to begin with: it has the run's largest micro-batch in the middle."""
    most = longest or shapes.longest  # a model without a known limit may index a table of positions beyond its end
    long = min(most, max(shapes.longest, min(shapes.tokens, aligned(2 * shapes.longest))))
    short = min(aligned(max(1, shapes.longest // SPREAD)), shapes.shortest, max(1, long // 2))
    rows = max(SPREAD, shapes.rows, -(-shapes.tokens // short))
    return Design((1, rows), (short, long))


def wider(design: Design, shapes: Seen, longest: int | None) -> list[Design]:
    """Return designs that reach further by a factor of two in one direction, within bounds."""
    (few, many), (short, long) = design
    most = min(longest or shapes.longest, shapes.longest * LONGEST)
    budget = MOST_TOKENS * shapes.tokens
    found = []
    if long < most and few * min(most, 2 * long) <= budget:
        found.append(Design((few, many), (short, min(most, 2 * long))))
    if 2 * many * short <= budget:
        found.append(Design((few, 2 * many), (short, long)))
    if short >= 16:
        found.append(Design((few, many), (short // 2, long)))
    return found


def why_refused(points: Sequence[Point]) -> str:
    """Return why no fit can come from points that a user named; empty where one can."""
    distinct = sorted(set(points))
    lengths, rows = {length for _, length in distinct}, {count for count, _ in distinct}
    if len(distinct) < 3:
        return (
            f"{len(distinct)} points cannot tell three parts apart: two always fit, whatever the truth. "
            "Name three: (1, short), (many, short), (1, long)"
        )
    if len(lengths) == 1:
        length = lengths.pop()
        return (
            f"all points have rows of {length}: there B·L and B·L² are proportional, so nothing tells them apart. "
            f"Add a point of another length, such as (1, {4 * length})"
        )
    if len(rows) == 1:
        length = min(lengths)
        return (
            f"all points have {min(rows)} rows, and the fixed part is then read off a curve over the length alone. "
            f"Add a point of more rows, such as ({8 * min(rows)}, {length})"
        )
    return ""


def terms(point: Point) -> Row:
    """Return what a, b and c are multiplied by."""
    rows, length = point
    return 1.0, float(rows * length), float(rows * length * length)


def condition(times: Mapping[Point, float]) -> float:
    """Return the condition number of the system that is solved: rows over their times, columns scaled to at most 1."""
    table = _scaled(times)[0]
    values = _eigenvalues([[sum(row[i] * row[j] for row in table) for j in range(3)] for i in range(3)])
    least, most = min(values), max(values)
    return math.sqrt(most / least) if least > 1e-14 * most else math.inf


def pilot_fit(values: Mapping[Point, float]) -> Row:
    """Return a, b, c ≥ 0 with the least relative squares: from times, or from bytes."""
    table, scale = _scaled(values)
    best, found = math.inf, _WITHOUT
    for size in (1, 2, 3):
        for chosen in itertools.combinations(range(3), size):
            solved = _least_squares([[row[i] for i in chosen] for row in table])
            if solved is None or min(solved) < -1e-12:
                continue
            whole = [0.0] * 3
            for i, value in zip(chosen, solved, strict=True):
                whole[i] = value
            rest = sum((1 - sum(a * b for a, b in zip(row, whole, strict=True))) ** 2 for row in table)
            if rest < best - 1e-15:
                best, found = rest, (whole[0] / scale[0], whole[1] / scale[1], whole[2] / scale[2])
    return found


def predicted(fit: Row, point: Point) -> float:
    """Return what a fit says of a point."""
    return sum(a * b for a, b in zip(fit, terms(point), strict=True))


def quadratic_share(fit: Row, point: Point) -> float:
    """Return the part of c·B·L² in what a fit says of a point."""
    whole = predicted(fit, point)
    return fit[2] * terms(point)[2] / whole if whole else 0.0


def enough(times: Mapping[Point, float], longest: Point) -> bool:
    """Return whether a design is well conditioned and sees the quadratic part."""
    return condition(times) <= GOOD_CONDITION and quadratic_share(pilot_fit(times), longest) >= QUADRATIC_SHARE


def missing_shape(design: Design, found: float, plan: Plan) -> tuple[Point, str]:
    """Return, for a design whose condition is too high, which shape would lower it, in words too."""
    (few, many), (short, long) = design
    wanted = (few, 4 * long) if long < 4 * short else (4 * many, short)
    limit = f" (the model allows {plan.longest})" if plan.longest is not None and wanted[1] > plan.longest else ""
    return wanted, (
        f"the condition number of the fit is {found:.1f} at pilot times, above {WORST_CONDITION:.0f}: "
        f"a point of {wanted[0]} rows of {wanted[1]} tokens would lower it{limit}"
    )


def _scaled(values: Mapping[Point, float]) -> tuple[list[list[float]], Row]:
    rows = [[term / max(value, 1e-30) for term in terms(point)] for point, value in values.items()]
    scale = (max(row[0] for row in rows), max(row[1] for row in rows), max(row[2] for row in rows))
    return [[row[0] / scale[0], row[1] / scale[1], row[2] / scale[2]] for row in rows], scale


def _least_squares(table: list[list[float]]) -> list[float] | None:
    """Solve table · x = 1 by its normal equations; None where they are singular."""
    size = len(table[0])
    system = [[sum(r[i] * r[j] for r in table) for j in range(size)] + [sum(r[i] for r in table)] for i in range(size)]
    for i in range(size):
        pivot = max(range(i, size), key=lambda k: abs(system[k][i]))
        system[i], system[pivot] = system[pivot], system[i]
        if abs(system[i][i]) < 1e-13:
            return None
        for k in range(size):
            if k != i:
                factor = system[k][i] / system[i][i]
                system[k] = [a - factor * b for a, b in zip(system[k], system[i], strict=True)]
    return [system[i][size] / system[i][i] for i in range(size)]


def _eigenvalues(matrix: list[list[float]]) -> list[float]:
    """Return the eigenvalues of a symmetric matrix, by Jacobi's rotations."""
    work = [row[:] for row in matrix]
    size = len(work)
    for _ in range(30):
        for p, q in itertools.combinations(range(size), 2):
            if work[p][q] == 0:
                continue
            angle = 0.5 * math.atan2(2 * work[p][q], work[q][q] - work[p][p])
            c, s = math.cos(angle), math.sin(angle)
            for k in range(size):
                work[k][p], work[k][q] = c * work[k][p] - s * work[k][q], s * work[k][p] + c * work[k][q]
            for k in range(size):
                work[p][k], work[q][k] = c * work[p][k] - s * work[q][k], s * work[p][k] + c * work[q][k]
    return [work[i][i] for i in range(size)]
