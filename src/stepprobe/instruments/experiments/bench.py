"""Runs cases: warms them up, repeats them in shuffled blocks, writes a line for each repetition and each failure."""

import contextlib
import dataclasses
import gc
import math
import random
import traceback
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any, NamedTuple

from stepprobe.instruments.experiments.exits import refuses
from stepprobe.instruments.experiments.machine import Machine
from stepprobe.instruments.experiments.memory import ran_out
from stepprobe.instruments.experiments.plan import Plan, Point
from stepprobe.instruments.experiments.timing import Reading

BLOCKS = 9
"""Repetitions of each point that are wished for: a median of nine moves little when one was disturbed."""
FEWEST = 5
"""Below five a median and its interval say nothing; points are made smaller instead."""
MOST = 15
"""More are taken up to here where they are cheap."""
CHEAP = 0.25
"""Part of an experiment's time that blocks beyond ``BLOCKS`` may take."""
LEAD_INS = 1
"""Steps of the same shape just before each timed one. Without it a step pays for the shape before it: caches are cold,
and memory that a smaller step gave back to the kernel is faulted in again (``python bench/lead_in.py``)."""
SECOND_PILOT = 0.01
"""A pilot is repeated where it took less than this part of the whole time."""
_TEXT = 300


def _nothing() -> None:
    return None


@dataclasses.dataclass(frozen=True)
class Case:
    """One thing that is measured."""

    experiment: str
    rows: int
    length: int
    prepare: Callable[[], Any]
    """Makes what ``run`` is given; not timed."""
    run: Callable[[Any], Any]
    """What is timed; returns the loss, or None."""
    variant: str = ""
    real: int | None = None
    """Tokens that are no padding; None for all."""
    enter: Callable[[], None] = _nothing
    leave: Callable[[], None] = _nothing
    gradient: Callable[[Any], float] | None = None
    """Norm of the gradient, from what ``run`` was given; not timed."""

    @property
    def point(self) -> Point:
        """Rows and length."""
        return self.rows, self.length


class Repetition(NamedTuple):
    """What one run of a case gave."""

    reading: Reading
    peak_bytes: int | None
    loss: float | None
    gradient: float | None
    labelled: int | None


class Pilot(NamedTuple):
    """What a case takes, once it is warm."""

    steady_ns: int
    wall_s: float
    peak_bytes: int | None
    loss: float | None


class Bench:
    """The harness on its machine, and the journal that it writes to."""

    def __init__(self, harness: Any, journal: Any, plan: Plan, torch: ModuleType, machine: Machine) -> None:
        self.harness = harness
        self.plan = plan
        self.machine = machine
        self._pilots: dict[tuple[str, str, int, int], Pilot] = {}
        self.torch = torch
        self.journal = journal
        self._order = random.Random(plan.seed)
        self._parameters = _parameters(harness)
        self.begin()

    def begin(self) -> None:
        """Let the time of the plan begin now."""
        self._begun = self.machine.stopwatch.now_s()

    def left_s(self) -> float:
        """Return the seconds of the plan that are left."""
        return self.plan.seconds - (self.machine.stopwatch.now_s() - self._begun)

    def step(self, experiment: str, rows: int, length: int, real: Sequence[int] | None = None) -> Case:
        """Return the case of the user's own micro-step at a shape."""
        batch, step = self.harness.batch, self.harness.step
        tokens = None if real is None else sum(real)
        return Case(experiment, rows, length, lambda: batch(rows, length, real), step, real=tokens)

    def drop(self, case: Case, reason: str, text: str) -> None:
        """Write that a point could not be measured."""
        record = {"experiment": case.experiment, "variant": case.variant, "rows": case.rows, "length": case.length}
        self.journal.write("dropped", {**record, "reason": reason, "text": text})

    def pilot(self, case: Case) -> Pilot | None:
        """Warm a case up and return what it takes; None, and a line that says why, where it cannot be run."""
        first = self._attempt(case, warming=True)
        for _ in range(self.machine.warm_ups - 1):
            first = first and self._attempt(case) and first
        timed = first and self._attempt(case)
        if not first or not timed:
            return None
        steady, wall = self.machine.steady_ns(timed.reading), timed.reading.wall_ns / 1e9
        if wall < SECOND_PILOT * self.plan.seconds:
            again = self._attempt(case)
            if not again:
                return None
            steady = min(steady, self.machine.steady_ns(again.reading))
            wall = min(wall, again.reading.wall_ns / 1e9)
        peak = first.peak_bytes if timed.peak_bytes is None else timed.peak_bytes
        self._pilots[_key(case)] = Pilot(steady, wall, peak, timed.loss)
        return self.pilot_of(case)

    def pilot_of(self, case: Case) -> Pilot:
        """Return what a case took when it was piloted."""
        return self._pilots[_key(case)]

    def blocks(
        self,
        cases: Sequence[Case],
        budget_s: float,
        instead: Callable[[Case], Case | None] = lambda _: None,
        beside: Callable[[int], None] = lambda _: None,
    ) -> None:
        """Run piloted cases in blocks, each in an order of its own; drop all where not even the fewest blocks fit.

        Args:
            cases: What each block holds once.
            budget_s: Seconds that all blocks may take.
            instead: Gives a smaller case for one that failed meanwhile, piloted; None for no other.
            beside: Called at the end of each block with its number.
        """
        if self._too_late(cases):
            return
        done = {case: 0 for case in cases}
        wished = blocks_within(self.cost_s(cases), budget_s)
        begun, block = self.machine.stopwatch.now_s(), 0
        while done and min(done.values()) < wished:
            with _no_collection():
                for case in self._shuffled(done):
                    repetition = self._attempt(case, lead_in=True) and self._attempt(case)
                    if repetition:
                        self._write(case, block, repetition)
                        done[case] += 1
                        continue
                    del done[case]
                    smaller = instead(case)
                    if smaller is not None:
                        done[smaller] = 0
                beside(block)
            block += 1
            late = self.machine.stopwatch.now_s() - begun > 2 * budget_s or self.left_s() < 0
            if late and done and min(done.values()) >= FEWEST:
                break

    def _too_late(self, cases: Sequence[Case]) -> bool:
        needed, left = FEWEST * self.cost_s(cases), self.left_s()
        if needed <= left:
            return False
        for case in cases:
            text = f"{FEWEST} blocks take {written(needed)} s and {written(left)} of {self.plan.seconds:g} s are left"
            self.drop(case, "time", f"{text}: give the experiments more with --time, or train on smaller batches")
        return True

    def cost_s(self, cases: Sequence[Case]) -> float:
        """Return the seconds of one block, by the pilots."""
        return (1 + LEAD_INS) * sum(self.pilot_of(case).wall_s for case in cases)

    def _shuffled(self, cases: dict[Case, int]) -> list[Case]:
        order = list(cases)
        self._order.shuffle(order)
        return order

    def _attempt(self, case: Case, *, warming: bool = False, lead_in: bool = False) -> Repetition | None:
        try:
            repetition = self._once(case, warming=warming, timed=not (warming or lead_in))
        except BaseException as error:  # whatever a user's step raises at a shape that it never saw
            if not refuses(error):
                raise
            memory = ran_out(error, self.torch)
            text = f"{type(error).__name__}: {error}"[:_TEXT]
            traceback.clear_frames(error.__traceback__)  # they hold the tensors of the step that failed
            self.drop(case, "memory" if memory else "refused", text)
        else:
            told = {"loss": repetition.loss, "norm of the gradient": repetition.gradient}
            broken = [f"the {name} is {value}" for name, value in told.items() if not math.isfinite(value or 0.0)]
            if not broken:
                return repetition
            self.drop(case, "loss", f"{broken[0]} at this shape; look at the data, or lower the rate")
        self.release()
        return None

    def _once(self, case: Case, *, warming: bool, timed: bool) -> Repetition:
        self.torch.manual_seed(self.plan.seed)  # variants draw the same; the journal's owner puts the state back
        self._without_gradients()
        case.enter()
        try:
            given = case.prepare()
            stopwatch = self.machine.stopwatch
            (returned, reading), peak = self.machine.memory.peak_of(
                lambda: stopwatch.timed(lambda: case.run(given)), warming=warming
            )
            loss = None if returned is None else float(returned)
            gradient = case.gradient(given) if case.gradient is not None and timed else None
            return Repetition(reading, peak, loss, gradient, labelled_in(given))
        finally:
            case.leave()
            self._without_gradients()

    def release(self) -> None:
        """Let go of what a step outside the blocks, or a failed one, left."""
        self._without_gradients()
        self.machine.memory.release()

    def _without_gradients(self) -> None:
        """Leave the gradients as the user's loop does before the first micro-step of a step."""
        for parameter in self._parameters:
            if self.plan.zeroed and parameter.grad is not None:
                parameter.grad.detach_().zero_()
            else:
                parameter.grad = None

    def norm(self, _: Any = None) -> float:
        """Return the norm of the gradient of all parameters."""
        found = [parameter.grad for parameter in self._parameters if parameter.grad is not None]
        return math.sqrt(sum(float(one.detach().float().norm()) ** 2 for one in found))

    def _write(self, case: Case, block: int, repetition: Repetition) -> None:
        peak = repetition.peak_bytes if repetition.peak_bytes is not None else self.pilot_of(case).peak_bytes
        self.journal.write(
            "measured",
            {
                "experiment": case.experiment,
                "variant": case.variant,
                "block": block,
                "rows": case.rows,
                "length": case.length,
                "real": case.rows * case.length if case.real is None else case.real,
                "labelled": repetition.labelled,
                **repetition.reading._asdict(),
                "peak_bytes": peak,
                "loss": repetition.loss,
                "gradient": repetition.gradient,
            },
        )


def written(seconds: float) -> str:
    """Return seconds as a person writes them; less than none is none."""
    return f"{max(0.0, seconds):.2g}" if seconds < 10 else f"{seconds:.0f}"


def _key(case: Case) -> tuple[str, str, int, int]:
    return case.experiment, case.variant, case.rows, case.length


def blocks_within(cost_s: float, budget_s: float) -> int:
    """Return how many blocks to run: ``BLOCKS`` where they fit, more where those are cheap, never below ``FEWEST``."""
    fitting = int(budget_s / max(cost_s, 1e-9))
    if fitting < BLOCKS:
        return max(FEWEST, fitting)
    return min(MOST, max(BLOCKS, int(CHEAP * fitting)))


def labelled_in(batch: Any) -> int | None:
    """Return the tokens of a batch that have a label, after the shift; None where it does not say."""
    labels: Any = batch.get("labels") if hasattr(batch, "get") else None
    if labels is None or getattr(labels, "ndim", 0) != 2:
        return None
    return int((labels[:, 1:] != -100).sum())


@contextlib.contextmanager
def settled_objects() -> Iterator[None]:
    """Let the collector look at new objects alone, so that collecting after each block costs next to nothing."""
    theirs = gc.get_freeze_count() > 0  # the user's own frozen objects could not be told from ours afterwards
    if not theirs:
        gc.collect()
        gc.freeze()
    try:
        yield
    finally:
        if not theirs:
            gc.unfreeze()


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Collect garbage now, and then not until the block ends."""
    was = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def _parameters(harness: Any) -> list[Any]:
    found: dict[int, Any] = {}
    for module in (harness.root(), *harness.trainable_modules()):
        found.update((id(parameter), parameter) for parameter in module.parameters())
    return list(found.values())
