"""Clocks of one repetition: wall, calling thread, whole process, and the card between two events."""

import time
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple


class Clocks:
    """The clocks of this process, in ns."""

    wall = staticmethod(time.perf_counter_ns)
    thread = staticmethod(time.thread_time_ns)
    process = staticmethod(time.process_time_ns)


class Reading(NamedTuple):
    """What one repetition took, in ns."""

    wall_ns: int
    thread_ns: int
    process_ns: int
    device_ns: int | None


class Stopwatch:
    """Times a call from an idle device to an idle device."""

    def __init__(self, torch: ModuleType, kind: str, clocks: Clocks | None = None) -> None:
        self._clocks = clocks or Clocks()
        self._backend = None if kind == "cpu" else getattr(torch, kind, None)

    def synchronize(self) -> None:
        """Wait until the device has done what it was given."""
        if self._backend is not None:
            self._backend.synchronize()

    def timed(self, call: Callable[[], Any]) -> tuple[Any, Reading]:
        """Return what a call returns, and what it took until the device was idle again."""
        clocks, events = self._clocks, self._events()
        self.synchronize()
        if events:
            events[0].record()
        wall, process, thread = clocks.wall(), clocks.process(), clocks.thread()
        result = call()
        if events:
            events[1].record()
        self.synchronize()
        thread = clocks.thread() - thread
        process = clocks.process() - process
        wall = clocks.wall() - wall
        device = round(events[0].elapsed_time(events[1]) * 1e6) if events else None
        return result, Reading(wall, thread, process, device)

    def now_s(self) -> float:
        """Return the wall clock in seconds."""
        return self._clocks.wall() / 1e9

    def _events(self) -> tuple[Any, Any] | None:
        make = getattr(self._backend, "Event", None)
        return (make(enable_timing=True), make(enable_timing=True)) if make else None
