"""Clocks that stand still until a test moves them."""


class FakeTime:
    """A wall clock and a thread CPU clock, in ns."""

    def __init__(self) -> None:
        self.wall = 1_000
        self.cpu = 500

    def spend(self, wall: int, cpu: int | None = None) -> None:
        self.wall += wall
        self.cpu += wall if cpu is None else cpu

    def now(self) -> int:
        return self.wall

    def cpu_now(self) -> int:
        return self.cpu
