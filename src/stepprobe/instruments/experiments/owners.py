"""Find in the user's process what else a micro-step may change: optimizers, schedulers, scalers, accelerators."""

import gc
import sys
from collections.abc import Iterable
from types import ModuleType
from typing import Any

from stepprobe.instruments.experiments.snapshot import Owners

_COUNTING = (("torch.amp.grad_scaler", "GradScaler"), ("accelerate.accelerator", "Accelerator"))
_SHARED = (("accelerate.state", "GradientState"),)
"""Classes whose instances share one dictionary of attributes."""


class _Shared:
    """Stands for the attributes that all instances of a class share."""

    def __init__(self, attributes: dict[str, Any]) -> None:
        self.__dict__ = attributes


def owners_of(torch: ModuleType, modules: Iterable[Any], others: Iterable[Any] = ()) -> Owners:
    """Return whose state is to be kept while these modules are driven."""
    modules = list(modules)
    parameters = {id(parameter) for module in modules for parameter in module.parameters()}
    counting = _classes(_COUNTING)
    optimizers, schedulers = [], []
    found = {id(one): one for one in others if hasattr(one, "__dict__")}
    for one in gc.get_objects():
        kind = type(one)
        if issubclass(kind, torch.optim.Optimizer) and _owns(one, parameters):
            optimizers.append(one)
        elif issubclass(kind, torch.optim.lr_scheduler.LRScheduler):
            schedulers.append(one)
        elif issubclass(kind, counting):
            found[id(one)] = one
    shared = [_Shared(one._shared_state) for one in _classes(_SHARED)]
    return Owners(modules, optimizers, schedulers, [*found.values(), *shared])


def _classes(names: Iterable[tuple[str, str]]) -> tuple[Any, ...]:
    loaded = ((sys.modules.get(module), name) for module, name in names)
    return tuple(found for module, name in loaded if (found := getattr(module, name, None)) is not None)


def _owns(optimizer: Any, parameters: set[int]) -> bool:
    groups = getattr(optimizer, "param_groups", None) or ()
    return any(id(parameter) in parameters for group in groups for parameter in group["params"])
