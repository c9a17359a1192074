"""What the instrument costs, and how much detail that allows.

The cost of a step is counted: what the long hooks time of themselves, plus short events times unit costs. The unit
costs are measured in the user's process before the first step, between writes that empty the caches, since that is
how a hook between two large tensor operations finds them.
"""

import gc
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from stepprobe.instruments.attach.clock import StackClock
from stepprobe.instruments.attach.patches import Gate, booked

SHARE = 0.005
"""Part of the step's CPU time that hooks may take on average."""
ALWAYS_DETAILED = frozenset({1, 2})
"""Early steps that are observed in detail whatever it costs: they tell what detail costs."""
LEAST_EARLY, LEAST, EARLY_STEPS = 0.10, 0.02, 100
"""Smallest chance of a step to be observed in detail, in the first ``EARLY_STEPS`` steps and later."""
SCHEMA = 1
EVENTS_OF_A_PART = 4
"""Events of the clock that one call of a hooked part makes: begin, end, enter its backward, leave it."""
EVENTS_OF_A_SYNC = 2
VERSIONS_OF = ("torch", "transformers", "trl", "peft", "accelerate", "datasets", "lightning", "deepspeed", "numpy")


class Budget:
    """Decides which steps are observed in detail, and says what each step's hooks cost."""

    def __init__(self) -> None:
        self.unit_cost_ns: dict[str, float] = {"event": 0.0, "part": 0.0, "sync": 0.0}
        self.forced = {"always": True, "never": False}.get(os.environ.get("STEPPROBE_DETAIL", ""))
        self._cost = {False: 0.0, True: 0.0}
        self._seen = {False: 0, True: 0}
        self._cpu = 0.0
        # a sequence of our own: the user's random numbers are not touched, and no rhythm of theirs is met
        self._random = 0x2545F491

    def cost_of(self, events: int, parts: int, syncs: int) -> int:
        """Return what hooks that do not time themselves cost in a step, in ns.

        ``events`` are all events of the clock, ``parts`` the calls of hooked parts of the model, ``syncs`` the
        synchronising calls; the unit costs of the latter two hold their own events.
        """
        others = max(0, events - EVENTS_OF_A_PART * parts - EVENTS_OF_A_SYNC * syncs)
        cost = self.unit_cost_ns
        return int(others * cost["event"] + parts * cost["part"] + syncs * cost["sync"])

    def learn(self, detail: bool, cost_ns: int, cpu_ns: int) -> None:
        """Take note of what a step cost and how much work it was: preemption must not look like room for more."""
        seen = self._seen[detail] = min(self._seen[detail] + 1, 20)
        self._cost[detail] += (cost_ns - self._cost[detail]) / seen
        self._cpu += (cpu_ns - self._cpu) / min(sum(self._seen.values()), 20)

    def detail_next(self, index: int) -> bool:
        """Return whether the step to come is to be observed in detail."""
        if self.forced is not None:
            return self.forced
        if index in ALWAYS_DETAILED:
            return True
        extra = self._cost[True] - self._cost[False]
        if not self._seen[True] or extra <= 0:
            return index > 0
        affordable = (SHARE * self._cpu - self._cost[False]) / extra
        least = LEAST_EARLY if index < EARLY_STEPS else LEAST
        self._random = (1103515245 * self._random + 12345) & 0x7FFFFFFF
        return self._random / 0x7FFFFFFF < max(least, affordable)

    def header(self, rank: int, world_size: int) -> dict[str, Any]:
        """Measure the unit costs and return the header record of this process."""
        self.calibrate()
        loaded = {name: sys.modules[name] for name in VERSIONS_OF if name in sys.modules}
        return {
            "schema": SCHEMA,
            "rank": rank,
            "local_rank": int(os.environ.get("LOCAL_RANK", rank)),
            "world_size": world_size,
            "pid": os.getpid(),
            "origin_unix_ns": time.time_ns(),
            "python": sys.version.split()[0],
            "versions": {name: str(getattr(module, "__version__", "?")) for name, module in loaded.items()},
            "unit_cost_ns": self.unit_cost_ns,
        }

    def calibrate(self) -> None:
        """Measure the unit costs: about 20 ms, once."""
        clock, gate = StackClock(), Gate()
        gate.open = True
        wrapped = booked(clock, gate, 0)(_nothing)
        pair = cold_ns(wrapped) - cold_ns(_nothing)
        self.unit_cost_ns["event"] = max(pair, 0.0) / 2


def _nothing() -> None:
    return None


def cold_ns(function: Callable[[], Any], repeats: int = 60) -> float:
    """Return the median ns of one call of ``function`` that finds the caches full of other things."""
    others = bytearray(2 << 20)
    stale = memoryview(others)
    times = []
    collecting = gc.isenabled()
    gc.disable()
    try:
        for turn in range(repeats):
            stale[::64] = bytes([turn % 256]) * len(stale[::64])
            begin = time.perf_counter_ns()
            function()
            times.append(time.perf_counter_ns() - begin)
    finally:
        if collecting:
            gc.enable()
    return statistics.median(times)
