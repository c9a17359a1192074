"""What a rule may look at, and the words in which it answers."""

import math
from collections.abc import Callable, Iterable, Sequence

import msgspec

from stepprobe.analysis.ledger.process import Process
from stepprobe.analysis.statistics import Mean, wilson
from stepprobe.model.estimate import Estimate
from stepprobe.model.finding import Finding

WORTH_SHARE = 0.02
"""Part of a step below which a change is not worth a person's time: it would drown in the noise between runs."""

SAMPLES_FEWEST = 10
"""Samples below which a line may be named but not sized."""


class View(msgspec.Struct, frozen=True):
    """One run: the process whose ledger is shown, and one process per rank."""

    process: Process
    ranks: Sequence[Process]

    @property
    def wall_ms(self) -> float:
        """Mean wall time of a steady step."""
        return self.process.wall.value

    @property
    def wall(self) -> Estimate:
        """Wall time of a steady step in ms."""
        return as_ms(self.process.wall, "wall")

    @property
    def on_cpu(self) -> bool:
        """True: the job computes on the CPU, so nothing that the host does can hide behind a device."""
        return self.process.facts.get("device") == "cpu"

    def fact(self, name: str) -> str | int | float | bool | None:
        """Return what was seen of the set-up; None where it was not."""
        return self.process.facts.get(name)

    def account(self, *names: str) -> Estimate:
        """Return ms per step in some accounts."""
        return as_ms(self.process.account(*names), " + ".join(names))

    def share(self, cost: Estimate) -> float:
        """Return a cost over the wall time of the step."""
        return cost.value / self.wall_ms if self.wall_ms else 0.0

    def worth(self, cost: Estimate, share: float = WORTH_SHARE) -> bool:
        """Return whether a cost is large enough to speak of."""
        return cost.value > 0 and self.share(cost) >= share

    def line_cost(self, accounts: Sequence[str], line: str) -> Estimate:
        """Return ms per step of one sampled line, from its share of the samples in some accounts."""
        lines = self.process.sampled(accounts)
        hits, taken = lines[line], sum(lines.values())
        whole = self.process.account(*accounts).value
        low, high = wilson(hits, taken)
        method = f"{hits} of {taken} samples in {' + '.join(accounts)}"
        return Estimate(
            value=whole * hits / taken, unit="ms", low=whole * low, high=whole * high, n=hits, method=method
        )


Rule = Callable[[View], Iterable[Finding]]


def as_ms(mean: Mean, method: str) -> Estimate:
    """Return a mean in ms as an estimate."""
    low = None if mean.low is None else max(0.0, mean.low)
    return Estimate(value=mean.value, unit="ms", low=low, high=mean.high, n=mean.n, method=method)


def scaled(cost: Estimate, factor: float, method: str) -> Estimate:
    """Return a part of a cost."""
    low, high = (None if end is None else end * factor for end in (cost.low, cost.high))
    return Estimate(value=cost.value * factor, unit="ms", low=low, high=high, n=cost.n, method=method)


def all_of(cost: Estimate, method: str) -> Estimate:
    """Predict that a change saves the whole cost."""
    return scaled(cost, 1.0, method)


def up_to(cost: Estimate, method: str, limit: float = math.inf) -> Estimate:
    """Predict a gain of which only the bounds are known: nothing, and all that is paid now.

    Args:
        cost: What is paid now: the ceiling. How sure its mean is does not raise it: no change saves more than was seen.
        method: Why no more is known.
        limit: ms per step that the change cannot save more than, whatever the cost.
    """
    most = min(most_of(cost), limit)
    return Estimate(
        value=most / 2, unit="ms", low=0.0, high=most, n=cost.n, method=f"between 0 and all: {method}", bound=True
    )


def most_of(cost: Estimate) -> float:
    """Return what a cost is at most: its value, or the upper end where only its bounds are known."""
    return cost.high if cost.bound and cost.high is not None else cost.value
