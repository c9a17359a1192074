"""Findings about what the host does between and around the computation."""

from collections.abc import Iterator

import msgspec

from stepprobe.analysis.findings.view import (
    SAMPLES_FEWEST,
    WORTH_SHARE,
    Rule,
    View,
    all_of,
    as_ms,
    most_of,
    scaled,
    up_to,
)
from stepprobe.analysis.ledger.attribution import Entry
from stepprobe.analysis.ledger.contention import BUSY_SHARE, aside_share, computing, put_aside
from stepprobe.analysis.ledger.process import ELSEWHERE, NS_PER_MS, Process
from stepprobe.analysis.ledger.shapes import steady_line
from stepprobe.analysis.ledger.tables import sync_ns
from stepprobe.analysis.statistics import median
from stepprobe.model.accounts import BACKWARD
from stepprobe.model.estimate import Estimate
from stepprobe.model.finding import Finding, Remedy

SPIKE_FACTOR = 2.0
"""A step of twice what others of as many slots take is no noise: real steps scatter by a few percent."""
SPIKES_AT_MOST = 0.1
"""Where more steps than this are slow, they are another kind of step, not spikes."""
OCCASIONAL = ("eval", "checkpoint", "logging")
"""Work that is meant to come now and then; it has rules of its own."""

HALF = 0.5
"""What is left of work that is done half as often."""


class Chore(msgspec.Struct, frozen=True):
    """An account whose time trains nothing, and what to do about it."""

    account: str
    title: str
    actions: tuple[str, ...] = ()
    """Changes that save something between nothing and all."""
    half_as_often: str = ""
    """The change that does it half as often, which saves half."""
    background: str = ""
    """The change that does it beside the training, which saves something between nothing and all."""
    share: float = WORTH_SHARE


CHORES = (
    Chore("clip", "Clipping gradients", ("clip_grad_norm_(…, foreach=True)",), share=0.05),
    Chore("zero_grad", "Setting gradients to zero", ("zero_grad(set_to_none=True)",)),
    Chore("logging", "Logging", half_as_often="log half as often (logging_steps)"),
    Chore("callbacks", "Callbacks", ("take the callback at this line out of the step, or call it every N steps",)),
    Chore("eval", "Evaluation", half_as_often="evaluate half as often (eval_steps), or on fewer rows"),
    Chore(
        "checkpoint",
        "Saving checkpoints",
        half_as_often="save half as often (save_steps)",
        background="save in the background",
    ),
    Chore(
        "gc", "Garbage collection", ("gc.freeze() after set-up", "collect every N steps: gc.disable() and gc.collect()")
    ),
    Chore(
        "compile",
        "Compilation goes on after the warm-up and",
        ("mark changing dimensions dynamic, or pad to few sizes",),
    ),
)


def chores(view: View) -> Iterator[Finding]:
    """Accounts that are large and train nothing."""
    for chore in CHORES:
        cost = view.account(chore.account)
        if view.worth(cost, chore.share):
            yield _chore(view, chore, cost)


def _chore(view: View, chore: Chore, cost: Estimate) -> Finding:
    less, half = f"{chore.account}.less", scaled(cost, HALF, "half as often")
    open_ = up_to(cost, "how much the change leaves is not known before it is tried")
    changes = [(less, action, open_) for action in chore.actions]
    changes += [(less, chore.half_as_often, half)] if chore.half_as_often else []
    changes += [(f"{chore.account}.background", chore.background, open_)] if chore.background else []
    return Finding(
        kind=f"{chore.account}.slow",
        title=f"{chore.title} takes {cost.value:.3g} ms of each step.",
        where=view.process.hottest((chore.account,)),
        cost=cost,
        share=view.share(cost),
        accounts=(chore.account,),
        remedies=tuple(Remedy(name=name, action=action, predicted=predicted) for name, action, predicted in changes),
        cites=(f"ledger.{chore.account}",),
    )


def sync_sites(view: View) -> Iterator[Finding]:
    """A line reads a result back, so the host waits until it is there."""
    process = view.process
    for place, operation, calls, timed, spent in process.records.sites.syncs if process.records.sites else ():
        ms = sync_ns(calls, timed, spent) / NS_PER_MS / process.sited
        method = f"{timed} of {calls} calls timed, over {process.sited} steps, warm-up included"
        cost = Estimate(value=ms, unit="ms", n=calls, method=method)
        if view.worth(cost):
            yield _sync(view, place, operation, cost, calls / process.sited)


def _sync(view: View, place: str, operation: str, cost: Estimate, per_step: float) -> Finding:
    host = max(0.0, most_of(view.wall) - view.account("sync", "d2h").value)
    if view.on_cpu:
        predicted = up_to(cost, "on the CPU nothing is waited for; the call itself is what can be saved")
    else:
        predicted = up_to(cost, f"min(host {host:.3g} ms, device): the device's part is not measured here", limit=host)
    return Finding(
        kind="sync.site",
        title=f"{operation} at {place}: {per_step:.3g} calls a step hold the host for {cost.value:.3g} ms.",
        where=place,
        cost=cost,
        share=view.share(cost),
        accounts=("sync", "d2h"),
        remedies=(
            Remedy(
                name="sync.kept",
                action="keep the value on the device, and read it only in steps that log",
                predicted=predicted,
            ),
        ),
        cites=("syncs", "ledger.sync", "ledger.d2h"),
    )


def unattributed_lines(view: View) -> Iterator[Finding]:
    """Time that no hook names, with the line that the sampler found there."""
    lines = view.process.sampled(("unattributed",))
    for line in sorted(lines, key=lambda one: (-lines[one], one)):
        cost = view.line_cost(("unattributed",), line)
        if line not in ELSEWHERE and lines[line] >= SAMPLES_FEWEST and view.worth(cost):
            yield Finding(
                kind="host.line",
                title=f"{line} holds the step for {cost.value:.3g} ms outside of data, model and optimizer.",
                where=line,
                cost=cost,
                share=view.share(cost),
                accounts=("unattributed",),
                remedies=(
                    Remedy(
                        name="line.removed",
                        action="take this line out of the step",
                        predicted=all_of(cost, "the line is gone"),
                    ),
                ),
                cites=("ledger.unattributed", "samples"),
            )


def off_cpu(view: View) -> Iterator[Finding]:
    """On a busy machine the training thread is put aside while it computes."""
    share = aside_share(view.process)
    cost = as_ms(put_aside(view.process), "wall minus CPU time")
    if share < BUSY_SHARE or not view.worth(cost):
        return
    accounts = computing(view.process)
    part = "" if any(name in BACKWARD for name in accounts) else " outside of the backward pass"
    worked = view.account(*accounts).value
    yield Finding(
        kind="off_cpu",
        title=f"A busy machine: the thread was off the CPU in {share:.0%} of its computing{part}: "
        f"{cost.value:.3g} of {worked:.3g} ms.",
        where="",
        cost=cost,
        share=view.share(cost),
        accounts=accounts,
        remedies=(
            Remedy(
                name="cpu.own",
                action="give the job its own processor cores (taskset), and fewer threads than cores (OMP_NUM_THREADS)",
                predicted=None,  # a thread may also be off the CPU while it waits for its own helpers
            ),
        ),
        cites=("off_cpu.share",),
    )


def spikes(view: View) -> Iterator[Finding]:
    """Few steps take much of the time, and not since they hold more slots."""
    steps = _comparable(view.process)
    slow, above = excess(view.process)
    by_slots = any(step.counters.get("slots") for step in steps)
    usual = "what steps of as many slots take" if by_slots else "the median"
    method = f"time above {usual} in slow steps, over {len(steps)} steps"
    cost = Estimate(value=above, unit="ms", n=len(slow), method=method)
    if not slow or len(slow) > SPIKES_AT_MOST * len(steps) or not view.worth(cost):
        return
    account = _swollen(slow, steps)
    slowest = max(slow, key=lambda one: one.above_ns).step.position
    known = "" if len(steps) == len(view.process.entries) else " whose shapes had come before"
    take = "takes" if len(slow) == 1 else "take"
    yield Finding(
        kind="steps.spikes",
        title=f"{len(slow)} of {len(steps)} steps{known} {take} at least twice {usual}: {above * len(steps):,.0f} ms "
        f"more, which is {above:.3g} ms for each of the {len(steps)}; most of it in {account}.",
        where=view.process.hottest((account,)),
        cost=cost,
        share=view.share(cost),
        accounts=(account,),
        remedies=(
            Remedy(
                name="steps.spikes",
                action=f"look at step {slowest} in {account}",
                predicted=up_to(cost, "the cause of a spike is not known from its size"),
            ),
        ),
        cites=("steps", "step.wall_p90"),
    )


class Spike(msgspec.Struct, frozen=True):
    """A step that takes long for its slots."""

    step: Entry
    usual_ns: float
    """What steps of as many slots take; the median step where slots are not counted."""

    @property
    def above_ns(self) -> float:
        """Time beyond that."""
        return _regular_ns(self.step) - self.usual_ns


def _comparable(process: Process) -> list[Entry]:
    return [one for one in process.entries if one.weight == 1 and not one.counters.get("new_shapes")]


def excess(process: Process) -> tuple[list[Spike], float]:
    """Return the steps that take twice what their slots explain or more, and their ms above that, per step.

    The line through slots is drawn through the other steps, which a spike does not bend. Where these show none, a step
    may take longer than the median by as much as it holds more slots.
    """
    steps = _comparable(process)
    if not steps:
        return [], 0.0
    middle = median([_regular_ns(step) for step in steps])
    middle_slots = median([_slots(step) for step in steps])
    others = [step for step in steps if _regular_ns(step) <= SPIKE_FACTOR * middle]
    line = steady_line([_slots(step) for step in others], [_regular_ns(step) for step in others])

    def usual(step: Entry) -> float:
        more = line.intercept + line.slope * _slots(step) if line else middle * _slots(step) / max(1.0, middle_slots)
        return max(middle, more)

    judged = [Spike(step, usual(step)) for step in steps]
    slow = [one for one in judged if one.above_ns > (SPIKE_FACTOR - 1) * one.usual_ns]
    return slow, sum(one.above_ns for one in slow) / NS_PER_MS / len(steps)


def _slots(step: Entry) -> int:
    return step.counters.get("slots", 0)


def _regular_ns(step: Entry) -> int:
    return step.wall_ns - sum(step.accounts.get(name, 0) for name in OCCASIONAL)


def _swollen(slow: list[Spike], steps: list[Entry]) -> str:
    """Return the account that takes most in slow steps above what it takes in the middle step, for their slots."""
    middle = max(1.0, median([_regular_ns(step) for step in steps]))

    def above(account: str) -> float:
        usual = median([step.accounts.get(account, 0) for step in steps])
        return sum(one.step.accounts.get(account, 0) - usual * one.usual_ns / middle for one in slow)

    names = {name for one in slow for name in one.step.accounts if name not in OCCASIONAL}
    return max(sorted(names), key=above)


RULES: tuple[Rule, ...] = (chores, sync_sites, unattributed_lines, off_cpu, spikes)
