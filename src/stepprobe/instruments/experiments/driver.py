"""What is asked of the user's own step, in which order.

Quiet first, then what the machine can do at most, then the points of the scaling fit, shapes of the run, and the loss
and remedies at its usual shape. Each experiment is measured in blocks that hold each of its points once, so that what
drifts hits all of them alike. A failure drops a point or an experiment, says so in a line, and nothing else is lost.
"""

import math
from collections.abc import Callable
from types import ModuleType
from typing import Any

from stepprobe.instruments.experiments import ceilings, loss, points, remedies, shapes
from stepprobe.instruments.experiments.bench import FEWEST, Bench, Case, settled_objects, written
from stepprobe.instruments.experiments.exits import refuses
from stepprobe.instruments.experiments.machine import Machine
from stepprobe.instruments.experiments.memory import ran_out
from stepprobe.instruments.experiments.plan import Plan, Point
from stepprobe.instruments.experiments.points import Design, Seen
from stepprobe.instruments.experiments.scaling import Scaling

FINISHED = "finished"
SCALING_SHARE, SHAPES_SHARE, USUAL_SHARE = 0.4, 0.15, 0.25
"""Parts of the time that blocks of an experiment may take; pilots and warm-ups need the rest."""

SAME_LOSS = 0.01
"""Relative difference of losses up to which a remedy computes the same in another order, in bf16 too."""


def run_experiments(harness: Any, journal: Any, plan: Plan, torch: ModuleType, machine: Machine | None = None) -> str:
    """Ask everything, write a line for each answer, and return why it ended: ``finished``, or what stopped it.

    Args:
        harness: The user's step, as ``stepprobe.model.harness.Harness``.
        journal: ``write(kind, record)`` writes a line of ``stepprobe.model.experiments``.
        plan: What is asked for, and what is known of the job.
        torch: The user's PyTorch.
        machine: What the step runs on; found by the first parameter of the root if None.

    The lines ``harness``, ``restored`` and ``done`` are written by who took the step over and puts it back.
    """
    machine = machine or Machine(torch, harness.root())
    observed = machine.quiet(anyway=plan.anyway)
    journal.write("quiet", observed)
    if observed["refused"]:
        return str(observed["refused"])
    seen = points.seen(plan.batches)
    if seen is None and not plan.points:
        return "no micro-batch was seen before, so no shape is known; name points, such as 1,128 8,128 1,1024"
    bench = Bench(harness, journal, plan, torch, machine)
    ceilings.write_first(bench, _counted_shapes(plan, seen))
    bench.begin()
    with settled_objects():
        design = Scaling(bench, seen or _named(plan), SCALING_SHARE * plan.seconds).measure()
        if seen is not None:
            _shapes(bench, design, seen)
            _usual(bench)
    return FINISHED


def _counted_shapes(plan: Plan, seen: Seen | None) -> list[Point]:
    """Return shapes whose FLOPs are counted: two lengths at least, and the usual one first."""
    if seen is None:
        return list(plan.points)
    first = points.first_design(seen, plan.longest).points
    return [shapes.usual(plan.batches), first[0], first[2]]


def _named(plan: Plan) -> Seen:
    rows, lengths = [point[0] for point in plan.points], [point[1] for point in plan.points]
    return Seen(max(rows), max(lengths), min(lengths), max(count * length for count, length in plan.points))


def _shapes(bench: Bench, design: Design | None, seen: Seen) -> None:
    budget_s = SHAPES_SHARE * bench.plan.seconds
    if design is not None:
        _measure(bench, lambda: shapes.fixed_tokens(bench, design, seen.tokens), budget_s, least=2)
    lengths = shapes.ragged(bench.plan.batches)
    if lengths:
        _measure(bench, lambda: shapes.padding(bench, lengths), budget_s, least=2)


def _usual(bench: Bench) -> None:
    """Measure remedies and the loss in the same blocks, so that the loss can be held to the step beside it."""
    shape = shapes.usual(bench.plan.batches)

    def of_loss() -> list[Case]:
        head = loss.caught(bench, shape)
        if isinstance(head, str):
            bench.drop(bench.step("loss", *shape), "refused", head)
            return []
        return loss.cases(bench, head, shape)

    def both() -> list[Case]:
        return [*remedies.cases(bench, shape), *_prepared(bench, bench.step("loss", *shape), of_loss)]

    _measure(bench, both, USUAL_SHARE * bench.plan.seconds, least=1)


def _prepared(bench: Bench, said_of: Case, make: Callable[[], list[Case]]) -> list[Case]:
    try:
        return make()
    except BaseException as error:  # the user's step, or modules that are not what they seem
        if not refuses(error):
            raise
        reason = "memory" if ran_out(error, bench.torch) else "refused"
        bench.drop(said_of, reason, f"{type(error).__name__}: {error}"[:300])
        return []


def _measure(bench: Bench, make: Callable[[], list[Case]], budget_s: float, least: int) -> None:
    """Pilot cases and run those that can be, where at least so many can."""
    cases = make()
    if bench.left_s() <= 0:
        for case in cases:
            bench.drop(case, "time", f"the {bench.plan.seconds:g} s of the experiments are up: more with --time")
        return
    able = _agreeing(bench, [case for case in cases if bench.pilot(case)])
    if least == 1:
        able = _affordable(bench, able, budget_s)
    if len(able) >= least:
        bench.blocks(able, budget_s)


def _affordable(bench: Bench, cases: list[Case], budget_s: float) -> list[Case]:
    """Return as many of the first cases as five blocks fit into the time with; the last ones tell the least."""
    kept = list(cases)
    while len(kept) > 1 and FEWEST * bench.cost_s(kept) > budget_s:
        bench.drop(kept.pop(), "time", f"{FEWEST} blocks with it take longer than the {written(budget_s)} s there are")
    return kept


def _agreeing(bench: Bench, cases: list[Case]) -> list[Case]:
    """Return the cases without remedies that change the loss of the step; at another shape it is another loss."""
    known = next((case for case in cases if case.variant == remedies.NONE), None)
    plain = None if known is None else bench.pilot_of(known).loss
    able = []
    for case in cases:
        loss = bench.pilot_of(case).loss
        alike = case.experiment == "remedy" and known is not None and case.point == known.point
        if alike and loss is not None and plain is not None and not _same(loss, plain):
            bench.drop(case, "refused", f"the loss is {loss:.6g} with it and {plain:.6g} without: it is another step")
        else:
            able.append(case)
    return able


def _same(first: float, second: float) -> bool:
    return math.isclose(first, second, rel_tol=SAME_LOSS)
