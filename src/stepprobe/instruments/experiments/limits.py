"""What this machine can do at most: matrix products, copies, and the least time of one operator.

Everything is made with a generator of random numbers of its own: the user's are not touched. Matrices are random
because cards run faster, and cooler, on constants.
"""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

REPEATS = 12
FEWEST = 3
"""Repeats of a size that is too slow for all of them; fewer say nothing, and the size is left out."""
SECONDS = 2.0
"""Time for everything, about."""
SIZES = {"cpu": (256, 512, 1024, 2048, 4096), "device": (2048, 4096, 8192)}
BURST = {"cpu": (512, 5), "device": (4096, 4)}
"""Side of the matrices of a burst between steps, and products in it."""
COPY_BYTES = {"cpu": 256 << 20, "device": 512 << 20}
"""Larger than caches, so that memory is measured."""
ADDS = 1000
HELD = 8
"""Of the free memory at most one part in this many is taken."""


def measure_limits(torch: Any, device: Any, dtype: str, also: Sequence[str] = ()) -> "Iterator[dict[str, Any]]":
    """Yield the fields of lines ``limit``; about two seconds.

    Args:
        torch: The user's torch.
        device: Device of the model.
        dtype: Element type of its weights, for example ``"bfloat16"``.
        also: Further element types, such as that of autocast.
    """
    place = _Place(torch, device)
    deadline = time.monotonic() + SECONDS
    with place.calm():
        yield from place.dispatch()
        yield from place.copy(deadline)
        kinds = list(dict.fromkeys((dtype, *also)))
        for at, kind in enumerate(kinds):
            left = (deadline - time.monotonic()) / (len(kinds) - at)
            yield from place.products(kind, time.monotonic() + left)


def burst(torch: Any, device: Any, dtype: str) -> "Callable[[int], dict[str, Any]]":
    """Return a function that times one burst of matrix products and gives a ``limit`` line, by number of block.

    On a machine that others use, too, a burst between two steps tells what the machine could do just then.
    """
    place = _Place(torch, device)
    size, count = BURST[place.kind]
    with place.calm():
        multiply = place.product(size, dtype, count)
        multiply()

    def timed(block: int) -> "dict[str, Any]":
        with place.calm():
            line = place.line("matmul", size, dtype, 2 * size**3 * count, [place.time(multiply)])
        return {**line, "block": block}

    return timed


class _Place:
    """The device that is measured, and its clocks."""

    def __init__(self, torch: Any, device: Any) -> None:
        self.torch = torch
        self.device = torch.device(device)
        self.kind = "cpu" if self.device.type == "cpu" else "device"
        self.module = getattr(torch, self.device.type, None) if self.kind == "device" else None
        self.generator = torch.Generator(device=self.device)
        self.generator.manual_seed(0)

    def calm(self) -> Any:
        """Return a context without autograd and autocast."""
        import contextlib

        stack = contextlib.ExitStack()
        stack.enter_context(self.torch.inference_mode(False))
        stack.enter_context(self.torch.no_grad())
        stack.enter_context(self.torch.autocast(self.device.type, enabled=False))
        return stack

    def dispatch(self) -> "Iterator[dict[str, Any]]":
        """Time operators that compute next to nothing."""
        one = self.torch.zeros(1, device=self.device)

        def adds() -> None:
            for _ in range(ADDS):
                one.add_(1)

        adds()
        yield self.line("dispatch", 1, "float32", ADDS, [self.time(adds) for _ in range(REPEATS)])

    def copy(self, deadline: float) -> "Iterator[dict[str, Any]]":
        """Time a copy from memory to memory."""
        size = min(COPY_BYTES[self.kind], self._free_bytes() // HELD) // 4
        if size < 1 << 20:
            return
        source = self.torch.ones(size, device=self.device, dtype=self.torch.float32)
        target = self.torch.empty_like(source)

        def copy() -> None:
            target.copy_(source)

        times = self._repeat(copy, deadline)
        if times:
            yield self.line("copy", 4 * size, "float32", 8 * size, times)

    def products(self, dtype: str, deadline: float) -> "Iterator[dict[str, Any]]":
        """Time matrix products, from small to large, while there is time and memory."""
        width = self.torch.empty(0, dtype=getattr(self.torch, dtype)).element_size()
        for size in SIZES[self.kind]:
            if 3 * width * size * size > self._free_bytes() // HELD:
                return
            count = 1 if self.kind == "cpu" else BURST["device"][1]
            times = self._repeat(self.product(size, dtype, count), deadline)
            if not times:
                return
            yield self.line("matmul", size, dtype, 2 * size**3 * count, times)

    def product(self, size: int, dtype: str, count: int) -> Callable[[], None]:
        """Return a function that multiplies two random matrices some times."""
        kind = getattr(self.torch, dtype)
        left, right = (
            self.torch.randn(size, size, device=self.device, generator=self.generator).to(kind) for _ in range(2)
        )
        into = self.torch.empty_like(left)

        def multiply() -> None:
            for _ in range(count):
                self.torch.mm(left, right, out=into)

        return multiply

    def time(self, work: Callable[[], None]) -> "tuple[int, int, int | None]":
        """Return wall, thread CPU and device ns of some work."""
        events = self._events()
        if self.module is not None:
            self.module.synchronize()
        if events:
            events[0].record()
        wall, thread = time.perf_counter_ns(), time.thread_time_ns()
        work()
        thread = time.thread_time_ns() - thread
        if events:
            events[1].record()
        if self.module is not None:
            self.module.synchronize()
        wall = time.perf_counter_ns() - wall
        return wall, thread, int(events[0].elapsed_time(events[1]) * 1e6) if events else None

    def line(
        self, kind: str, size: int, dtype: str, work: int, times: "list[tuple[int, int, int | None]]"
    ) -> "dict[str, Any]":
        """Return the line of one size."""
        wall, thread, device = ([one[at] for one in times] for at in range(3))
        return {
            "kind": kind,
            "size": size,
            "dtype": dtype,
            "work": work,
            "wall_ns": wall,
            "thread_ns": thread,
            "device_ns": None if device[0] is None else device,
        }

    def _repeat(self, work: Callable[[], None], deadline: float) -> "list[tuple[int, int, int | None]]":
        """Time some work as often as there is time for; not at all where that is too seldom."""
        began = time.monotonic()
        work()
        if self.module is not None:
            self.module.synchronize()
        if time.monotonic() + FEWEST * (time.monotonic() - began) > deadline:
            return []
        times = [self.time(work)]
        while len(times) < REPEATS and (len(times) < FEWEST or time.monotonic() < deadline):
            times.append(self.time(work))
        return times

    def _events(self) -> Any:
        made = getattr(self.module, "Event", None)
        return [made(enable_timing=True) for _ in range(2)] if made is not None else None

    def _free_bytes(self) -> int:
        asked = getattr(self.module, "mem_get_info", None)
        if asked is not None:
            return int(asked(self.device)[0])
        try:
            return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        except (OSError, ValueError):  # not told here
            return 1 << 30
