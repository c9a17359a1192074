"""From raw steps to finished ledgers: each step closes, and what was booked whole is divided among its parts.

Steps observed in detail split forward and backward by module; other steps book ``forward`` and ``backward`` whole.
Those sums are divided by the shares of the detailed steps, in integers, so that the accounts still sum to the wall
time exactly.
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from stepprobe.model.accounts import BACKWARD, FORWARD, UNDIVIDED
from stepprobe.model.ledger import Ledger
from stepprobe.model.records import Step, Summary

PARTS = {"forward": FORWARD, "backward": (*BACKWARD, "recompute")}
"""What each undivided account splits into: recomputed activations run inside the backward pass."""
REST = {"forward": "forward.other", "backward": "backward.other"}
"""Where an undivided account goes when no step was observed in detail."""

Weights = Mapping[str, int]
Observation = Step | Summary
"""One step, or the sum over several."""


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One step, or the sum over several, with its accounts divided."""

    position: int
    """Index of the step; the middle one of a sum."""
    weight: int
    """Steps in it."""
    detail: bool
    wall_ns: int
    cpu_ns: int
    self_ns: int
    accounts: Mapping[str, int]
    """Nanoseconds by account, without ``forward`` and ``backward``; they sum to ``wall_ns``."""
    off_cpu: Mapping[str, int]
    """Nanoseconds off the CPU by account."""
    counters: Mapping[str, int]


def closure_ns(observation: Observation) -> int:
    """Return |wall − sum of accounts|: 0 unless the evidence is wrong."""
    return abs(observation.wall_ns - sum(wall for wall, _ in observation.accounts.values()))


def detailed_shares(observations: Iterable[Observation]) -> dict[str, dict[str, int]]:
    """Return, for each undivided account, the nanoseconds by part over the detailed observations."""
    shares: dict[str, dict[str, int]] = {whole: {} for whole in UNDIVIDED}
    for observation in observations:
        if observation.detail:
            for whole, parts in PARTS.items():
                for part in parts:
                    spent = observation.accounts.get(part, (0, 0))[0]
                    if spent:
                        shares[whole][part] = shares[whole].get(part, 0) + spent
    return shares


def attribute(observations: Sequence[Observation], shares: Mapping[str, Weights]) -> tuple[Entry, ...]:
    """Close and divide each observation, in the order of the run.

    A part that undivided observations book themselves takes no share of the rest.

    Raises:
        LedgerError: The accounts of an observation do not sum to its wall time.
    """
    own = {
        part
        for observation in observations
        if not observation.detail
        for part, (wall, _) in observation.accounts.items()
        if wall
    }
    usable = {
        whole: {part: weight for part, weight in shares[whole].items() if part not in own} or {REST[whole]: 1}
        for whole in UNDIVIDED
    }
    return tuple(sorted((_entry(one, usable) for one in observations), key=lambda entry: entry.position))


def _entry(observation: Observation, shares: Mapping[str, Weights]) -> Entry:
    walls = {account: wall for account, (wall, _) in observation.accounts.items()}
    Ledger(wall_ns=observation.wall_ns, accounts_ns=walls)  # refuses what does not close
    if isinstance(observation, Step):
        position, weight = observation.index, 1
    else:
        position, weight = (observation.first + observation.last) // 2, observation.count
    return Entry(
        position=position,
        weight=weight,
        detail=observation.detail,
        wall_ns=observation.wall_ns,
        cpu_ns=observation.cpu_ns,
        self_ns=observation.self_ns,
        accounts=divide_whole(walls, shares),
        off_cpu=divide_whole({account: off for account, (_, off) in observation.accounts.items()}, shares),
        counters=observation.counters,
    )


def divide_whole(accounts: Mapping[str, int], shares: Mapping[str, Weights]) -> dict[str, int]:
    """Replace ``forward`` and ``backward`` by their parts; the sum stays the same to the nanosecond."""
    divided = dict(accounts)
    for whole in UNDIVIDED:
        for part, spent in divide(divided.pop(whole, 0), shares[whole]).items():
            divided[part] = divided.get(part, 0) + spent
    return divided


def divide(total: int, weights: Weights) -> dict[str, int]:
    """Divide an integer by weights, by the largest remainder: the parts sum to it exactly.

    Raises:
        ValueError: The weights sum to nothing.
    """
    if not total:
        return {}
    whole = sum(weights.values())
    if whole <= 0:
        raise ValueError("weights that sum to nothing divide nothing")
    parts, remainders = {}, {}
    for name, weight in weights.items():
        parts[name], remainders[name] = divmod(total * weight, whole)
    left = total - sum(parts.values())
    for name in sorted(remainders, key=lambda name: (-remainders[name], name))[:left]:
        parts[name] += 1
    return parts
