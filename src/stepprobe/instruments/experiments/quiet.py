"""Whether the machine is idle enough to measure on: the processors and the card are watched, not names of processes.

It is looked at twice: before the script is started (``before_start``), where nothing is known of its step, and before
the experiments. This process rests for ``REST_S`` and looks who used the processors that it may use meanwhile. The
job's own processes (its data workers; with several ranks those of its launcher) are no others: they fill their queues
and rest. So the machine is given ``PATIENCE`` such looks to become quiet.
"""

import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

REST_S = 0.3
"""One look. A tick of the kernel's books is 10 ms, so on two processors a look knows the share to 2 %."""
PATIENCE = 5
"""Looks until the machine is called busy: what a data worker or an editor does for a second does not count."""
OTHERS_SHARE = 0.25
"""Above it others are felt even where processors stay idle: they share caches, memory and the clock's frequency."""
OTHERS_ROOM = 0.25
"""Processors that others may take where ours need all the rest; a machine that runs nothing takes about a tenth."""
DEVICE_BUSY = 0.05
"""Utilisation of a card that rests is 0; reading it and drawing a desktop stay below this."""
DEVICE_REST_S = 1.1
"""Utilisation is of the last second at most: after that our own kernels are no part of it."""

_PROC = Path("/proc")


class Sample(NamedTuple):
    """Who used the processors while this process rested, in processors."""

    cpus: int
    others: float | None
    """None where the kernel keeps no books that we may read."""
    own: float
    """The job's own processes, data workers above all."""


def observe(torch: ModuleType, kind: str, *, free_bytes: int | None, anyway: bool) -> dict[str, Any]:
    """Return the fields of a ``quiet`` line. ``refused`` says why nothing should be measured, empty where it may be."""
    threads = torch.get_num_threads() if kind == "cpu" else 1
    device = _device(torch, kind)
    why = _busy_card(device[0])
    sample = _settled(threads)
    why = why or busy(sample, threads)
    return {
        "load": _load(),
        "cpus": sample.cpus,
        "others_share": None if sample.others is None else round(sample.others / sample.cpus, 4),
        "own_share": round(sample.own / sample.cpus, 4),
        "device_busy_share": device[0],
        "device_processes": device[1],
        "free_bytes": free_bytes,
        "refused": "" if anyway else why,
        "anyway": anyway,
        "busy": why,
    }


def before_start() -> str:
    """Return why the processors are too busy for any step, empty where they are not; the card is not looked at."""
    return busy(_settled(1), 1, "a step needs 1 at least")


def _settled(threads: int) -> Sample:
    """Look until the processors are quiet, or ``PATIENCE`` is at its end."""
    sample = processors()
    for _ in range(PATIENCE - 1):
        if not busy(sample, threads):
            break
        sample = processors()
    return sample


def busy(sample: Sample, threads: int, need: str = "") -> str:
    """Return why the processors are too busy for a step of so many threads; empty where they are not.

    Args:
        sample: Who used them.
        threads: With how many the step computes.
        need: Says so for a person; empty for the usual words.
    """
    if sample.others is None:
        return ""
    crowded = threads + sample.others > sample.cpus + OTHERS_ROOM
    if not crowded and sample.others <= OTHERS_SHARE * sample.cpus:
        return ""
    return (
        f"other processes use {sample.others:.1f} of {sample.cpus} processors, and "
        f"{need or f'the step needs {threads}'}: "
        "wait until the machine is idle, or measure with --anyway, which marks every figure"
    )


def _busy_card(share: float | None) -> str:
    if share is None or share <= DEVICE_BUSY:
        return ""
    return (
        f"the card is {share:.0%} busy while this process lets it rest: another process uses it; "
        "wait until it is idle, or measure with --anyway, which marks every figure"
    )


def processors(sleep: Callable[[float], None] = time.sleep) -> Sample:
    """Rest for a moment, and return who used the processors."""
    allowed = _allowed()
    try:
        first, own = _books(allowed), _own_ticks()
        sleep(REST_S)
        second, own_after = _books(allowed), _own_ticks()
    except (OSError, ValueError, IndexError):
        return Sample(_cpus(allowed), None, 0.0)
    total, worked = second[0] - first[0], second[1] - first[1]
    ours = sum(max(0, ticks - own.get(pid, 0)) for pid, ticks in own_after.items())
    if total <= 0:
        return Sample(_cpus(allowed), None, 0.0)
    of_a_tick = len(allowed) / total
    return Sample(_cpus(allowed), max(0.0, worked - ours) * of_a_tick, ours * of_a_tick)


def _allowed() -> set[int]:
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def _cpus(allowed: set[int]) -> int:
    """Return how many processors this process can use: a container may have less time than its machine has."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return max(1, min(len(allowed), math.ceil(int(quota) / int(period))))
    except (OSError, ValueError):  # none, or "max"
        return len(allowed)


def _books(allowed: set[int]) -> tuple[int, int]:
    """Return (all ticks, ticks in which a processor worked or was taken away) of the processors that we may use."""
    total = worked = 0
    for line in (_PROC / "stat").read_text().splitlines():
        name, *fields = line.split()
        if name.startswith("cpu") and name[3:].isdigit() and int(name[3:]) in allowed:
            ticks = [int(field) for field in fields[:8]]  # the rest is counted in the first two already
            total += sum(ticks)
            worked += sum(ticks) - ticks[3] - ticks[4]
    return total, worked


def _own_ticks() -> dict[int, int]:
    """Return the ticks that each process of the job has used."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for path in _PROC.glob("[0-9]*/stat"):
        try:
            fields = path.read_text(errors="replace").rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        pid = int(path.parent.name)
        parents[pid] = int(fields[1])
        ticks[pid] = int(fields[11]) + int(fields[12])
    mine = {os.getpid()}
    if int(os.environ.get("LOCAL_WORLD_SIZE", "1") or 1) > 1:
        mine.add(os.getppid())
    while True:
        more = {pid for pid, parent in parents.items() if parent in mine} - mine
        if not more:
            return {pid: ticks.get(pid, 0) for pid in mine}
        mine |= more


def _load() -> float:
    try:
        return round(os.getloadavg()[0], 2)
    except OSError:
        return 0.0


def _device(torch: ModuleType, kind: str) -> tuple[float | None, int | None]:
    """Return utilisation of the card (0..1) while it rests, and other processes on it; None where nobody tells."""
    if kind != "cuda":
        return None, None
    torch.cuda.synchronize()
    time.sleep(DEVICE_REST_S)
    try:
        share = torch.cuda.utilization() / 100
    except Exception:  # it needs NVML's bindings, which may not be there, and raises many things
        share = None
    try:
        return share, other_processes(torch.cuda.list_gpu_processes())
    except Exception:
        return share, None


def other_processes(listed: str) -> int | None:
    """Return how many lines of PyTorch's list of processes on the card are not of this one; None if it is no list."""
    if "not found" in listed:
        return None
    lines = [line.split() for line in listed.splitlines()]
    return sum(1 for words in lines if words[:1] == ["process"] and words[1:2] != [str(os.getpid())])
