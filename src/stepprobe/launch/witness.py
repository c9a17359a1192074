"""Tells whether a signal that we were sent was sent to us alone, or to the script as well.

The kernel does not say: what ``kill`` sends to a process group (a job scheduler, ``timeout``, a script that signals
its own group) looks to each of its processes like a signal to it alone. So a process in our group, with the script's
words in its command line (``pkill -f`` goes by them), does nothing and blocks every signal: what it has pending was
sent to all of us.
"""

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PATIENCE_S = 0.05
"""How long the witness is waited for: senders go from process to process."""
LOOKS_S = 1.0
"""How often it is looked whether the witness holds what we were not sent."""
_SHELL = "/bin/sh"


class Witness:
    """A process that shares what is sent to our group; where it cannot be had, nothing was.

    Args:
        argv: The script's command line.
    """

    def __init__(self, argv: Sequence[str]) -> None:
        self._argv = argv
        self._pid = 0
        self._lifeline = -1
        self._also_seen: set[int] = set()
        self._held: set[int] = set()
        self._looks_at = time.monotonic() + LOOKS_S
        self._start()

    def saw(self, number: int) -> bool:
        """Return whether a signal that we received reached it as well; forget that signal."""
        deadline = time.monotonic() + PATIENCE_S
        while number not in self._also_seen:
            if pending := self._pending():
                self._also_seen |= self._renewed(pending)
            elif time.monotonic() >= deadline:
                return False
            else:
                time.sleep(0.001)
        self._also_seen.discard(number)
        return True

    def rest(self) -> None:
        """We have received nothing for a while: what was seen and still is not ours was sent to it alone."""
        self._also_seen.clear()
        if time.monotonic() < self._looks_at:
            return
        self._looks_at = time.monotonic() + LOOKS_S
        before, self._held = self._held, self._pending()
        if stale := before & self._held:  # the rest may be on its way to us
            self._also_seen |= self._renewed(self._held) - stale
            self._held = set()

    def end(self) -> None:
        """Let it go."""
        if self._pid:
            _end(self._pid, self._lifeline)
            self._pid = 0

    def _renewed(self, pending: set[int]) -> set[int]:
        """Put another in its place, since what is pending can be told once only; return what the first one had.

        The two overlap: what is sent meanwhile reaches one of them at least, and stays with the second where both.
        """
        old, lifeline, self._pid = self._pid, self._lifeline, 0
        self._start()
        late = self._pending(old)
        seen = pending | (late - self._pending())
        _end(old, lifeline)
        return seen

    def _start(self) -> None:
        try:
            read, self._lifeline = os.pipe()  # it reads to the end, which comes when we end, however we do
        except OSError:
            return
        actions: list[tuple[Any, ...]] = [(os.POSIX_SPAWN_DUP2, read, 0)]
        actions += [(os.POSIX_SPAWN_OPEN, stream, os.devnull, os.O_WRONLY, 0) for stream in (1, 2)]
        try:
            self._pid = os.posix_spawn(
                _SHELL,
                [_SHELL, "-c", "read _", *self._argv],
                {},
                file_actions=actions,
                setsigmask=signal.valid_signals(),
            )
        except OSError:
            os.close(self._lifeline)
        finally:
            os.close(read)

    def _pending(self, pid: int = 0) -> set[int]:
        """Return the signals that wait for it, or for another process."""
        try:
            status = Path(f"/proc/{pid or self._pid}/status").read_text()
        except OSError:
            return set()
        bits = 0
        for line in status.splitlines():
            name, _, value = line.partition(":")
            if name in ("SigPnd", "ShdPnd"):
                bits |= int(value, 16)
        return {number for number in signal.valid_signals() if bits >> (number - 1) & 1}


def _end(pid: int, lifeline: int) -> None:
    os.close(lifeline)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
