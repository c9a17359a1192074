"""What the instrument costs, and how much detail that allows.

The cost of a step is counted: what the long hooks time of themselves, plus short events times the unit costs that
``unit_costs`` measures in the user's process, scaled to how cold the training leaves the caches.
"""

import os
import sys
import time
from typing import Any

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


def launched_as(name: str, otherwise: int) -> int:
    """Return a number that a launcher puts into the environment, such as ``RANK``; what is none says nothing."""
    text = os.environ.get(name, "").strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else otherwise


class Budget:
    """Decides which steps are observed in detail, and says what each step's hooks cost."""

    def __init__(self) -> None:
        self.unit_cost_ns = dict.fromkeys(("event", "part", "sync", "inside", "pass", "read"), 0.0)
        self.coldness = 1.0
        """How much dearer hooks are in the steps than where their unit costs were measured."""
        self.forced = {"always": True, "never": False}.get(os.environ.get("STEPPROBE_DETAIL", ""))
        self._cost = {False: 0.0, True: 0.0}
        self._seen = {False: 0, True: 0}
        self._cpu = 0.0
        # a sequence of our own: the user's random numbers are not touched, and no rhythm of theirs is met
        self._random = 0x2545F491

    def feel(self, parts: float, inside_ns: int) -> None:
        """Learn the coldness from what the hooks of parts saw of their own cost in a step."""
        if parts > 0 and self.unit_cost_ns["inside"]:
            now = inside_ns / parts / self.unit_cost_ns["inside"]
            self.coldness += 0.3 * (min(max(now, 0.5), 8.0) - self.coldness)

    def cost_of(self, events: int, parts: int, syncs: int, passes: int, reads: int) -> int:
        """Return what hooks that do not time themselves cost in a step, in ns.

        ``events`` are all events of the clock, ``parts`` the calls of hooked parts of the model, ``syncs`` the
        synchronising calls; the unit costs of the latter two hold their own events. ``passes`` are calls of functions
        that are parts and were let through, ``reads`` those of an optimizer that reads its tensors: neither makes an
        event.
        """
        others = max(0, events - EVENTS_OF_A_PART * parts - EVENTS_OF_A_SYNC * syncs)
        cost = self.unit_cost_ns
        clocked = others * cost["event"] + parts * cost["part"] + syncs * cost["sync"]
        return int(self.coldness * (clocked + passes * cost["pass"] + reads * cost["read"]))

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
        """Return the header record of this process."""
        loaded = {name: sys.modules[name] for name in VERSIONS_OF if name in sys.modules}
        return {
            "schema": SCHEMA,
            "rank": rank,
            "local_rank": launched_as("LOCAL_RANK", rank),
            "world_size": world_size,
            "pid": os.getpid(),
            "origin_unix_ns": time.time_ns(),
            "python": sys.version.split()[0],
            "versions": {name: str(getattr(module, "__version__", "?")) for name, module in loaded.items()},
            "unit_cost_ns": self.unit_cost_ns,
        }
