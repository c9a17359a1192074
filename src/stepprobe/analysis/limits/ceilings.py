"""The ceilings of this machine, and the least time of each account under them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from stepprobe.model.estimate import Estimate
from stepprobe.model.experiments import Limit
from stepprobe.model.report import Column, Table

Clock = Literal["device", "thread", "wall"]
"""Which time counts: between events on the card; CPU time of the calling thread; wall time."""

SPREAD = 0.2
"""Time by which the middle repeat may exceed the best one; beyond, something else ran beside."""
NS = 1e9

CLOCKS = {"device": "device time", "thread": "thread CPU time", "wall": "wall time"}


def clock_of(device: str, threads: int) -> Clock:
    """Return the clock by which work on a device is told: with one thread, what others take is not counted."""
    if device != "cpu":
        return "device"
    return "thread" if threads == 1 else "wall"


@dataclass(frozen=True)
class Ceiling:
    """The most that was seen of one kind of work."""

    rate: float
    """FLOPs, bytes or operators a second."""
    best: Limit
    clock: Clock
    repeats: int
    wide: tuple[Limit, ...]
    """Sizes whose repeats differ by more than ``SPREAD``."""

    @property
    def method(self) -> str:
        """How it was had, for a person."""
        size = "" if self.best.kind == "dispatch" else f" at size {self.best.size}"
        kind = f", {self.best.dtype}" if self.best.kind == "matmul" else ""
        return f"best of {self.repeats} repeats{size}{kind}, {CLOCKS[self.clock]}"


def times_ns(limit: Limit, clock: Clock) -> list[int]:
    """Return the times of the repeats by a clock; wall time where it has none."""
    if clock == "device":
        return limit.device_ns or limit.wall_ns
    return limit.thread_ns if clock == "thread" else limit.wall_ns


def rate_of(limit: Limit, clock: Clock) -> float:
    """Return the best rate of one size, per second."""
    best = min(times_ns(limit, clock))
    return limit.work / best * NS if best > 0 else 0.0


def spread_of(limit: Limit, clock: Clock) -> float:
    """Return by how much the middle repeat exceeds the best one, as a share of the best."""
    times = times_ns(limit, clock)
    return median(times) / min(times) - 1 if min(times) > 0 else 0.0


def ceiling(limits: Iterable[Limit], kind: str, clock: Clock, dtype: str | None = None) -> Ceiling | None:
    """Return the most over all sizes of one kind of work; None where it was not measured.

    Args:
        limits: Every size that was measured, bursts between steps among them.
        kind: ``matmul``, ``copy`` or ``dispatch``.
        clock: Which time counts; dispatch is the host's affair and is told by its thread's CPU time.
        dtype: Element type of products; None for any.
    """
    if kind == "dispatch":
        clock = "thread"
    found = [limit for limit in limits if limit.kind == kind and dtype in (None, limit.dtype) and limit.wall_ns]
    found = [limit for limit in found if min(times_ns(limit, clock)) > 0]
    if not found:
        return None
    best = max(found, key=lambda limit: rate_of(limit, clock))
    return Ceiling(
        rate=rate_of(best, clock),
        best=best,
        clock=clock,
        repeats=sum(len(limit.wall_ns) for limit in found if (limit.size, limit.dtype) == (best.size, best.dtype)),
        wide=tuple(limit for limit in found if spread_of(limit, clock) > SPREAD),
    )


def limit_figures(ceilings: Mapping[str, Ceiling | None]) -> tuple[dict[str, Estimate], tuple[str, ...]]:
    """Return the figures ``limit.*`` and what has to be said about them."""
    figures: dict[str, Estimate] = {}
    notes: list[str] = []
    for kind, name in (("matmul", "limit.matmul_flops"), ("copy", "limit.copy_bytes_per_s"), ("dispatch", "")):
        found = ceilings.get(kind)
        if found is None:
            notes.append(f"the ceiling of {kind} was not measured: nothing is told against it")
            continue
        if kind == "dispatch":
            figures["limit.dispatch"] = Estimate(value=NS / found.rate, unit="ns", n=found.repeats, method=found.method)
        else:
            unit: Literal["FLOP/s", "bytes/s"] = "FLOP/s" if kind == "matmul" else "bytes/s"
            figures[name] = Estimate(value=found.rate, unit=unit, n=found.repeats, method=found.method)
        for limit in found.wide:
            notes.append(
                f"{kind} at size {limit.size}: the middle repeat took {spread_of(limit, found.clock):.0%} longer than "
                "the best one, so something else ran beside: the ceiling may be too low, and shares of it too high"
            )
    return figures, tuple(notes)


def ceiling_table(limits: Sequence[Limit], clock: Clock) -> Table:
    """Return one line for each size that was measured before anything else."""
    rows = [
        (
            limit.kind,
            limit.size,
            limit.dtype if limit.kind == "matmul" else "",
            _shown(limit, clock),
            {"matmul": "GFLOP/s", "copy": "GB/s", "dispatch": "ns each"}[limit.kind],
            spread_of(limit, "thread" if limit.kind == "dispatch" else clock),
            len(limit.wall_ns),
        )
        for limit in limits
        if limit.block is None and limit.wall_ns
    ]
    titles = (
        ("work", ""),
        ("size", "count"),
        ("dtype", ""),
        ("best", ""),
        ("unit", ""),
        ("spread", "1"),
        ("n", "count"),
    )
    return Table(
        name="ceilings",
        title="What this machine can do at most, measured first",
        columns=tuple(Column(title=title, unit=unit) for title, unit in titles),
        rows=tuple(rows),
        caption="Best repeat of each size. Spread: the middle repeat's time above the best one's; more than "
        f"{SPREAD:.0%} says that something else ran beside.",
    )


def _shown(limit: Limit, clock: Clock) -> float:
    """Return a rate in billions a second; of dispatch the time of one operator in ns."""
    if limit.kind == "dispatch":
        return NS / rate if (rate := rate_of(limit, "thread")) else 0.0
    return rate_of(limit, clock) / 1e9


@dataclass(frozen=True)
class Work:
    """What one account has to do in an optimizer step, at least."""

    flops: float = 0.0
    bytes: float = 0.0
    operators: float = 0.0


@dataclass(frozen=True)
class Floor:
    """The least time of one account, and what binds it."""

    ms: float
    bound: str
    """``arithmetic``, ``memory``, ``dispatch``; empty where nothing is known that it must do."""


def floor(work: Work, ceilings: Mapping[str, Ceiling | None]) -> Floor:
    """Return the least time that some work takes: the longest of arithmetic, memory and dispatch."""
    kinds = (
        ("matmul", work.flops, "arithmetic"),
        ("copy", work.bytes, "memory"),
        ("dispatch", work.operators, "dispatch"),
    )
    found = [
        (amount / made.rate * 1e3, bound)
        for kind, amount, bound in kinds
        if amount and (made := ceilings.get(kind)) is not None
    ]
    return Floor(*max(found)) if found else Floor(0.0, "")
