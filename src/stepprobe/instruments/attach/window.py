"""A few steps under ``torch.profiler``: the file that the reader of traces makes a device ledger of.

The profiler is switched on and off between two steps, and its file is written between two steps, so none of that is in
a step's time. The steps in between, and the one behind them, are set aside: the profiler makes them slower. The
script's own profiler goes first: only one can be active, so where it is, or as soon as it is, there is none of ours.
"""

import contextlib
import os
import sys
import time
from collections.abc import Callable
from threading import get_ident
from typing import Any

from stepprobe.instruments.attach.budget import launched_as
from stepprobe.instruments.attach.callers import unseen
from stepprobe.instruments.attach.observer import Limit, Observer

AFTER_WARMUP = 8
"""Ordinary steps between the warm-up and the window, where nobody said how many steps there are to be."""
WARMUP_MOST = 10
SHORT_NS, LONG_NS = 50_000_000, 10_000_000_000
"""A step below the first is short: three are recorded. Above the second it is long: one. Else two."""
STEPS_MOST = 4
"""Steps that pass before the file is written: one to warm the profiler up, and three."""
BYTES_MOST = 256 << 20
"""Size of a trace above which it is not kept."""
MARK = "ProfilerStep#"
KNOWN = "stepprobe: known kernel"


def first_step(limit: "Limit | None", warmup: str) -> int:
    """Return the index of the first step of the window: behind all that were asked for, else soon after the warm-up.

    Whoever asked for a number of steps gets them undisturbed.
    """
    if limit is not None:
        return sum(limit)
    return max(WARMUP_MOST, int(warmup) if warmup.isdigit() else 0) + AFTER_WARMUP


class Window:
    """Waits for its step, lets one pass to warm the profiler up, records one to three, and writes them."""

    def __init__(self, observer: Observer, folder: str, first: int, *, ends: bool) -> None:
        """Wait for step ``first``; ``ends`` says that the job ends behind the window."""
        self._observer = observer
        self._folder = folder
        self._first = first
        self._ends = ends
        self._profile: Any = None
        self._mark: Any = None
        self._thread = 0
        self._began_ns = 0
        self._count = 0
        self._recorded: list[int] = []
        self._events: list[Any] = []
        self._ours = self._over = False
        self._end_in_child: Callable[[], None] = lambda: None
        observer.facts["window.first"] = first

    @property
    def is_over(self) -> bool:
        """Whether no step is traced any more."""
        return self._over

    # -- what the observer tells ------------------------------------------------------------------------------

    def boundary(self, index: int) -> bool:
        """Take a turn between two steps; return whether that took time."""
        if self._over:
            return False
        now, before = time.perf_counter_ns(), self._began_ns
        self._began_ns = now
        if self._profile is None:
            return index >= self._first and self._prepare(now - before)
        try:
            self._advance(index)
        except Exception:
            self._observer.aside = "profiler"
            self._give_up()
            raise
        return True

    def finish(self, end: str) -> None:
        """The training (``train_end``) or the script (``exit``) ends."""
        if self._over or (self._profile is None and end != "exit"):
            return
        if self._profile is None:
            self._over = True
        elif self._recorded and end == "train_end":  # then the last step is whole
            self._observer.note(f"the training ended inside the trace; steps in it: {len(self._recorded)}")
            self._leave_mark(sys.modules["torch"])
            self._write()
        else:
            self._give_up()
            self._observer.note("no trace: the script ended while one was taken")

    def forget(self) -> None:
        """This process is a fork: the profiler is its parent's."""
        self._end_in_child()
        self._over = True
        self._mark = self._profile = None

    # -- the script's own profiler -----------------------------------------------------------------------------

    def watch(self, profiler: Any) -> None:
        """Notice when the script starts a profiler of its own; ``profiler`` is ``torch.autograd.profiler``."""
        replace = self._observer.patches.replace
        replace(profiler.profile, "_prepare_trace", self._yielding)
        replace(profiler, "_run_on_profiler_start", self._yielding)

    def _yielding(self, start: Callable[..., Any]) -> Callable[..., Any]:
        @unseen(start)
        def yielding(*args: Any, **kwargs: Any) -> Any:
            if not (self._ours or self._over):
                self._step_back()
            return start(*args, **kwargs)

        return yielding

    def _step_back(self) -> None:
        with contextlib.suppress(Exception):
            self._give_up()
        self._observer.note(
            "no trace: the script runs torch.profiler itself, and only one can be active; read its trace with: "
            "stepprobe trace FILE"
        )

    # -- turns ------------------------------------------------------------------------------------------------

    def _prepare(self, last_step_ns: int) -> bool:
        torch: Any = sys.modules["torch"]
        if reason := _unsafe(torch):
            self._over = True
            self._observer.note(f"no trace: {reason}")
            return False
        self._thread = get_ident()
        self._count = 3 if last_step_ns < SHORT_NS else 1 if last_step_ns > LONG_NS else 2
        activities = [torch.profiler.ProfilerActivity.CPU]
        if _cuda(torch):
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        self._profile = torch.profiler._KinetoProfile(activities=activities)
        self._end_in_child = _end_in_child()
        with _unheard():
            self._quietly(self._profile.prepare_trace)
        self._observer.aside = "profiler"
        return True

    def _advance(self, index: int) -> None:
        torch: Any = sys.modules["torch"]
        if get_ident() != self._thread:
            raise RuntimeError("the steps went over to another thread than the one that the profiler watches")
        if self._mark is None:
            self._quietly(self._profile.start_trace)
            self._launch_known(torch)
        else:
            self._leave_mark(torch)
            if len(self._recorded) == self._count:
                self._tick(torch)
                self._write()
                self._observer.aside = "" if self._ends else "profiler"
                return
        self._tick(torch)
        with _plainly(torch):
            self._mark = torch.autograd.profiler.record_function(f"{MARK}{index}")
            self._mark.__enter__()
        self._recorded.append(index)
        self._observer.aside = "profiler"

    def _leave_mark(self, torch: Any) -> None:
        with _plainly(torch):
            self._mark.__exit__(None, None, None)

    def _tick(self, torch: Any) -> None:
        """Mark the moment on the device's own clock, for a device whose kernels the profiler cannot see."""
        if _cuda(torch):
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self._events.append(event)

    def _launch_known(self, torch: Any) -> None:
        """Run one kernel that must be in the trace, or the profiler does not see the device."""
        if _cuda(torch):
            with _plainly(torch), torch.autograd.profiler.record_function(KNOWN):
                torch.ones(1, device="cuda")
            torch.cuda.synchronize()
            self._observer.facts["window.known_kernel"] = True

    def _quietly(self, action: Callable[[], None]) -> None:
        self._ours = True
        try:
            action()
        finally:
            self._ours = False

    def _write(self) -> None:
        """Stop and write the file, by its right name only when it is whole."""
        self._over = True
        profile, self._profile = self._profile, None
        self._quietly(profile.stop_trace)
        rank = launched_as("RANK", 0)
        path = os.path.join(self._folder, f"trace-rank{rank}-pid{os.getpid()}.json")
        profile.export_chrome_trace(path + ".part")
        size = os.path.getsize(path + ".part")
        if size > BYTES_MOST:
            os.unlink(path + ".part")
            steps = len(self._recorded)
            self._observer.note(
                f"no trace: that of {steps} steps is {size >> 20} MiB, more than the {BYTES_MOST >> 20} MiB that are "
                "kept; take a shorter one with torch.profiler, then: stepprobe trace FILE"
            )
            return
        os.replace(path + ".part", path)
        facts = self._observer.facts
        facts["window.steps"] = " ".join(map(str, self._recorded))
        if len(self._events) > 1:
            pairs = zip(self._events, self._events[1:])  # noqa: B905 - one event more than steps
            facts["window.event_ms"] = " ".join(f"{one.elapsed_time(other):.3f}" for one, other in pairs)
        self._events = []

    def _give_up(self) -> None:
        """Stop without a file."""
        self._over = True
        profile, self._profile = self._profile, None
        if profile is None or get_ident() != self._thread:
            return
        if self._mark is None:
            self._quietly(profile.start_trace)  # what was only prepared can be stopped no other way
        self._quietly(profile.stop_trace)


def _unsafe(torch: Any) -> str:
    """Return why no profiler may be started here; empty where it may."""
    if not hasattr(getattr(torch, "profiler", None), "_KinetoProfile") or not torch.profiler.kineto_available():
        return "this PyTorch has no Kineto profiler"
    if torch.autograd._profiler_enabled():
        return "another profiler is active in this process, and only one can be; read its trace: stepprobe trace FILE"
    inductor = sys.modules.get("torch._inductor.config")
    if inductor is not None and inductor.triton.cudagraphs:
        return "torch.compile uses CUDA graphs here, and switching the profiler on and off can end such a process"
    return ""


def _cuda(torch: Any) -> bool:
    """Return whether this process uses a CUDA device; asking must not begin to."""
    return bool(torch.cuda.is_initialized() and not torch.cuda.is_current_stream_capturing())


def _end_in_child() -> Callable[[], None]:
    """Return what a forked child has to do, lest it end badly.

    Once started, Kineto keeps a thread, and when a process exits it waits for that thread. In a forked child there is
    none: such a child would hang or abort at its exit. So there C's own list of what to do at exit, last first, gets to
    flush the files and then to leave with the exit code, before Kineto's turn comes.
    """
    import ctypes

    try:
        libc = ctypes.CDLL(None)
        on_exit, leave, flush = libc.on_exit, libc._exit, libc.fcloseall
    except (OSError, AttributeError):  # another C library
        return lambda: None

    def end() -> None:
        on_exit(leave, None)
        on_exit(flush, None)

    return end


@contextlib.contextmanager
def _unheard() -> Any:
    """Let Kineto, which reads its log level when it first starts, write nothing on the script's standard error."""
    level = os.environ.get("KINETO_LOG_LEVEL")
    if level is None:
        os.environ["KINETO_LOG_LEVEL"] = "99"
    try:
        yield
    finally:
        if level is None:
            del os.environ["KINETO_LOG_LEVEL"]


@contextlib.contextmanager
def _plainly(torch: Any) -> Any:
    """Keep what we run from modes of the user's that listen to functions or count operations."""
    with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
        yield
