"""Three token rates: slots (what the card computes), real tokens, labelled tokens (what is learned from)."""

from collections.abc import Sequence

import msgspec

from stepprobe.analysis.ledger.process import Process
from stepprobe.analysis.statistics import Mean

KINDS = ("slots", "real", "labelled")
"""From the widest to the narrowest."""

NOT_TRAINING = ("eval", "checkpoint")
"""Accounts that a train-only rate leaves out."""

NOT_OBSERVED = "not observed"
"""How a ``counts.*`` fact begins when that count could not be had."""

OF_EVALUATION = ("eval", "test", "predict", "val")
"""How the names begin of what a framework logs about passes that train nothing."""

NS_PER_S = 1_000_000_000


class TokenRate(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of token, summed over the ranks that were seen."""

    kind: str
    method: str
    """How they were counted."""
    missing: str = ""
    """Why there is no figure; empty where there is one."""
    per_step: Mean | None = None
    per_second: Mean | None = None
    """Over the whole wall time of the steady steps."""
    training_per_second: float = 0.0
    """Over the steady steps without evaluation and checkpoints."""
    run_per_second: float = 0.0
    """Over everything that was seen, warm-up included."""
    run_total: int = 0
    """Tokens of everything that was seen."""


def token_rates(process: Process, ranks: Sequence[Process]) -> tuple[TokenRate, ...]:
    """Return the three rates of a run."""
    return tuple(_rate(kind, process, ranks) for kind in KINDS)


def observed(process: Process, kind: str) -> bool:
    """Return whether a process could count this kind of token."""
    return not _missing(process, kind)


def _missing(process: Process, kind: str) -> str:
    how = str(process.facts.get(f"counts.{kind}", ""))
    if how.startswith(NOT_OBSERVED):
        return how
    if not any(entry.counters.get(kind) for entry in process.entries):
        return f"{NOT_OBSERVED}: the steps hold no count of them"
    return ""


def _rate(kind: str, process: Process, ranks: Sequence[Process]) -> TokenRate:
    how = str(process.facts.get(f"counts.{kind}", "counted"))
    if missing := _missing(process, kind):
        return TokenRate(kind=kind, method=how, missing=missing)
    own = process.counter(kind)
    factor = sum(rank.counter(kind).value for rank in ranks) / own.value
    per_second = process.ratio(lambda entry: entry.counters.get(kind, 0), lambda entry: entry.wall_ns / NS_PER_S)
    wall = sum(entry.wall_ns for entry in process.entries)
    training = wall - sum(entry.accounts.get(name, 0) for entry in process.entries for name in NOT_TRAINING)
    total = sum(_total(rank, kind) for rank in ranks)
    return TokenRate(
        kind=kind,
        method=how if len(ranks) == 1 else f"{how}, summed over {len(ranks)} ranks",
        per_step=_scaled(own, factor),
        per_second=_scaled(per_second, factor),
        training_per_second=per_second.value * factor * wall / training if training else 0.0,
        run_per_second=total * NS_PER_S / sum(one.wall_ns for one in process.everything),
        run_total=total,
    )


def _total(process: Process, kind: str) -> int:
    return sum(one.counters.get(kind, 0) for one in process.everything)


def _scaled(mean: Mean, factor: float) -> Mean:
    return Mean(mean.value * factor, None if mean.error is None else mean.error * factor, mean.blocks, mean.n)


class FrameworkRate(msgspec.Struct, frozen=True, kw_only=True):
    """A number about speed that the framework logged, beside ours."""

    name: str
    theirs: float
    ours: float | None
    """What we measured of the same thing; None where it is unclear what theirs means."""
    meaning: str
    """What ours is."""

    @property
    def ratio(self) -> float | None:
        """Theirs over ours."""
        return self.theirs / self.ours if self.ours else None


def framework_rates(process: Process, rates: Sequence[TokenRate]) -> tuple[FrameworkRate, ...]:
    """Set each number that the framework logged beside our own."""
    logged = process.records.sites.rates if process.records.sites else {}
    return tuple(_beside(name, value, process, rates) for name, value in sorted(logged.items()))


def _beside(name: str, theirs: float, process: Process, rates: Sequence[TokenRate]) -> FrameworkRate:
    kinds = {rate.kind: rate for rate in rates if not rate.missing}
    real = kinds.get("real")
    ours: float | None = None
    meaning = ""
    if "second" in name and name.startswith(OF_EVALUATION):
        meaning = "not measured: the speed of an evaluation"
    elif "steps_per_second" in name:
        ours, meaning = 1000 / process.wall.value, "steady steps per second"
    elif "tokens" in name and "second" in name and real:
        ours, meaning = real.run_per_second, "real tokens per second over everything seen"
    elif "tokens" in name and "second" not in name and real:
        ours, meaning = float(real.run_total), "real tokens of everything seen"
    return FrameworkRate(name=name, theirs=theirs, ours=ours, meaning=meaning)
