"""Chooses the points of the scaling fit by pilots, within memory and time, and measures them."""

from collections.abc import Sequence

from stepprobe.instruments.experiments import points
from stepprobe.instruments.experiments.bench import BLOCKS, FEWEST, LEAD_INS, Bench, Case, Pilot, written
from stepprobe.instruments.experiments.ceilings import bursts
from stepprobe.instruments.experiments.memory import MARGIN
from stepprobe.instruments.experiments.plan import Point
from stepprobe.instruments.experiments.points import Design, Seen

_WIDENINGS = 8


class Scaling:
    """The search for three points and one that is held out."""

    def __init__(self, bench: Bench, shapes: Seen, budget_s: float) -> None:
        self._bench = bench
        self._shapes = shapes
        self._budget_s = budget_s
        self._known: dict[Point, Pilot | None] = {}
        self._design: Design | None = None

    def measure(self) -> Design | None:
        """Choose, measure, and return the design; None, and a line that says why, where there can be no fit."""
        named = self._bench.plan.points
        chosen = self._named(named) if named else self._chosen()
        if not chosen:
            return None
        rows, lengths = [point[0] for point in chosen], [point[1] for point in chosen]
        design = Design((min(rows), max(rows)), (min(lengths), max(lengths)))
        self._design = design
        times = {point: float(pilot.steady_ns) for point in chosen if (pilot := self._known[point])}
        found = points.condition(times)
        if found > points.WORST_CONDITION:
            wanted, text = points.missing_shape(design, found, self._bench.plan)
            self._bench.drop(self._case("scaling", wanted), "refused", text)
        cases = [self._case("scaling", point) for point in chosen]
        heldout = self._heldout(design, chosen)
        beside = bursts(self._bench)
        self._bench.blocks([*cases, heldout] if heldout else cases, self._budget_s, self._instead, beside)
        return self._design

    def _case(self, experiment: str, point: Point) -> Case:
        return self._bench.step(experiment, *point)

    def _named(self, named: Sequence[Point]) -> list[Point]:
        why = points.why_refused(named)
        if not why:
            found = [point for point in dict.fromkeys(named) if self._pilot(point)]
            why = points.why_refused(found) if len(found) < len(set(named)) else ""
            if not why:
                return found
            why = f"of the points that were named, those that could be run are not enough: {why}"
        self._bench.drop(self._case("scaling", named[0]), "refused", why)
        return []

    def _chosen(self) -> list[Point]:
        design: Design | None = points.first_design(self._shapes, self._bench.plan.longest)
        while design is not None:
            failed = next((point for point in design.points if not self._pilot(point)), None)
            if failed is None:
                break
            smaller = self._smaller(design, failed)
            if smaller is None:
                self._bench.drop(self._case("scaling", failed), "refused", self._no_design(design))
            design = smaller
        if design is None:
            return []
        return list(self._widened(self._quicker(design)).points)

    def _no_design(self, design: Design) -> str:
        ran = sorted(point for point, pilot in self._known.items() if pilot)
        return (
            "no three shapes could be run that tell the parts of the step apart: it takes two lengths and two numbers "
            f"of rows, and of those that were tried only {ran or 'none'} ran; "
            f"wanted were {[tuple(point) for point in design.points]}"
        )

    def _smaller(self, design: Design, failed: Point) -> Design | None:
        """Return the next design without a point that failed; None where there is none."""
        (few, many), (short, long) = design
        if failed == (few, long):
            next_long = self._shapes.longest if long > self._shapes.longest > short else points.aligned(long // 2)
            return Design(design.rows, (short, next_long)) if short < next_long < long else None
        if failed == (many, short):
            return Design((few, many // 2), design.lengths) if many // 2 > few else None
        if 2 * short < long:
            return Design(design.rows, (2 * short, long))
        return Design((2, many), design.lengths) if few == 1 and many > 2 else None

    def _quicker(self, design: Design) -> Design:
        """Return a design of which five blocks fit into the time."""
        while FEWEST * self._block_s(design) > self._budget_s:
            slowest = max(design.points, key=lambda point: self._wall_s(point))
            smaller = self._smaller(design, slowest) if slowest != design.points[0] else None
            text = f"{FEWEST} blocks with it take longer than the {written(self._budget_s)} s there are"
            if smaller is None or not all(self._pilot(point) for point in smaller.points):
                return design
            self._bench.drop(self._case("scaling", slowest), "time", f"{text}; a smaller point is taken")
            design = smaller
        return design

    def _widened(self, design: Design) -> Design:
        for _ in range(_WIDENINGS):
            times = self._times(design)
            if points.enough(times, design.points[2]):
                break
            options = [one for one in points.wider(design, self._shapes, self._bench.plan.longest) if self._allows(one)]
            blind = points.quadratic_share(points.pilot_fit(times), design.points[2]) < points.QUADRATIC_SHARE
            longer = [one for one in options if one.lengths[1] > design.lengths[1]]
            best = longer[0] if blind and longer else self._best(options, times)
            if best is None or not all(self._pilot(point) for point in best.points):
                break
            design = best
        return design

    def _best(self, options: Sequence[Design], times: dict[Point, float]) -> Design | None:
        """Return the option whose condition should be the lowest, if it is lower than what there is."""
        fit = points.pilot_fit(times)
        ranked = [(points.condition({p: points.predicted(fit, p) for p in one.points}), one) for one in options]
        lowest, best = min(ranked, default=(0.0, None))
        return best if best is not None and lowest < 0.95 * points.condition(times) else None

    def _allows(self, design: Design) -> bool:
        return BLOCKS * self._block_s(design) <= self._budget_s and all(
            self._known.get(point, True) and self._fits(point) for point in design.points
        )

    def _times(self, design: Design) -> dict[Point, float]:
        return {point: float(pilot.steady_ns) for point in design.points if (pilot := self._known[point])}

    def _block_s(self, design: Design) -> float:
        return (1 + LEAD_INS) * sum(self._wall_s(point) for point in (*design.points, design.heldout))

    def _wall_s(self, point: Point) -> float:
        known = self._known.get(point)
        ran = {p: pilot.wall_s for p, pilot in self._known.items() if pilot}
        return known.wall_s if known else _foretold(ran, point)

    def _pilot(self, point: Point) -> Pilot | None:
        """Return what a point takes, from the first time that it was asked for."""
        if point in self._known:
            return self._known[point]
        rows, length = point
        reached = max((known[1] for known, pilot in self._known.items() if pilot), default=length)
        if length > 2 * reached and not self._fits_at_worst(point):
            self._pilot((rows, length // 2))  # on the way up, attention's square shows itself before it is too late
        ran = [known for known, pilot in self._known.items() if pilot]
        if len(ran) == 1 and not self._fits(point):
            self._pilot((2 * ran[0][0], ran[0][1]))  # one point cannot tell what is fixed, such as the gradients
        case = self._case("scaling", point)
        able = self._fits(point, said_of=case) and self._in_time(point, case)
        self._known[point] = self._bench.pilot(case) if able else None
        return self._known[point]

    def _in_time(self, point: Point, said_of: Case) -> bool:
        needed, left = (1 + self._bench.machine.warm_ups) * self._wall_s(point), self._bench.left_s()
        if needed <= left:
            return True
        text = f"its warm-up alone should take {written(needed)} s, and {written(left)} s are left"
        self._bench.drop(said_of, "time", f"{text}; another point is tried")
        return False

    def _peaks(self) -> dict[Point, float]:
        known = self._known.items()
        return {point: float(pilot.peak_bytes) for point, pilot in known if pilot and pilot.peak_bytes}

    def _fits(self, point: Point, said_of: Case | None = None) -> bool:
        peaks, free = self._peaks(), self._bench.machine.memory.free_bytes()
        if not peaks or free is None:
            return True
        wanted = _foretold(peaks, point)
        if wanted <= MARGIN * free:
            return True
        if said_of is not None:
            text = f"predicted to take {_gib(wanted)} at its peak, and {_gib(free)} can be had; a smaller one is taken"
            self._bench.drop(said_of, "memory", text)
        return False

    def _fits_at_worst(self, point: Point) -> bool:
        """Return whether a point fits even if all memory grew with the square of the length."""
        peaks, free = self._peaks(), self._bench.machine.memory.free_bytes()
        if not peaks or free is None:
            return True
        worst = max(value * points.terms(point)[2] / points.terms(known)[2] for known, value in peaks.items())
        return worst <= MARGIN * free

    def _heldout(self, design: Design, chosen: Sequence[Point]) -> Case | None:
        """Return the case that no fit may see: in the middle, and smaller where that does not run."""
        rows, length = design.heldout
        while rows > 0:
            case = self._case("heldout", (rows, length))
            if (rows, length) not in chosen and self._fits(case.point, said_of=case) and self._bench.pilot(case):
                return case
            rows //= 2
        return None

    def _instead(self, failed: Case) -> Case | None:
        """Return a smaller case for one that failed while it was measured."""
        design = self._design
        if design is None or self._bench.plan.points:
            return None
        if failed.experiment == "heldout":
            smaller = self._case("heldout", (failed.rows // 2, failed.length))
            return smaller if failed.rows > 1 and self._bench.pilot(smaller) else None
        if failed.point not in design.points:
            return None
        self._known[failed.point] = None
        next_design = self._smaller(design, failed.point)
        while next_design is not None:
            lost = next((point for point in next_design.points if not self._pilot(point)), None)
            if lost is None:
                break
            next_design = self._smaller(next_design, lost)
        if next_design is None:
            return None
        fresh = [point for point in next_design.points if point not in design.points]
        self._design = next_design
        return self._case("scaling", fresh[0]) if len(fresh) == 1 else None


def _foretold(values: dict[Point, float], point: Point) -> float:
    """Return what a point should take: by a fit where there are two points, else in proportion to the tokens."""
    if len(values) >= 2:
        return points.predicted(points.pilot_fit(values), point)
    tokens = points.terms(point)[1]
    return max((value * max(1.0, tokens / points.terms(known)[1]) for known, value in values.items()), default=0.0)


def _gib(value: float) -> str:
    return f"{value / 2**30:.2f} GiB"
