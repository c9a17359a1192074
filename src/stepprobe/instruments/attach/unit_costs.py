"""What the hooks add to one call, measured in the user's process before the first step.

A hook costs two to four times as much between the large operations of a training step as in a loop of its own: its
code and data are no longer in the caches. How cold they are is the training's own affair, so the hooks of parts time
themselves in both places, here and in the steps; ``budget`` scales the costs of this page by the ratio. CPU time is
compared: on a busy machine the hooks, which enter the kernel, are where the thread is put aside.
"""

import gc
import statistics
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

from stepprobe.instruments.attach.batches import Batches
from stepprobe.instruments.attach.clock import INDEX, UNATTRIBUTED, StackClock
from stepprobe.instruments.attach.modules import BACKWARD_OTHER, ModuleHooks
from stepprobe.instruments.attach.observer import FORWARD, HOOKS_OF_A_PART, OPTIMIZER, Observer
from stepprobe.instruments.attach.patches import Gate, booked
from stepprobe.instruments.attach.tensors import counted

REPEATS = 25
SIDE = 256
"""Side of the matrices that are multiplied in between."""

GLOBAL_HOOKS = (
    "_global_forward_pre_hooks",
    "_global_forward_hooks",
    "_global_backward_pre_hooks",
    "_global_backward_hooks",
)
"""Where PyTorch keeps the hooks that are called with every module."""


def unit_costs_ns(torch: ModuleType) -> dict[str, float]:
    """Return the ns of an ``event`` of the clock, a hooked ``part`` of a model and a counted ``sync``.

    ``inside`` is what the hooks of the part see of their own cost in the forward. ``pass`` is what a function that is
    a part (a C function, the dearer kind) adds to a call that it lets through, ``read`` the same for what an optimizer
    reads. Takes about 0.1 s, once. Everything is made of ones: nobody's random numbers are touched.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        # whatever the first step is taken in: an evaluation, or modes of the user's that listen or count
        with torch.inference_mode(False), torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
            disturb = _disturbance(torch)
            tensors = {"sync": _sync_ns(torch, disturb, UNATTRIBUTED), "read": _sync_ns(torch, disturb, OPTIMIZER)}
            return {
                "event": _event_ns(disturb),
                **tensors,
                "pass": _pass_ns(torch, disturb),
                **_part_ns(torch, disturb),
            }
    finally:
        if collecting:
            gc.enable()


def _disturbance(torch: ModuleType) -> Callable[[], None]:
    matrix = torch.ones(SIDE, SIDE, device="cpu", dtype=torch.float32)

    def disturb() -> None:
        with torch.no_grad():
            torch.mm(matrix, matrix)

    return disturb


def _added_ns(hooked: Callable[[], Any], bare: Callable[[], Any], disturb: Callable[[], None]) -> float:
    """Return by how many ns ``hooked`` takes longer than ``bare``, at the median of interleaved pairs."""

    def time_of(function: Callable[[], Any]) -> int:
        disturb()
        begin = time.thread_time_ns()
        function()
        return time.thread_time_ns() - begin

    hooked(), bare()
    return max(0.0, statistics.median(time_of(hooked) - time_of(bare) for _ in range(REPEATS)))


def _event_ns(disturb: Callable[[], None]) -> float:
    gate = Gate()
    gate.open = True

    def nothing() -> None:
        return None

    return _added_ns(booked(StackClock(), gate, 0)(nothing), nothing, disturb) / 2


def _sync_ns(torch: ModuleType, disturb: Callable[[], None], around: int) -> float:
    scratch = Observer("", None)
    scratch.gate.open = True
    scratch.clock.stack = [around]
    one = torch.ones(1, device="cpu")
    item = torch._C.TensorBase.item
    hooked = counted(scratch, torch.compiler, "item", INDEX["sync"])(item)
    return _added_ns(lambda: hooked(one), lambda: item(one), disturb)


def _pass_ns(torch: ModuleType, disturb: Callable[[], None]) -> float:
    scratch = Observer("", None)
    scratch.gate.open = True
    scratch.clock.stack = [FORWARD]
    one, function = torch.ones(1, device="cpu"), torch._C._nn.gelu
    wrapped = ModuleHooks(scratch, Batches(scratch, torch), torch).part("attention")(function)
    return _added_ns(lambda: wrapped(one), lambda: function(one), disturb)


def _part_ns(torch: ModuleType, disturb: Callable[[], None]) -> dict[str, float]:
    scratch = Observer("", None)
    hooks = ModuleHooks(scratch, Batches(scratch, torch), torch)
    weight = torch.ones(4, device="cpu", requires_grad=True)

    class Part(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, x: Any) -> Any:
            return x + weight  # an addition saves nothing for the backward, which the user's hooks would hear

    bare: Any = Part()
    hooked: Any = Part()
    begins, ended = hooks.hooks_for("mlp")
    if _hears_modules(torch):
        bare, hooked = bare.forward, _called(hooked.forward, begins, ended)
    else:
        hooked.register_forward_pre_hook(begins, prepend=True)
        hooked.register_forward_hook(ended, always_call=True, with_kwargs=True)
    scratch.gate.open = True

    def call(part: Any) -> int:
        with torch.enable_grad():
            x = weight + 1.0
            disturb()
            begin = time.thread_time_ns()
            result = part(x)
            forward = time.thread_time_ns() - begin
            scratch.backward_depth = 1
            scratch.clock.stack[-1] = BACKWARD_OTHER
            disturb()
            begin = time.thread_time_ns()
            result.backward(torch.ones_like(result))
            scratch.backward_depth = 0
            weight.grad = None
            return forward + time.thread_time_ns() - begin

    call(hooked), call(bare)
    scratch.parts = scratch.inside_ns = scratch.put_aside = 0
    added = statistics.median(call(hooked) - call(bare) for _ in range(REPEATS))
    seen = scratch.parts - scratch.put_aside / HOOKS_OF_A_PART
    return {"part": max(0.0, added), "inside": scratch.inside_ns / seen if seen > 0 else 0.0}


def _hears_modules(torch: ModuleType) -> bool:
    """Return whether the script has hooks that are told of the calls of all modules."""
    return any(getattr(torch.nn.modules.module, name, None) for name in GLOBAL_HOOKS)


def _called(forward: Callable[[Any], Any], begins: Callable[..., None], ended: Callable[..., None]) -> Any:
    def called(x: Any) -> Any:
        begins(None, (x,))
        result = forward(x)
        ended(None, (x,), {}, result)
        return result

    return called
