"""What the costlier hooks add to one call, measured in the user's process before the first step."""

from types import ModuleType
from typing import Any

from stepprobe.instruments.attach.batches import Batches
from stepprobe.instruments.attach.budget import cold_ns
from stepprobe.instruments.attach.clock import INDEX
from stepprobe.instruments.attach.modules import BACKWARD_OTHER, ModuleHooks
from stepprobe.instruments.attach.observer import Observer
from stepprobe.instruments.attach.tensors import counted


def unit_costs_ns(torch: ModuleType) -> dict[str, float]:
    """Return the cost of a hooked ``part`` of a model and of a counted ``sync``, in ns a call."""
    return {"part": _part_ns(torch), "sync": _sync_ns(torch)}


def _sync_ns(torch: ModuleType) -> float:
    scratch = Observer("", None)
    scratch.gate.open = True
    one = torch.ones(1, device="cpu")
    item = torch._C.TensorBase.item
    hooked = counted(scratch, torch.compiler.is_compiling, "item", INDEX["sync"])(item)
    return max(0.0, cold_ns(lambda: hooked(one)) - cold_ns(lambda: item(one)))


def _part_ns(torch: ModuleType) -> float:
    """Return the ns that hooks add to one call of a part and its backward.

    A tiny module is called with and without hooks. It is made of ones: nobody's random numbers are touched.
    """
    scratch = Observer("", None)
    hooks = ModuleHooks(scratch, Batches(scratch, torch), torch)
    weight = torch.ones(4, device="cpu", requires_grad=True)

    class Part(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, x: Any) -> Any:
            return x * weight

    bare, hooked = Part(), Part()
    begins, ended = hooks.hooks_for("mlp")
    hooked.register_forward_pre_hook(begins, prepend=True)
    hooked.register_forward_hook(ended, always_call=True, with_kwargs=True)
    scratch.gate.open = True

    def call(part: Any) -> None:
        with torch.enable_grad():
            result = part(weight * 1.0)
            scratch.backward_depth = 1
            scratch.clock.stack[-1] = BACKWARD_OTHER
            result.backward(torch.ones_like(result))
            scratch.backward_depth = 0
            weight.grad = None

    return max(0.0, cold_ns(lambda: call(hooked)) - cold_ns(lambda: call(bare)))
