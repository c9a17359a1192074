"""Memory of a repetition: what it took at its peak, what could be had, and when there was none left.

On a card the allocator of PyTorch knows the peak exactly. On the CPU the kernel's high-water mark of resident memory is
taken, after freed memory was given back to it. That makes the next step slower, so it is taken in a warm-up alone.
"""

import ctypes
import gc
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

MARGIN = 0.8
"""Part of the free memory that a point may be predicted to take: fragments and the prediction's error need the rest."""

_WORDS = re.compile(r"out of memory|not enough memory|can't allocate memory|cannot allocate memory", re.IGNORECASE)
_PROC = Path("/proc")
_CGROUP = Path("/sys/fs/cgroup")


def ran_out(error: BaseException, torch: ModuleType) -> bool:
    """Return whether an error says that there was no memory left; on the CPU PyTorch has no class of its own for it."""
    own = getattr(torch, "OutOfMemoryError", None) or getattr(torch.cuda, "OutOfMemoryError", None)
    if isinstance(error, MemoryError) or (isinstance(own, type) and isinstance(error, own)):
        return True
    return isinstance(error, RuntimeError) and bool(_WORDS.search(str(error)))


class Memory:
    """The memory in which the steps run."""

    def __init__(self, torch: ModuleType, kind: str) -> None:
        self._backend = None if kind == "cpu" else getattr(torch, kind, None)

    def peak_of(self, call: Callable[[], Any], *, warming: bool) -> tuple[Any, int | None]:
        """Return what a call returns, and the bytes that it held at its peak above what lay there before.

        Args:
            call: What is run.
            warming: Its time does not matter; on the CPU the peak is known then alone.
        """
        if self._backend is None:
            return _resident_peak(call) if warming else (call(), None)
        if not hasattr(self._backend, "max_memory_allocated"):
            return call(), None
        self._backend.reset_peak_memory_stats()
        before = self._backend.memory_allocated()
        result = call()
        return result, max(0, self._backend.max_memory_allocated() - before)

    def free_bytes(self) -> int | None:
        """Return the bytes that could be had now: free ones, and those that PyTorch keeps for itself."""
        if self._backend is None:
            return _free_of_machine()
        if not hasattr(self._backend, "mem_get_info"):
            return None
        free: int = self._backend.mem_get_info()[0]
        return free + int(self._backend.memory_reserved() - self._backend.memory_allocated())

    def release(self) -> None:
        """Give back what a failed step left."""
        gc.collect()
        if self._backend is not None and hasattr(self._backend, "empty_cache"):
            self._backend.empty_cache()


def _resident_peak(call: Callable[[], Any]) -> tuple[Any, int | None]:
    gc.collect()
    try:
        ctypes.CDLL(None).malloc_trim(0)
        (_PROC / "self/clear_refs").write_text("5")
        before = _status("VmRSS")
    except (OSError, AttributeError):  # no Linux, no glibc, or a sandbox
        return call(), None
    result = call()
    return result, max(0, _status("VmHWM") - before)


def _status(key: str) -> int:
    return _kilobytes(_PROC / "self/status", key)


def _kilobytes(path: Path, key: str) -> int:
    for line in path.read_text().splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) * 1024
    raise OSError(f"no {key} in {path}")


def _free_of_machine() -> int | None:
    try:
        free = _kilobytes(_PROC / "meminfo", "MemAvailable")
    except OSError:
        return None
    try:  # a container may have less than its machine; what it caches of files can be had, too
        most, used = (int((_CGROUP / name).read_text()) for name in ("memory.max", "memory.current"))
        lines = (_CGROUP / "memory.stat").read_text().splitlines()
        cached = sum(int(line.split()[1]) for line in lines if line.startswith("inactive_file "))
        return max(0, min(free, most - used + cached))
    except (OSError, ValueError):
        return free
