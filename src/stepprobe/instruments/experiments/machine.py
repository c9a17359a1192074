"""What the step runs on: its clocks, its memory, and whether others use it."""

from types import ModuleType
from typing import Any

from stepprobe.instruments.experiments import quiet
from stepprobe.instruments.experiments.memory import Memory
from stepprobe.instruments.experiments.timing import Reading, Stopwatch

WARM_UPS = {"cpu": 1}
"""Steps of a shape before it is timed: caches on the CPU."""
WARM_UPS_DEVICE = 3
"""On a card also the choice of kernels and the allocator's blocks."""


class Machine:
    """The device of a module, and the processors beside it."""

    def __init__(self, torch: ModuleType, root: Any) -> None:
        self.kind = device_kind(root)
        self.stopwatch = Stopwatch(torch, self.kind)
        self.memory = Memory(torch, self.kind)
        self.warm_ups = WARM_UPS.get(self.kind, WARM_UPS_DEVICE)
        self._torch = torch

    def quiet(self, *, anyway: bool) -> dict[str, Any]:
        """Return the fields of a ``quiet`` line."""
        return quiet.observe(self._torch, self.kind, free_bytes=self.memory.free_bytes(), anyway=anyway)

    def steady_ns(self, reading: Reading) -> int:
        """Return what a step took on the clock that others disturb least."""
        if reading.device_ns is not None:
            return reading.device_ns
        alone = self.kind == "cpu" and self._torch.get_num_threads() == 1
        return reading.thread_ns if alone else reading.wall_ns


def device_kind(root: Any) -> str:
    """Return the type of the device on which the first parameter lies; a module without any computes on the CPU."""
    for parameter in root.parameters():
        return str(parameter.device.type)
    return "cpu"
