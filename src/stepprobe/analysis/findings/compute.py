"""Findings about forward, backward and optimizer."""

from collections.abc import Iterator

from stepprobe.analysis.findings.view import Rule, View, all_of, as_ms, scaled, up_to
from stepprobe.analysis.ledger.process import NS_PER_MS
from stepprobe.model.accounts import FORWARD
from stepprobe.model.estimate import Estimate
from stepprobe.model.finding import Finding, Remedy

OPTIMIZER_SHARE = 0.1
"""Below a tenth of the step, an update parameter by parameter has little to give back."""
FORWARDS_EXTRA = 0.05
"""Forwards per backward above one that an occasional evaluation or generation explains."""
SKIPPED_SHARE = 0.02
"""A loss scaler that doubles every 2,000 steps skips far fewer steps than this."""

AROUND = ("forward.other", "backward.other", "unattributed", "gc")
"""Where checkpointing's own work lies: random states, packed tensors, frames that refer to each other."""

ONE_BY_ONE = "_single_tensor_"
"""In torch, the name of every optimizer's path that steps parameter by parameter."""


def recompute(view: View) -> Iterator[Finding]:
    """Activations are thrown away in the forward pass and computed again in the backward pass."""
    cost = view.account("recompute")
    if not view.worth(cost):
        return
    yield Finding(
        kind="recompute",
        title=f"Gradient checkpointing computes {cost.value:.3g} ms of each step a second time.",
        where=view.process.hottest(("recompute",)),
        cost=cost,
        share=view.share(cost),
        accounts=("recompute",),
        remedies=(
            Remedy(
                name="checkpointing.off",
                action="turn gradient checkpointing off if the activations fit into memory",
                predicted=_without_checkpointing(view, cost),  # of its account nothing stays
            ),
        ),
        cites=("ledger.recompute",),
    )


def _without_checkpointing(view: View, cost: Estimate) -> Estimate:
    """What is computed twice; and at most all that lies where checkpointing does its own work around it."""
    around = view.process.mean(
        lambda entry: sum(entry.accounts.get(name, 0) - entry.off_cpu.get(name, 0) for name in AROUND) / NS_PER_MS
    ).value
    high = None if cost.high is None else cost.high + around
    method = f"what is computed twice; its upper end holds the {around:.3g} ms in which checkpointing's own work lies"
    return Estimate(value=cost.value, unit="ms", low=cost.low, high=high, n=cost.n, method=method)


def forward_extra(view: View) -> Iterator[Finding]:
    """More forwards than backwards: their outputs train nothing."""
    forwards, backwards, without = (
        view.process.counter(name).value for name in ("forwards", "backwards", "no_grad_forwards")
    )
    extra = max(forwards - backwards, without)
    if not backwards or extra / backwards < FORWARDS_EXTRA:
        return
    forward = view.account(*FORWARD)
    cost = scaled(forward, extra / max(forwards, backwards + extra), "forwards without a backward, of all forwards")
    if not view.worth(cost):
        return
    yield Finding(
        kind="forward.extra",
        title=f"{extra / backwards:.2g} forwards per backward train nothing ({without:.3g} a step without gradients).",
        where="",
        cost=cost,
        share=view.share(cost),
        accounts=FORWARD,
        remedies=(
            Remedy(
                name="forward.reuse",
                action="reuse the outputs of the training forward, or compute those of a fixed model once, before",
                predicted=up_to(cost, "a forward without gradients is cheaper than one with"),
                fixed=scaled(forward, 1 - cost.value / forward.value, "the forwards that train"),
            ),
        ),
        cites=("forwards.per_backward", "forwards.no_grad_per_step"),
    )


def optimizer_slow(view: View) -> Iterator[Finding]:
    """The optimizer steps parameter by parameter."""
    cost = view.account("optimizer")
    line = view.process.hottest(("optimizer",), ONE_BY_ONE)
    told = view.fact("optimizer_foreach") is False and not view.fact("optimizer_fused")
    if not view.worth(cost, OPTIMIZER_SHARE) or not (line or told):
        return
    name = view.fact("optimizer") or "the optimizer"
    yield Finding(
        kind="optimizer.slow",
        title=f"{name} updates one parameter after the other: {cost.value:.3g} ms of each step.",
        where=line,
        cost=cost,
        share=view.share(cost),
        accounts=("optimizer",),
        remedies=(
            Remedy(
                name="optimizer.foreach",
                action="foreach=True, or fused=True where the optimizer offers it",
                predicted=up_to(cost, "the arithmetic stays, the calls for each parameter go"),
            ),
        ),
        cites=("ledger.optimizer", "samples"),
    )


def train_walks(view: View) -> Iterator[Finding]:
    """``model.train()`` visits every module."""
    cost = as_ms(view.process.mean(lambda entry: entry.counters.get("train_walk_ns", 0) / 1e6), "timed walks")
    if not view.worth(cost):
        return
    walks = view.process.counter("train_walks").value
    yield Finding(
        kind="train_walks",
        title=f"model.train() walks all modules {walks:.3g} times a step: {cost.value:.3g} ms.",
        where="",
        cost=cost,
        share=view.share(cost),
        accounts=("forward.other",),
        remedies=(
            Remedy(
                name="train.once",
                action="call model.train() once, and again only after an evaluation",
                predicted=all_of(cost, "no walks in a step"),
            ),
        ),
        cites=("train_walks.per_step", "train_walks.time"),
    )


def amp_skipped(view: View) -> Iterator[Finding]:
    """The loss scaler found infinite gradients and threw the step away."""
    skipped = view.process.counter("amp_skipped")
    cost = scaled(as_ms(skipped, ""), view.wall_ms, "wall time of a step times the share of skipped steps")
    if skipped.value < SKIPPED_SHARE:
        return
    yield Finding(
        kind="amp.skipped",
        title=f"The loss scaler skips {skipped.value:.1%} of the steps: they are computed and train nothing.",
        where="",
        cost=cost,
        share=view.share(cost),
        remedies=(
            Remedy(
                name="amp.bfloat16",
                action="train in bfloat16, or lower GradScaler(init_scale=…) and raise growth_interval",
                predicted=up_to(cost, "in bfloat16 no step is skipped; a gentler scaler still skips some"),
            ),
        ),
        cites=("amp.skipped",),
    )


RULES: tuple[Rule, ...] = (recompute, forward_extra, optimizer_slow, train_walks, amp_skipped)
