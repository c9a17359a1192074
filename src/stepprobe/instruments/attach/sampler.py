"""Now and then look where the training thread is, and in which account: names the lines behind the milliseconds."""

import _thread
import sys
import sysconfig
import threading
import time
from types import CodeType, FrameType

from stepprobe.instruments.attach.callers import STAND_IN
from stepprobe.instruments.attach.observer import Observer
from stepprobe.model.accounts import BOOKED

SHORTEST_S = 0.010
LONGEST_S = 0.200
SHARE = 0.002
"""Part of a core that the sampler may use."""

_LIBRARIES = (sysconfig.get_path("stdlib") + "/", "/site-packages/", "/dist-packages/", "<frozen", "<string>")
_OURS = __file__.rpartition("stepprobe/instruments/")[0] + "stepprobe/"


class Sampler:
    """A thread that wakes, reads one frame, and sleeps longer the more that costs.

    Not a ``threading.Thread``: the script would count it among its own, and its profilers would follow it. It must be
    stopped and waited for before the interpreter finalises: a thread that asks for the GIL then can abort the process
    and lose the script's exit code.
    """

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._quit = threading.Event()
        self._running = threading.Lock()
        self._is_library: dict[CodeType, bool] = {}

    def start(self) -> None:
        """Begin to look.

        Raises:
            RuntimeError: No thread is to be had.
        """
        self._running.acquire()
        try:
            _thread.start_new_thread(self._run, ())
        except RuntimeError:
            self._running.release()
            raise

    def stop(self) -> None:
        """End the thread and wait until it has gone."""
        self._quit.set()
        with self._running:
            pass

    def forget(self) -> None:
        """This process is a fork: the thread stayed with its parent."""
        self._quit, self._running = threading.Event(), threading.Lock()

    def _run(self) -> None:
        try:
            self._sample()
        except Exception as error:  # never a traceback on the user's terminal
            self._observer.note(f"the sampler ended: {type(error).__name__}: {error}")
        finally:
            self._running.release()

    def _sample(self) -> None:
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
        while leaf is not None and _is_ours(leaf.f_code):
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
            known = _is_ours(code) or any(part in path for part in _LIBRARIES)
            if len(self._is_library) < 8192:
                self._is_library[code] = known
        return known


def _is_ours(code: CodeType) -> bool:
    return code.co_filename.startswith(_OURS) or code.co_name == STAND_IN
