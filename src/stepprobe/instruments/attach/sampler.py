"""Now and then look where the training thread is, and in which account: names the lines behind the milliseconds."""

import sys
import sysconfig
import threading
import time
from types import CodeType, FrameType

from stepprobe.instruments.attach.observer import Observer
from stepprobe.model.accounts import BOOKED

SHORTEST_S = 0.010
LONGEST_S = 0.200
SHARE = 0.002
"""Part of a core that the sampler may use."""

_LIBRARIES = (sysconfig.get_path("stdlib") + "/", "/site-packages/", "/dist-packages/", "<frozen", "<string>")
_OURS = __file__.rpartition("stepprobe/instruments/")[0] + "stepprobe/"


class Sampler(threading.Thread):
    """A thread that wakes, reads one frame, and sleeps longer the more that costs.

    It must be stopped and joined before the interpreter finalises: a thread that asks for the GIL then can abort the
    process and lose the script's exit code.
    """

    def __init__(self, observer: Observer) -> None:
        super().__init__(name="stepprobe-sampler", daemon=True)
        self._observer = observer
        self._quit = threading.Event()
        self._is_library: dict[CodeType, bool] = {}

    def stop(self) -> None:
        """End the thread and wait until it has gone."""
        self._quit.set()
        if self.is_alive():
            self.join()

    def run(self) -> None:
        """Sample until told to stop."""
        wait = SHORTEST_S
        while not self._quit.wait(wait):
            if not self._observer.running:
                continue
            begin = time.thread_time()
            self._look()
            cost = time.thread_time() - begin
            wait = min(max(SHORTEST_S, 0.8 * wait + 0.2 * cost / SHARE), LONGEST_S)
            self._observer.sites.sampler["interval_ns"] = int(wait * 1e9)

    def _look(self) -> None:
        clock = self._observer.clock
        account = BOOKED[clock.stack[-1]]
        leaf = sys._current_frames().get(clock.owner)
        while leaf is not None and leaf.f_code.co_filename.startswith(_OURS):
            leaf = leaf.f_back
        if leaf is None:
            return
        user: FrameType | None = leaf
        while user is not None and self._library(user.f_code):
            user = user.f_back
        code, line = (user.f_code, user.f_lineno) if user is not None else (None, 0)
        self._observer.sites.sample(account, code, line, leaf.f_code, leaf.f_lineno)

    def _library(self, code: CodeType) -> bool:
        known = self._is_library.get(code)
        if known is None:
            path = code.co_filename
            known = path.startswith(_OURS) or any(part in path for part in _LIBRARIES)
            if len(self._is_library) < 8192:
                self._is_library[code] = known
        return known
