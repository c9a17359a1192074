"""Everything that a micro-step may change, kept before the experiments and put back after them.

What must not change at all (parameters, the optimizer, the scheduler) is not copied but looked at: a version, an
address and a checksum of all bits. What may change is put back: gradients, random numbers, buffers, counters.
"""

import random
import sys
from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import Any, NamedTuple

from stepprobe.instruments.experiments.attributes import Kept, OwnAttributes, same

_INTEGERS = {1: "uint8", 2: "int16", 4: "int32", 8: "int64"}


class Owners(NamedTuple):
    """Whose state is kept."""

    modules: Sequence[Any]
    optimizers: Sequence[Any] = ()
    schedulers: Sequence[Any] = ()
    others: Sequence[Any] = ()
    """Objects whose own attributes count or collect: a trainer, an accelerator, a gradient scaler."""


class Randomness:
    """The states of all random number generators that a training draws from."""

    def __init__(self, torch: ModuleType) -> None:
        self._torch = torch
        self._python = random.getstate()
        self._numpy = sys.modules["numpy"].random.get_state(legacy=False) if "numpy" in sys.modules else None
        self._cpu = torch.get_rng_state()
        self._devices = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []

    def put_back(self) -> None:
        """Let every generator go on from where it was."""
        random.setstate(self._python)
        if self._numpy is not None:
            sys.modules["numpy"].random.set_state(self._numpy)
        self._torch.set_rng_state(self._cpu)
        if self._devices:
            self._torch.cuda.set_rng_state_all(self._devices)

    def holds(self) -> bool:
        """Return whether every generator is where it was."""
        now = Randomness(self._torch)
        return (
            now._python == self._python
            and _text(now._numpy) == _text(self._numpy)
            and self._torch.equal(now._cpu, self._cpu)
            and all(self._torch.equal(*pair) for pair in zip(now._devices, self._devices, strict=False))
        )


class Untouched:
    """Tensors that nothing may change: version, address and a checksum of their bits."""

    def __init__(self, torch: ModuleType, tensors: Iterable[Any]) -> None:
        self._torch = torch
        self._tensors = list(tensors)
        self._marks = [self._mark(tensor) for tensor in self._tensors]

    def holds(self) -> bool:
        """Return whether all of them are as they were."""
        return all(self._mark(tensor) == mark for tensor, mark in zip(self._tensors, self._marks, strict=True))

    def _mark(self, tensor: Any) -> tuple[Any, ...]:
        try:
            return tensor._version, tensor.data_ptr(), checksum(self._torch, tensor)
        except Exception:  # a tensor of a kind of its own may lack any operation
            return (id(tensor), getattr(tensor, "_version", None))


class Gradients:
    """The gradients of parameters: taken away, and the same tensors put back."""

    def __init__(self, torch: ModuleType, parameters: Sequence[Any]) -> None:
        self._parameters = parameters
        self._grads = [parameter.grad for parameter in parameters]
        self._untouched = Untouched(torch, [grad for grad in self._grads if grad is not None])

    @property
    def tensors(self) -> list[Any]:
        """The gradients, in the order of the parameters; None where there is none."""
        return self._grads

    def any(self) -> bool:
        """Return whether a parameter had a gradient, if only of zeros."""
        return any(grad is not None for grad in self._grads)

    def drop(self) -> None:
        """Leave no parameter with a gradient."""
        for parameter in self._parameters:
            parameter.grad = None

    def put_back(self) -> None:
        """Give every parameter its gradient."""
        for parameter, grad in zip(self._parameters, self._grads, strict=True):
            parameter.grad = grad

    def holds(self) -> bool:
        """Return whether every gradient is the tensor that it was, with its values."""
        pairs = zip(self._parameters, self._grads, strict=True)
        return all(parameter.grad is grad for parameter, grad in pairs) and self._untouched.holds()


class Snapshot:
    """The state of the training at one moment between two micro-steps."""

    def __init__(self, torch: ModuleType, owners: Owners) -> None:
        self.owners = owners
        self._modules = _all_modules(owners.modules)
        self.parameters = _parameters(owners)
        self.gradients = Gradients(torch, self.parameters)
        self.random = Randomness(torch)
        self._weights = Untouched(torch, self.parameters)
        self._buffers = [Kept(module._buffers, torch, depth=1) for module in self._modules]
        self._own = [OwnAttributes(torch, module, plain=True) for module in self._modules]
        self._own += [OwnAttributes(torch, one) for one in owners.others if hasattr(one, "__dict__")]
        self._script = Kept(_script_variables(), torch, depth=2)
        self._optimizers = owners.optimizers
        self._groups = _groups(owners.optimizers)
        self._states = Untouched(torch, _state_tensors(owners.optimizers))
        self._schedulers = [OwnAttributes(torch, one) for one in owners.schedulers]

    def rewind(self) -> None:
        """Make random numbers, buffers and counters what they were; leave gradients where they are."""
        for buffers in self._buffers:
            buffers.put_back()
        for own in self._own:
            own.put_back()
        self.random.put_back()

    def put_back(self) -> dict[str, bool]:
        """Put everything back; return which kinds of state then are what they were."""
        self.rewind()
        self.gradients.put_back()
        return self.unchanged()

    def unchanged(self) -> dict[str, bool]:
        """Return, for each kind of state, whether it is what it was."""
        return {
            "parameters": self.weights_hold(),
            "buffers": not any(kept.differs() for kept in self._buffers),
            "gradients": self.gradients.holds(),
            "optimizer": self._states.holds() and _groups(self._optimizers) == self._groups,
            "scheduler": not any(kept.differs() for kept in self._schedulers),
            "random": self.random.holds(),
            "counters": not (any(kept.differs() for kept in self._own) or self._script_differs()),
        }

    def weights_hold(self) -> bool:
        """Return whether no parameter was changed."""
        return self._weights.holds()

    def _script_differs(self) -> bool:
        now = _script_variables()
        kept: dict[str, Any] = self._script.value
        return self._script.differs() or any(
            name not in now or not same(value, now[name]) for name, value in kept.items()
        )


def checksum(torch: ModuleType, tensor: Any) -> int:
    """Return the sum of all bits of a tensor, read as integers."""
    plain = tensor.detach()
    if plain.is_complex():
        plain = torch.view_as_real(plain)
    width = _INTEGERS.get(plain.element_size())
    if width is None or not plain.numel():
        return 0
    return int(torch._C.TensorBase.item(plain.view(getattr(torch, width)).sum(dtype=torch.int64)))


def _all_modules(roots: Sequence[Any]) -> list[Any]:
    return list({id(module): module for root in roots for module in root.modules()}.values())


def _parameters(owners: Owners) -> list[Any]:
    found = {id(one): one for root in owners.modules for one in root.parameters()}
    for optimizer in owners.optimizers:
        found.update({id(one): one for group in optimizer.param_groups for one in group["params"]})
    return list(found.values())


def _script_variables() -> dict[str, Any]:
    """Return the plain variables of the user's own script: they are looked at, never put back."""
    plain = (bool, int, float, complex, str, list, dict, set)
    main = sys.modules.get("__main__")
    return {
        name: value
        for name, value in list(vars(main).items() if main else ())
        if type(value) in plain and not name.startswith("__")
    }


def _state_tensors(optimizers: Sequence[Any]) -> list[Any]:
    return [
        value
        for optimizer in optimizers
        for state in optimizer.state.values()
        if isinstance(state, dict)
        for value in state.values()
        if hasattr(value, "_version")
    ]


def _groups(optimizers: Sequence[Any]) -> list[dict[str, Any]]:
    """Return the settings of the groups of parameters, such as the learning rate."""
    return [
        {name: _text(value) for name, value in group.items() if name != "params"}
        for optimizer in optimizers
        for group in optimizer.param_groups
    ]


def _text(value: Any) -> str:
    """Return all of a state as text, so that arrays in it are compared whole."""
    if isinstance(value, dict):
        return repr({name: _text(inside) for name, inside in value.items()})
    return repr(value.tolist() if hasattr(value, "tolist") else value)
