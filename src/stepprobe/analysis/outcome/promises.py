"""Promises: each change that a run proposed, with what it should save; and several of them together."""

from collections.abc import Mapping, Sequence
from math import prod

import msgspec

from stepprobe.model.estimate import Estimate
from stepprobe.model.finding import Finding, Remedy


class Promise(msgspec.Struct, frozen=True, kw_only=True):
    """One remedy of one finding, with what shows that it was made."""

    number: int
    """Which finding of the run before, from 1."""
    finding: Finding
    remedy: Remedy
    seen: str
    """What shows that it was made; empty where nothing does."""
    undecided: str = ""
    """Why the evidence cannot tell whether it was made; empty where it can."""
    taints: bool = False
    """Whether, undecided, it may have had a part in what came beside the changes that were made."""

    @property
    def accounts(self) -> frozenset[str]:
        """Accounts in which it saves."""
        return frozenset(self.finding.accounts)

    def apart_from(self, others: Sequence["Promise"]) -> bool:
        """Return whether no other change saves in its accounts."""
        return bool(self.accounts) and not any(self.accounts & other.accounts for other in others if other is not self)


ON_TOP = (("padding.longest", "padding.group"), ("forecast.longest", "forecast.bucketing"))
"""Changes of which the second is promised for what the first leaves: their promises add up."""


def together(made: Sequence[Promise], spent: Mapping[frozenset[str], float]) -> Estimate | None:
    """Return what several changes should save at once, the time that they share counted once.

    Of changes to one finding only the largest counts, unless one is promised on top of the other: these add up. Changes
    that share accounts take their parts one after the other of what the one before has left; at least the largest of
    them comes, at most their sum, or all that lies there.

    Args:
        made: The changes.
        spent: ms per step in each set of accounts that ``sets_of`` names.
    """
    clusters = _clusters(_added_up(made))
    parts = [_cluster(cluster, spent[_union(cluster)]) for cluster in clusters]
    if not parts or any(part is None for part in parts):
        return None
    known = [part for part in parts if part is not None]
    if len(made) == 1:
        return known[0]
    lows, highs = [one.low for one in known], [one.high for one in known]
    return Estimate(
        value=sum(one.value for one in known),
        unit="ms",
        low=None if None in lows else sum(low for low in lows if low is not None),
        high=None if None in highs else sum(high for high in highs if high is not None),
        n=min(one.n for one in known),
        method=f"{len(made)} changes together, time that they share counted once",
        bound=all(one.bound for one in known),
    )


def sets_of(made: Sequence[Promise]) -> list[frozenset[str]]:
    """Return the sets of accounts whose time ``together`` asks for."""
    return [_union(cluster) for cluster in _clusters(_added_up(made))]


def _added_up(made: Sequence[Promise]) -> list[Promise]:
    """Put two changes of which one is promised on top of the other into one."""
    found = {one.remedy.name: one for one in made}
    for below, above in ON_TOP:
        if below in found and above in found:
            first, second = found.pop(below), found[above]
            predicted = _sum(first.remedy.predicted, second.remedy.predicted)
            remedy = msgspec.structs.replace(second.remedy, predicted=predicted)
            one = msgspec.structs.replace(second, remedy=remedy)
            return [one if other is second else other for other in made if other is not first]
    return list(made)


def _sum(first: Estimate | None, second: Estimate | None) -> Estimate | None:
    if first is None or second is None:
        return None
    known = None not in (first.low, first.high, second.low, second.high)
    return Estimate(
        value=first.value + second.value,
        unit="ms",
        low=(first.low or 0.0) + (second.low or 0.0) if known else None,
        high=(first.high or 0.0) + (second.high or 0.0) if known else None,
        n=min(first.n, second.n),
        method="one on top of the other",
        bound=first.bound and second.bound,
    )


def _union(cluster: Sequence[Promise]) -> frozenset[str]:
    return frozenset().union(*(one.accounts for one in cluster))


def _clusters(made: Sequence[Promise]) -> list[list[Promise]]:
    """Put changes that share accounts together."""
    clusters: list[list[Promise]] = []
    for promise in _largest_of_each_finding(made):
        near = [cluster for cluster in clusters if _union(cluster) & promise.accounts]
        clusters = [cluster for cluster in clusters if cluster not in near]
        clusters.append([*(one for cluster in near for one in cluster), promise])
    return clusters


def _largest_of_each_finding(made: Sequence[Promise]) -> list[Promise]:
    best: dict[int, Promise] = {}
    for promise in made:
        held = best.get(promise.number)
        if held is None or _value(promise) > _value(held):
            best[promise.number] = promise
    return list(best.values())


def _value(promise: Promise) -> float:
    return promise.remedy.predicted.value if promise.remedy.predicted else -1.0


def _cluster(cluster: Sequence[Promise], spent: float) -> Estimate | None:
    predicted = [one.remedy.predicted for one in cluster if one.remedy.predicted is not None]
    if len(predicted) < len(cluster):
        return None
    if len(predicted) == 1:
        return predicted[0]
    lows = [one.low for one in predicted if one.low is not None]
    highs = [one.high for one in predicted if one.high is not None]
    whole = len(lows) == len(highs) == len(predicted)
    return Estimate(
        value=_one_after_the_other([one.value for one in predicted], spent),
        unit="ms",
        low=max(lows) if whole else None,
        high=max(min(sum(highs), spent), *highs) if whole else None,
        n=min(one.n for one in predicted),
        method="each takes its part of what the others leave",
        bound=all(one.bound for one in predicted),
    )


def _one_after_the_other(gains: Sequence[float], spent: float) -> float:
    return spent * (1 - prod(1 - min(1.0, gain / spent) for gain in gains)) if spent else sum(gains)
