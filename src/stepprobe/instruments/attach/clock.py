"""A stack clock: at every event the elapsed time goes to the account on top, so each nanosecond is booked once."""

import time
from collections.abc import Callable
from threading import get_ident
from typing import NamedTuple

from stepprobe.model.accounts import BOOKED

INDEX = {account: index for index, account in enumerate(BOOKED)}
"""Account name -> position in the clock's lists; positions keep the hot path free of hashing."""

UNATTRIBUTED = INDEX["unattributed"]
_ZEROS = [0] * len(BOOKED)


class Books(NamedTuple):
    """What was booked between two cuts. The lists go by account position; the rest is ns on the clocks."""

    wall: list[int]
    cpu: list[int]
    begin_wall: int
    end_wall: int
    begin_cpu: int
    end_cpu: int
    events: int


class StackClock:
    """Books wall time and thread CPU time to the account on top of a stack.

    The sum over accounts equals the wall time of the step by construction: every nanosecond between two events goes
    to exactly one account, and a clock that steps backwards is held still (and counted) rather than trusted.

    Events may come from a foreign thread while the owner waits for it (CUDA's autograd threads): the wall time is
    booked, and the owner, which did not run, is seen as off the CPU.
    """

    __slots__ = (
        "_cpu_now",
        "_now",
        "backwards",
        "begin_cpu",
        "begin_wall",
        "cpu",
        "cpu_at",
        "events",
        "owner",
        "stack",
        "wall",
        "wall_at",
    )

    def __init__(
        self, now: Callable[[], int] = time.perf_counter_ns, cpu_now: Callable[[], int] = time.thread_time_ns
    ) -> None:
        self._now = now
        self._cpu_now = cpu_now
        self.stack = [UNATTRIBUTED]
        self.wall = _ZEROS.copy()
        self.cpu = _ZEROS.copy()
        self.backwards = 0
        self.events = 0
        self.owner = get_ident()
        self.begin_wall = self.wall_at = now()
        self.begin_cpu = self.cpu_at = cpu_now()

    def push(self, account: int) -> int:
        """Enter an account; return the depth to hand to ``pop_to``."""
        stack = self.stack
        self._book(stack[-1])
        stack.append(account)
        return len(stack) - 1

    def pop_to(self, depth: int) -> None:
        """Leave the account entered at ``depth``, and any above it that an exception left open."""
        stack = self.stack
        self._book(stack[-1])
        del stack[depth or 1 :]

    def mark(self, account: int) -> None:
        """Go over to another account at the same depth."""
        stack = self.stack
        self._book(stack[-1])
        stack[-1] = account

    def rebase(self, account: int) -> None:
        """Change what is booked when nothing else is open."""
        self._book(self.stack[-1])
        self.stack[0] = account

    def cut(self) -> Books:
        """Close the books now, and begin new ones."""
        self._book(self.stack[-1])
        return self.take()

    def take(self) -> Books:
        """Close the books at the last event instead of now."""
        fresh_wall, fresh_cpu = _ZEROS.copy(), _ZEROS.copy()
        # from here to the last read no container is made, not even a tuple: the collector, which books itself on
        # this clock, cannot come between
        wall = self.wall
        cpu = self.cpu
        end_wall = self.wall_at
        end_cpu = self.cpu_at
        events = self.events
        self.wall = fresh_wall
        self.cpu = fresh_cpu
        self.events = 0
        begin_wall = self.begin_wall
        begin_cpu = self.begin_cpu
        self.begin_wall = end_wall
        self.begin_cpu = end_cpu
        return Books(wall, cpu, begin_wall, end_wall, begin_cpu, end_cpu, events)

    def restart(self) -> None:
        """Forget what was booked and let time begin now, on this thread, with nothing open."""
        self.owner = get_ident()
        self.stack = [UNATTRIBUTED]
        self.skip()

    def skip(self) -> None:
        """Forget what was booked since the last cut, and let time begin now; what is open stays open."""
        self.wall_at = self._now()
        self.cpu_at = self._cpu_now()
        self.take()

    def _book(self, top: int) -> None:
        now = self._now()
        elapsed = now - self.wall_at
        if elapsed >= 0:
            self.wall[top] += elapsed
            self.wall_at = now
        else:
            self.backwards += 1
        self.events += 1
        if get_ident() == self.owner:
            cpu = self._cpu_now()
            self.cpu[top] += cpu - self.cpu_at
            self.cpu_at = cpu
