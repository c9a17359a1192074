"""Findings about ranks that wait for each other."""

from collections.abc import Iterator, Sequence

from stepprobe.analysis.findings.view import Rule, View
from stepprobe.analysis.process import Process
from stepprobe.analysis.statistics import Mean, difference
from stepprobe.analysis.tables import WAITING
from stepprobe.model.accounts import ACCOUNTS, LABELS
from stepprobe.model.estimate import Estimate
from stepprobe.model.finding import Finding, Remedy


def straggler(view: View) -> Iterator[Finding]:
    """Ranks meet in the backward pass: the one that the others wait for waits least itself."""
    if len(view.ranks) < 2:
        return
    waits = {rank.rank: rank.account(*WAITING) for rank in view.ranks}
    slow = min(view.ranks, key=lambda rank: (waits[rank.rank].value, rank.rank))
    others = [rank for rank in view.ranks if rank is not slow]
    value, low, high = difference(waits[slow.rank], _mean([waits[rank.rank] for rank in others]))
    method = "backward and sync of the other ranks, minus the straggler's"
    cost = Estimate(value=value, unit="ms", low=low, high=high, n=waits[slow.rank].n, method=method)
    if not view.worth(cost) or (low is not None and low <= 0):
        return
    account, excess = _most_above(slow, others)
    where = slow.hottest((account,))
    gain = min(value, excess)
    yield Finding(
        kind="rank.straggler",
        title=f"Each step waits {value:.3g} ms for rank {slow.rank}: its {LABELS[account]} takes {excess:.3g} ms more.",
        where=f"rank {slow.rank}, {where}" if where else f"rank {slow.rank}",
        cost=cost,
        share=view.share(cost),
        accounts=WAITING,
        remedies=(
            Remedy(
                action=f"bring {LABELS[account]} on rank {slow.rank} down to what it is on the others",
                predicted=Estimate(
                    value=gain,
                    unit="ms",
                    low=None if low is None else min(low, gain),
                    high=None if high is None else max(high, gain),
                    n=cost.n,
                    method="what the others wait, at most what this account takes more",
                ),
            ),
        ),
        cites=("ranks",),
    )


def _mean(means: Sequence[Mean]) -> Mean:
    """Average independent means."""
    count = len(means)
    errors = [mean.error for mean in means if mean.error is not None]
    error = sum(e * e for e in errors) ** 0.5 / count if len(errors) == count else None
    return Mean(sum(mean.value for mean in means) / count, error, min(mean.blocks for mean in means), means[0].n)


def _most_above(slow: Process, others: Sequence[Process]) -> tuple[str, float]:
    """Return the account of its own work in which a rank exceeds the others most, and by how many ms."""

    def excess(account: str) -> float:
        usual = sum(rank.account(account).value for rank in others) / len(others)
        return slow.account(account).value - usual

    account = max((name for name in ACCOUNTS if name not in WAITING), key=excess)
    return account, excess(account)


RULES: tuple[Rule, ...] = (straggler,)
