"""Calls that make the host wait for the device or copy between them, by the line that makes them."""

import sys
from collections.abc import Callable
from threading import get_ident
from types import ModuleType
from typing import Any

from stepprobe.instruments.attach.callers import Places, named, unseen
from stepprobe.instruments.attach.clock import INDEX, UNATTRIBUTED
from stepprobe.instruments.attach.observer import OPTIMIZER, Observer

SYNC = ("item", "tolist", "__bool__", "__float__", "__int__", "__index__")
D2H = ("cpu", "numpy")
H2D = ("to", "cuda")
TIMED = 64
"""Synchronising calls timed in one step; beyond, one in ``TIMED`` is timed, and all are counted."""


def watch(observer: Observer, torch: ModuleType) -> None:
    """Replace the synchronising and copying methods of ``torch.Tensor`` by ones that book their time."""
    for account, names in (("sync", SYNC), ("d2h", D2H)):
        for name in names:
            wrap = counted(observer, torch.compiler, name.strip("_"), INDEX[account])
            observer.patches.replace(torch.Tensor, name, wrap, inherited=True)
    for name in H2D:
        observer.patches.replace(torch.Tensor, name, _to_device(observer, torch.compiler), inherited=True)


def forget_device(observer: Observer, torch: ModuleType) -> None:
    """The job runs on the CPU: there is no device to copy to, and ``.to`` is called too often to watch for nothing."""
    for name in H2D:
        observer.patches.drop(torch.Tensor, name)


def counted(observer: Observer, compiler: ModuleType, operation: str, account: int) -> Callable[[Any], Any]:
    """Return a decorator that counts a method of tensors by the line that calls it, and books its time."""
    return lambda method: _counted(method, observer, compiler, operation, account)


def _counted(method: Any, observer: Observer, compiler: ModuleType, operation: str, account: int) -> Any:
    clock, gate, sites = observer.clock, observer.gate, observer.sites
    tracing, compiling, getframe = compiler.is_dynamo_compiling, compiler.is_compiling, sys._getframe
    known = Places(method)

    @unseen(method)
    def counted(*args: Any, **kwargs: Any) -> Any:
        if tracing():
            return method(*args, **kwargs)
        # an optimizer reads its own step counters: on the CPU they are no wait for anybody
        if clock.stack[-1] == OPTIMIZER:
            observer.reads += 1
            return method(*args, **kwargs)
        try:
            caller = getframe(1)
        except ValueError:  # a thread that runs nothing else
            return method(*args, **kwargs)
        place = known.get((id(caller.f_code), caller.f_lasti)) or known.meet(caller)
        if not gate.open or compiling() or get_ident() != clock.owner:
            return place.call(args, kwargs)
        row = place.row or sites.sync(place, operation)
        row[0] += 1
        counters = observer.counters
        calls = counters["syncs"] = counters.get("syncs", 0) + 1
        if calls > TIMED and calls % TIMED:
            counters["syncs_untimed"] = counters.get("syncs_untimed", 0) + 1
            return place.call(args, kwargs)
        depth = clock.push(account)
        begin = clock.wall_at
        try:
            return place.call(args, kwargs)
        finally:
            clock.pop_to(depth)
            row[1] += 1
            row[2] += clock.wall_at - begin

    return counted


def _to_device(observer: Observer, compiler: ModuleType) -> Callable[[Any], Any]:
    clock, gate = observer.clock, observer.gate
    account, compiling = INDEX["h2d"], compiler.is_compiling

    def decorate(method: Any) -> Any:
        call = named(method, compiler)

        @unseen(method)
        def to_device(*args: Any, **kwargs: Any) -> Any:
            # inside the model, `.to` is a cast; only what a loop itself moves is a copy to the device
            if not gate.open or clock.stack[-1] != UNATTRIBUTED or compiling() or get_ident() != clock.owner:
                return call(*args, **kwargs)
            depth = clock.push(account)
            try:
                return call(*args, **kwargs)
            finally:
                clock.pop_to(depth)

        return to_device

    return decorate
