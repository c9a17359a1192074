"""The ledger as it is drawn: rows worth a line, small ones folded, each with the finding that belongs to it."""

import math

import msgspec

from stepprobe.model.accounts import LABELS
from stepprobe.model.device import DEVICE_LABELS
from stepprobe.model.estimate import Estimate
from stepprobe.model.finding import Finding
from stepprobe.model.report import Report
from stepprobe.report.numbers import percent, spans_zero, step_wall

SMALL_SHARE = 0.0005
"""Accounts below this part of the step, with no finding, share one line."""
OFF_CPU_SHARE = 0.2
OFF_CPU_MS = 0.5
"""From both on, the time a thread was off the CPU inside an account is marked."""
MANY = 5
NEARLY_EVERYTHING = 0.8
"""From so many marked accounts, with that part of the step in them, they are not listed one by one."""
OFF_CPU_MARK = "◌"

_FAMILIES = {"data": "data", "h2d": "copies", "d2h": "copies", "sync": "copies", "forward": "forward", "eval": "rest"}
_FAMILIES |= {"recompute": "backward", "backward": "backward", "unattributed": "unattributed"}
_FAMILIES |= dict.fromkeys(("clip", "optimizer", "zero_grad", "scheduler"), "optimizer")
_FAMILIES |= {"compute": "compute", "communication": "communication", "copy": "copies"}
_FAMILIES |= {"carried_over": "carried", "idle": "idle"}
FAMILIES = {
    "data": "data",
    "copies": "copies and syncs",
    "forward": "forward",
    "backward": "backward",
    "optimizer": "optimizer",
    "compute": "device computes",
    "communication": "bare communication",
    "carried": "device, work carried over",
    "idle": "device stands still",
    "rest": "everything else",
    "unattributed": "unattributed",
}
"""Families of accounts, in the order in which they are stacked, and the words for them."""


def family(account: str) -> str:
    """Return the family, a key of ``FAMILIES``, that an account belongs to."""
    return _FAMILIES.get(account.partition(".")[0], "rest")


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One drawn row of the ledger."""

    label: str
    family: str
    """Key of ``FAMILIES``."""
    ms: float
    """ms per optimizer step."""
    low: float | None = None
    high: float | None = None
    """Ends of the 95 % interval of ``ms``."""
    share: float
    """Part of the step's wall time, 0..1."""
    off_cpu: float | None = None
    """Part of its time off the CPU, 0..1, where that is large enough to be told; else None."""
    where: str = ""
    """The hottest line of the account."""
    finding: Finding | None = None
    """Of the findings in this account, the one whose changes are told to gain most."""
    gains: Estimate | None = None
    """What the best of its changes should save; None where no change of it has a size."""
    number: int = 0
    """Place of ``finding`` in the report, from 1."""
    more: int = 0
    """Further findings in the same account."""


class Family(msgspec.Struct, frozen=True, kw_only=True):
    """Accounts that belong together, summed."""

    name: str
    label: str
    ms: float
    share: float


def lines(report: Report) -> tuple[Line, ...]:
    """Return the rows to draw, in the report's order; small accounts are one row before ``unattributed``.

    Their times sum to what the report's rows sum to: the wall time of the step.
    """
    beside: dict[str, list[tuple[int, Finding]]] = {}
    for place, finding in enumerate(report.findings, 1):
        if finding.accounts:
            beside.setdefault(finding.accounts[0], []).append((place, finding))
    drawn: list[Line] = []
    small: list[Line] = []
    last: list[Line] = []
    for row in report.ledger:
        here = beside.get(row.account, [])
        chosen = max(here, key=lambda one: _sizes(one[1]), default=None)
        line = Line(
            label=LABELS.get(row.account) or DEVICE_LABELS.get(row.account, row.account),
            family=family(row.account),
            ms=row.time.value,
            low=row.time.low,
            high=row.time.high,
            share=row.share,
            off_cpu=_told(row.off_cpu, row.time.value),
            where=row.where,
            number=chosen[0] if chosen else 0,
            finding=chosen[1] if chosen else None,
            gains=_best(chosen[1]) if chosen else None,
            more=max(0, len(here) - 1),
        )
        if row.account == "unattributed":
            last.append(line)
        else:
            (drawn if here or row.share >= SMALL_SHARE else small).append(line)
    return (*drawn, *_folded(small), *last)


def families(report: Report) -> tuple[Family, ...]:
    """Return the sums of the families that hold time, in stacking order."""
    members = {name: [row for row in report.ledger if family(row.account) == name] for name in FAMILIES}
    sums = (
        Family(
            name=name,
            label=FAMILIES[name],
            ms=math.fsum(row.time.value for row in rows),
            share=math.fsum(row.share for row in rows),
        )
        for name, rows in members.items()
    )
    return tuple(summed for summed in sums if summed.ms > 0)


def wall_ms(report: Report) -> float:
    """Return the wall time of the step in ms: the figure, or the sum of the rows where it is missing."""
    wall = step_wall(report)
    return wall.value if wall is not None else math.fsum(row.time.value for row in report.ledger)


def off_cpu(report: Report) -> str:
    """Return the accounts that are marked as off the CPU, with their part of the time; empty where none is.

    Where most of the step is in such accounts, they are one: ``nearly everything: 50 %``.
    """
    marked = [line for line in lines(report) if line.off_cpu is not None]
    if len(marked) >= MANY and math.fsum(line.share for line in marked) >= NEARLY_EVERYTHING:
        away = math.fsum(row.time.value * (row.off_cpu or 0.0) for row in report.ledger)
        return f"nearly everything: {percent(away / wall_ms(report), 0)} % of the step"
    return ", ".join(f"{line.label} {percent(line.off_cpu, 0)}\u00a0%" for line in marked)


def _best(finding: Finding) -> Estimate | None:
    """Return what the best of a finding's changes should save: rather what is known to gain than a ceiling."""
    return max((one.predicted for one in finding.remedies), key=_size, default=None)


def _sizes(finding: Finding) -> tuple[int, float]:
    return _size(_best(finding))


def _size(gains: Estimate | None) -> tuple[int, float]:
    """Return how much is known of a gain, and how large it is: none, an undecided one, a ceiling, one with a size."""
    if gains is None or gains.unit != "ms" or not math.isfinite(gains.value):
        return 0, 0.0
    if spans_zero(gains) or gains.value <= 0:
        return 1, gains.value
    return (2, gains.value if gains.high is None else gains.high) if gains.bound else (3, gains.value)


def _told(off_cpu: float | None, ms: float) -> float | None:
    if off_cpu is None or off_cpu < OFF_CPU_SHARE or off_cpu * ms < OFF_CPU_MS:
        return None
    return off_cpu


def _folded(small: list[Line]) -> tuple[Line, ...]:
    small = [line for line in small if line.ms]
    if len(small) < 2:
        return tuple(small)
    ms, share = math.fsum(line.ms for line in small), math.fsum(line.share for line in small)
    return (Line(label=f"{len(small)} small accounts", family="rest", ms=ms, share=share),)
