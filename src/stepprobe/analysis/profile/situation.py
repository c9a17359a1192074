"""Everything that a forecast hangs on: the step of now, its batches, its loss, and what the fit says of them."""

import math
from dataclasses import dataclass
from functools import cached_property

from stepprobe.analysis.findings.view import View
from stepprobe.analysis.ledger.shapes import rectangles
from stepprobe.analysis.profile import batches
from stepprobe.analysis.profile.batches import Batches
from stepprobe.analysis.profile.forecast import Span, Step
from stepprobe.analysis.profile.loss import LossCost, in_the_steps
from stepprobe.analysis.profile.scaling import Fit, Work
from stepprobe.analysis.profile.view import Seen
from stepprobe.model.accounts import BACKWARD, FORWARD
from stepprobe.model.estimate import Estimate
from stepprobe.model.experiments import Structure

COMPUTE = (*FORWARD, *BACKWARD, "recompute")
WAITING = ("sync", "d2h")
HIDDEN = 0.1
"""Padding that was counted in the steps beyond that of the experiments' rows, from which on those are not believed."""
OF_EACH_STEP = ("optimizer", "clip", "zero_grad", "scheduler")
"""Accounts of an optimizer step that do not grow with its rows."""
PERHAPS_OF_EACH_STEP = ("logging", "callbacks", "gc", "data.wait", "unattributed")
"""Accounts of which nobody knows whether they come with the step or with its rows."""


@dataclass(frozen=True)
class Situation:
    """Everything that a forecast may hang on."""

    seen: Seen
    fit: Fit
    step: Step
    batches: Batches | None
    loss: LossCost | None
    view: View | None
    """The observed steps; None where there were none."""

    @property
    def on_cpu(self) -> bool:
        """Whether the host computes."""
        return self.step.device is None

    @cached_property
    def structure(self) -> Structure | None:
        """What the model is made of; None where it was not looked at."""
        return next((one for one in self.seen.answers.records if isinstance(one, Structure)), None)

    @property
    def apart(self) -> bool:
        """Whether packed rows cost attention only among themselves: the kernel takes rows of different lengths."""
        return self.structure is not None and self.structure.attention.startswith(("flash", "kernels-"))

    @property
    def framework(self) -> str:
        """``trl``, ``transformers``, or empty for a loop of the script's own."""
        return str(self.view.fact("framework") or "") if self.view else ""

    @property
    def n(self) -> int:
        """Observations behind a forecast."""
        return self.step.n

    @cached_property
    def lengths_hidden(self) -> str:
        """Say so where the steps were seen to hold padding that the experiments know nothing of; else empty.

        The counters follow a batch from its loader; the experiments see what the model is called with, and a loop may
        keep the mask to itself.
        """
        if self.view is None or self.batches is None:
            return ""
        counted = self.view.process.counter("slots").value
        real = self.view.process.mean(lambda entry: entry.counters.get("real", 0)).value
        padding = 1 - real / counted if real and counted else 0.0
        if padding - self.batches.padding < HIDDEN:
            return ""
        return (
            f"the lengths of the rows are not known to the experiments ({padding:.0%} padding was counted in the steps)"
        )

    def account(self, *names: str) -> Estimate:
        """Return ms per step in some accounts."""
        if self.view:
            return self.view.account(*names)
        return Estimate(value=0.0, unit="ms", n=0, method="not observed")

    def off_cpu(self, *names: str) -> float:
        """Return the ms per step in some accounts in which the thread waited."""
        if self.view is None:
            return 0.0
        return self.view.process.mean(lambda entry: sum(entry.off_cpu.get(name, 0) for name in names) / 1e6).value

    def each_step(self, fewer: float) -> Span:
        """Return what is saved for each row when only a part of the optimizer steps is taken for the same rows.

        What surely comes once a step, and half of what may.
        """
        surely, perhaps = (self.account(*names).value * (1 - fewer) for names in (OF_EACH_STEP, PERHAPS_OF_EACH_STEP))
        return Span(surely + perhaps / 2, abs(perhaps) / 2)

    @cached_property
    def by_fit_and_booked(self) -> tuple[float, float] | None:
        """Return ms of forward and backward a step on the clock of the experiments: by the fit, and by the ledger.

        None where the two cannot be compared: on a card, and without steps or lengths.
        """
        if not self.on_cpu or self.view is None or self.batches is None:
            return None
        work = self.batches.work
        by_fit = self.fit.time(work)[0] / work.batches * self.seen.answers.harness.micro_steps
        aside = self.off_cpu(*COMPUTE) if self.seen.answers.clock == "thread" else 0.0
        return by_fit, self.step.compute.value - aside

    def unexplained(self, shape: Work, driven_ms: float) -> float:
        """Return by which part the step of the ledger takes more or less than the one that is driven.

        Args:
            shape: Of a micro-step that was driven as it is.
            driven_ms: What it took; it stands for the error of the fit there.
        """
        if self.by_fit_and_booked is None or self.by_fit_and_booked[1] <= 0:
            return 0.0
        by_fit, booked = self.by_fit_and_booked
        return abs(booked / (by_fit * driven_ms / self.fit.time(shape)[0]) - 1)

    @cached_property
    def loss_in_steps(self) -> Estimate | None:
        """Time of output layer and loss in a step, ms, by the ledger; None where it cannot tell."""
        return in_the_steps(self.seen)

    @cached_property
    def loss_share(self) -> Span:
        """Output layer and loss over forward and backward: of the script's steps, else of the driven ones.

        Where both are known, the interval of the first also holds the second.
        """
        driven, told, compute = self._loss_driven, self.loss_in_steps, self.step.compute.value
        if told is None or not driven.value or not compute:
            return driven
        share = told.value / compute
        return Span(share, math.hypot(driven.known, share - driven.value))

    @property
    def loss_in_words(self) -> str:
        """Which part of forward and backward the loss is, and by whom."""
        if self.loss_in_steps is None:
            return f"output layer and loss, driven alone, are {self.loss_share.value:.1%} of forward and backward"
        return (
            f"output layer and loss are {self.loss_share.value:.1%} of forward and backward by the ledger, "
            f"{self._loss_driven.value:.1%} driven alone"
        )

    @cached_property
    def _loss_driven(self) -> Span:
        """The same by what the loss took alone and the fit, in the batches of the run."""
        if self.loss is None or self.batches is None:
            return Span(0.0, None)
        work = self.batches.work
        value, low, high = self.fit.time(work)
        spent = self.loss.ms.value * work.slots / self.loss.tokens
        half = math.hypot((self.loss.ms.half or 0.0) / self.loss.ms.value, (high - low) / 2 / value)
        share = min(1.0, spent / value)
        return Span(share, share * half)


def situation(seen: Seen, loss: LossCost | None) -> Situation | None:
    """Return what forecasts hang on; None without a fit."""
    if not isinstance(seen.fit, Fit):
        return None
    harness, process = seen.answers.harness, seen.process
    shapes = [(rows, slots) for rows, slots, _ in rectangles(process)] if process else []
    found = batches.seen_batches(harness.batches, shapes, harness.micro_steps)
    return Situation(
        seen=seen,
        fit=seen.fit,
        step=_step(seen, seen.fit, found),
        batches=found,
        loss=loss,
        view=View(process, seen.job.ranks) if process and seen.job else None,
    )


def _step(seen: Seen, fit: Fit, found: Batches | None) -> Step:
    """Return the step of now: as observed, else as the fit says of the batches that were seen."""
    harness, process = seen.answers.harness, seen.process
    work = found.work if found else Work.of([(fit.shapes[0].rows, fit.shapes[0].length)])
    value, low, high = fit.time(work)
    times = max(1, harness.micro_steps) / work.batches
    by_fit = Span(value * times, (high - low) / 2 * times)
    device = by_fit.value if harness.device != "cpu" else None
    if process is None:
        return Step(wall=by_fit, compute=by_fit, waits=0.0, device=None, n=fit.blocks)
    return Step(
        wall=Span.of(process.wall),
        compute=Span.of(process.account(*COMPUTE)),
        waits=0.0 if device is None else process.account(*WAITING).value,
        device=device,
        n=process.measured,
        launches=fit.part(work, 0) * times,
    )


def sliding_window(structure: Structure | None) -> int | None:
    """Return the window of a model's sliding layers; None where it has none."""
    if structure is None:
        return None
    config = structure.config
    nested = config.get("text_config")
    text = nested if isinstance(nested, dict) else config
    window, kinds = text.get("sliding_window"), text.get("layer_types")
    if not isinstance(window, int) or text.get("use_sliding_window") is False:
        return None
    return window if not isinstance(kinds, list) or "sliding_attention" in kinds else None
