"""Arm the instrument in the user's process. Called by the injected ``sitecustomize`` in every interpreter of the job.

At once: a line in ``attach-events.jsonl``, a finder that waits for the modules of the adapters, and what is to be done
at exit and in a forked child. When torch is imported, its hooks are put in place, with the gate shut. Steps are written
from the first training step on, so launchers, data workers and other processes leave only their lines of events.
"""

import atexit
import gc
import json
import os
from threading import get_ident
from types import ModuleType
from typing import Any

from stepprobe import adapters
from stepprobe.instruments.attach.clock import INDEX
from stepprobe.instruments.attach.imports import AfterImport
from stepprobe.instruments.attach.observer import Limit, Observer
from stepprobe.instruments.attach.sampler import Sampler
from stepprobe.instruments.attach.window import Window, first_step

EVENTS = "attach-events.jsonl"
EVENTS_BYTES = 65536
"""Size at which the list of events is full: a job may start interpreters without end."""


def arm(folder: str) -> Observer:
    """Prepare the observation of this process; the evidence goes to ``folder``."""
    warmup = os.environ.get("STEPPROBE_WARMUP", "auto")
    limit = _limit(os.environ.get("STEPPROBE_STEPS", ""), warmup)
    observer = Observer(folder, limit)
    observer.tell = lambda stage: tell(folder, stage)
    window = _window(observer, folder, limit, warmup)
    if asked := os.environ.get("STEPPROBE_PROFILE", ""):
        from stepprobe.instruments.experiments import arming

        arming.arm(observer, folder, asked, window)
    sampler = Sampler(observer)
    observer.on.begin.append(sampler.start)
    observer.on.begin.append(lambda: _collect(observer))
    os.register_at_fork(after_in_child=observer.go_inert)
    os.register_at_fork(after_in_child=sampler.forget)
    if observer.take_over is not None:
        os.register_at_fork(after_in_child=observer.take_over.forked)
    atexit.register(_end, observer, sampler)
    actions = adapters.actions()
    if window is not None:
        actions["torch.autograd.profiler"] = lambda _, profiler: window.watch(profiler)
    AfterImport({name: _after(observer, name, action) for name, action in actions.items()}).install()
    observer.tell("python")
    return observer


def _window(observer: Observer, folder: str, limit: "Limit | None", warmup: str) -> "Window | None":
    """Let a few steps be traced; in a profile, those between the steps that are observed and the experiments."""
    if os.environ.get("STEPPROBE_TRACE", "") == "off":
        return None
    if asked := os.environ.get("STEPPROBE_PROFILE", ""):
        settings = json.loads(asked)
        limit = Limit(settings["steps"], settings["warmup"])
    window = Window(observer, folder, first_step(limit, warmup), ends=limit is not None)
    observer.on.boundary.append(window.boundary)
    observer.on.finish.append(window.finish)
    os.register_at_fork(after_in_child=window.forget)
    return window


def tell(folder: str, event: str) -> None:
    """Append one line about how far this process came; never fail."""
    try:
        path = os.path.join(folder, EVENTS)
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            if os.fstat(file).st_size < EVENTS_BYTES:
                os.write(file, json.dumps({"pid": os.getpid(), "event": event}).encode() + b"\n")
        finally:
            os.close(file)
    except OSError:
        return


def _limit(steps: str, warmup: str) -> Limit | None:
    """Return after how many steps to end the job: those asked for, and as many before as a warm-up may take."""
    if not steps.isdigit():
        return None
    return Limit(int(steps), int(warmup) if warmup.isdigit() else max(1, min(10, int(steps) // 4)))


def _after(observer: Observer, name: str, action: adapters.Action) -> Any:
    def act(module: ModuleType) -> None:
        try:
            action(observer, module)
        except Exception as error:  # a library that we do not know yet must not stop the user's job
            observer.note(f"{name}: not attached ({type(error).__name__}: {error})")

    return act


def _end(observer: Observer, sampler: Sampler) -> None:
    sampler.stop()
    if observer.take_over is not None:
        observer.take_over.script_ends()
    observer.close()


def _collect(observer: Observer) -> None:
    """Book the garbage collector, which runs wherever an allocation sets it off."""
    clock, gate, account = observer.clock, observer.gate, INDEX["gc"]
    depths: list[int] = []

    def collecting(phase: str, _: dict[str, int]) -> None:
        if get_ident() != clock.owner:
            return
        if phase == "start" and gate.open:
            depths.append(clock.push(account))
        elif phase == "stop" and depths:
            clock.pop_to(depths.pop())

    gc.callbacks.append(collecting)
