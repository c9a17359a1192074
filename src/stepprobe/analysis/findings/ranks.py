"""Findings about ranks that wait for each other."""

import math
from collections.abc import Iterator, Sequence

from stepprobe.analysis.findings.view import Rule, View, up_to
from stepprobe.analysis.ledger.contention import COMPUTING
from stepprobe.analysis.ledger.process import NS_PER_MS, Process
from stepprobe.analysis.ledger.tables import WAITING
from stepprobe.analysis.statistics import Mean, difference
from stepprobe.model.accounts import ACCOUNTS, LABELS
from stepprobe.model.estimate import Estimate
from stepprobe.model.finding import Finding, Remedy

OWN = tuple(account for account in ACCOUNTS if account not in WAITING)
"""Accounts of a rank's own work."""


def straggler(view: View) -> Iterator[Finding]:
    """Ranks meet in the backward pass: the one that the others wait for waits least itself."""
    if len(view.ranks) < 2:
        return
    waits = {rank.rank: rank.account(*WAITING) for rank in view.ranks}
    slow = _waits_least(view.ranks)
    others = [rank for rank in view.ranks if rank is not slow]
    cost = _difference(
        waits[slow.rank],
        _mean([waits[rank.rank] for rank in others]),
        "backward and sync of the other ranks, minus the straggler's",
    )
    if view.worth(cost) and cost.low is not None and cost.low > 0:
        yield _straggler(view, slow, others, cost)
    else:
        yield from _uneven(view)


def most_uneven(ranks: Sequence[Process], *, waits: bool) -> tuple[int, str]:
    """Return the rank that the others wait for, and the account of its own in which it exceeds them most surely.

    Args:
        ranks: At least two.
        waits: Whether it is known by the others' waiting; else by its excess alone.
    """
    if not waits:
        slow, account, _ = _has_most(ranks)
        return slow.rank, account
    slow = _waits_least(ranks)
    return slow.rank, _most_above(slow, [rank for rank in ranks if rank is not slow])[0]


def unevenness(ranks: Sequence[Process], number: int, account: str) -> float:
    """Return the ms per step by which a rank exceeds the mean of the others in an account."""
    own = sum(_worked(rank, account).value for rank in ranks if rank.rank == number)
    return own - _mean([_worked(rank, account) for rank in ranks if rank.rank != number]).value


def _waits_least(ranks: Sequence[Process]) -> Process:
    return min(ranks, key=lambda rank: (rank.account(*WAITING).value, rank.rank))


def _has_most(ranks: Sequence[Process]) -> tuple[Process, str, Estimate]:
    found = [(slow, *_most_above(slow, [rank for rank in ranks if rank is not slow])) for slow in ranks]
    return max(found, key=lambda one: _sureness(one[2]))


def _straggler(view: View, slow: Process, others: Sequence[Process], cost: Estimate) -> Finding:
    account, excess = _most_above(slow, others)
    gain = max(0.0, min(cost.value, excess.value))
    method = "what the others wait, at most what this account takes more"
    predicted = Estimate(value=gain, unit="ms", low=min(cost.low or 0.0, gain), high=cost.high, n=cost.n, method=method)
    return _finding(
        view,
        "rank.straggler",
        f"Each step waits {cost.value:.3g} ms for rank {slow.rank}: "
        f"its {LABELS[account]} takes {excess.value:.3g} ms more.",
        (slow, account),
        (WAITING, cost, predicted),
    )


def _uneven(view: View) -> Iterator[Finding]:
    """No rank visibly waits, for example since all are held up by a busy machine, but one has more to do."""
    slow, account, excess = _has_most(view.ranks)
    if view.worth(excess) and excess.low is not None and excess.low > 0:
        yield _finding(
            view,
            "rank.uneven",
            f"Rank {slow.rank} spends {excess.value:.3g} ms a step more in {LABELS[account]} than the other ranks; "
            "how long they wait for it does not show.",
            (slow, account),
            ((account,), excess, up_to(excess, "the others may have been as late for other reasons")),
        )


def _finding(
    view: View,
    kind: str,
    title: str,
    cause: tuple[Process, str],
    sizes: tuple[tuple[str, ...], Estimate, Estimate],
) -> Finding:
    (slow, account), (accounts, cost, predicted) = cause, sizes
    line = slow.hottest((account,))
    action = f"bring {LABELS[account]} on rank {slow.rank} down to what it is on the others"
    return Finding(
        kind=kind,
        title=title,
        where=f"rank {slow.rank}, {line}" if line else f"rank {slow.rank}",
        cost=cost,
        share=view.share(cost),
        accounts=accounts,
        remedies=(Remedy(name="rank.evened", action=action, predicted=predicted),),
        cites=("ranks",),
    )


def _difference(before: Mean, after: Mean, method: str) -> Estimate:
    value, low, high = difference(before, after)
    return Estimate(value=value, unit="ms", low=low, high=high, n=before.n, method=method)


def _mean(means: Sequence[Mean]) -> Mean:
    """Average independent means."""
    count = len(means)
    errors = [mean.error for mean in means if mean.error is not None]
    error = sum(e * e for e in errors) ** 0.5 / count if len(errors) == count else None
    return Mean(sum(mean.value for mean in means) / count, error, min(mean.blocks for mean in means), means[0].n)


def _most_above(slow: Process, others: Sequence[Process]) -> tuple[str, Estimate]:
    """Return the account of its own work in which a rank exceeds the others most surely, and by how many ms."""

    def excess(account: str) -> Estimate:
        usual = _mean([_worked(rank, account) for rank in others])
        return _difference(usual, _worked(slow, account), "this rank minus the mean of the others")

    return max(((account, excess(account)) for account in OWN), key=lambda one: _sureness(one[1]))


def _sureness(excess: Estimate) -> tuple[float, float]:
    """What is at least there comes first: on a busy machine a larger excess of chance must not hide a sure one."""
    return -math.inf if excess.low is None else excess.low, excess.value


def _worked(rank: Process, account: str) -> Mean:
    """Return ms per step in an account; of computing on the CPU only what was computed, not what was waited for."""
    if account in COMPUTING and rank.facts.get("device") == "cpu":
        return rank.mean(lambda one: (one.accounts.get(account, 0) - one.off_cpu.get(account, 0)) / NS_PER_MS)
    return rank.account(account)


RULES: tuple[Rule, ...] = (straggler,)
