"""The user's own loss path, from what the root returned to ``backward``, as a list of calls that can be made again.

While one micro-step runs, a function mode of PyTorch sees every call of the script on tensors. Each is written down
with its arguments; tensors become slots. Played again on what the root returns for another batch, the same functions
are called in the same order, under the same autocast.
"""

import contextlib
import weakref
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, NamedTuple

from stepprobe.instruments.experiments.captured import Shape, tensors_of
from stepprobe.instruments.experiments.sizes import Size

_VIEWS = (
    "view",
    "reshape",
    "view_as",
    "expand",
    "unflatten",
    "repeat",
    "tile",
    "as_strided",
    "broadcast_to",
    "resize_",
)
_NEW = ("zeros", "ones", "full", "empty", "rand", "randn", "randint", "new_zeros", "new_ones", "new_full", "new_empty")
SHAPED = frozenset((*_VIEWS, *_NEW, "split_with_sizes"))
"""Functions that are told sizes as plain numbers, that of the rows among them."""
SIZED = SHAPED | {"narrow", "split", "arange", "__getitem__", "__setitem__"}
"""Those that are told sizes or places along the tokens."""


class Slot(NamedTuple):
    """A tensor of a call."""

    number: int


class Rule(NamedTuple):
    """A number of a call that was computed from the shape of a tensor."""

    rule: Any


class Mode(NamedTuple):
    """What PyTorch does to each call: gradients, and autocast by device (enabled, type)."""

    gradients: bool
    autocast: tuple[tuple[str, bool, Any], ...]


class Call(NamedTuple):
    """One call."""

    function: Any
    args: Any
    kwargs: Any
    results: tuple[int, ...]
    mode: Mode


class Tape:
    """What was written down of one micro-step."""

    def __init__(self, torch: ModuleType, shape: Shape, root_output: Any) -> None:
        self.calls: list[Call] = []
        self.outside: dict[int, Any] = {}
        """Slot -> tensor that neither the root nor a call returned: labels, weights, constants."""
        self.before: dict[int, Any] = {}
        """Slot -> what an outside tensor held before a call changed it in place."""
        self.refusals: list[str] = []
        self.loss: int | None = None
        self.loss_mode: Mode | None = None
        self.alive: frozenset[int] = frozenset()
        """Slots that the script, or autograd, still held when backward began."""
        self._torch = torch
        self._shape = shape
        self._versions: dict[int, int] = {}
        self._slots: dict[int, tuple[weakref.ref[Any], int]] = {}
        self._next = 0
        self.outputs = [(path, self._new(tensor)) for path, tensor in tensors_of_output(torch, root_output)]

    # -- recording ----------------------------------------------------------------------------------------------

    def record(self, function: Any, args: Any, kwargs: Any, call: Callable[[], Any]) -> Any:
        """Make a call and write it down; return its result, with sizes that remember where they came from."""
        name = _name(function)
        if name == "__get__":
            return self._read(function, args, call)
        kept_args, kept_kwargs = self._keep(args), self._keep(kwargs)
        if (name.endswith("_") and not name.endswith("__")) or name.startswith("__i") or name == "__setitem__":
            self._keep_before(args)
        if name in SIZED:
            self._check_numbers(name, kept_args, kept_kwargs)
        result = call()
        slots = tuple(self._slot_of_result(tensor) for _, tensor in tensors_of(self._torch, result))
        self.calls.append(Call(function, kept_args, kept_kwargs, slots, mode_now(self._torch)))
        if name == "size" and args and isinstance(result, (int, tuple)):
            return self._sizes(args[0], result, args[1:] or tuple(kwargs.values()))
        return result

    def _read(self, function: Any, args: Any, call: Callable[[], Any]) -> Any:
        """A property was read: only tensors are written down, and shapes remember their tensor."""
        result = call()
        name = getattr(getattr(function, "__self__", None), "__name__", "")
        if name == "shape" and args:
            return self._sizes(args[0], result, ())
        if isinstance(result, self._torch.Tensor):
            slot = self._slot_of_result(result)
            self.calls.append(Call(function, self._keep(args), {}, (slot,), mode_now(self._torch)))
        return result

    def _sizes(self, tensor: Any, result: Any, dimensions: tuple[Any, ...]) -> Any:
        slot = self._slot(tensor)
        if isinstance(result, tuple):
            return self._torch.Size([Size.of(int(one), ("size", slot, place)) for place, one in enumerate(result)])
        return Size.of(int(result), ("size", slot, int(dimensions[0])))

    def end(self, loss: Any) -> None:
        """Backward is about to be called on this."""
        if isinstance(loss, (tuple, list)) and len(loss) == 1:
            loss = loss[0]
        known = self._known(loss) if isinstance(loss, self._torch.Tensor) else None
        if known is None:
            self.refusals.append("what backward is called on was not computed from what the root module returned")
        self.loss, self.loss_mode = known, mode_now(self._torch)
        self.alive = frozenset(slot for reference, slot in self._slots.values() if reference() is not None)
        self._slots.clear()
        for slot, version in self._versions.items():
            if slot not in self.before and self.outside[slot]._version != version:
                self.refusals.append("the script changes in place a part of a tensor that its loss uses")

    def _keep(self, value: Any) -> Any:
        if isinstance(value, self._torch.Tensor):
            return Slot(self._slot(value))
        if isinstance(value, Size):
            return Rule(value.rule)
        if isinstance(value, dict):
            return {key: self._keep(inside) for key, inside in value.items()}
        if isinstance(value, slice):
            return slice(self._keep(value.start), self._keep(value.stop), self._keep(value.step))
        if isinstance(value, (tuple, list)) and not hasattr(value, "_fields"):
            return (list if isinstance(value, list) else tuple)(self._keep(inside) for inside in value)
        return value

    def _known(self, tensor: Any) -> int | None:
        reference, slot = self._slots.get(id(tensor), (None, -1))
        return slot if reference is not None and reference() is tensor else None

    def _slot(self, tensor: Any) -> int:
        known = self._known(tensor)
        if known is not None:
            return known
        slot = self._new(tensor)
        self.outside[slot] = tensor
        with contextlib.suppress(RuntimeError):  # a tensor of inference mode has no version
            self._versions[slot] = tensor._version
        if tensor.grad_fn is not None:
            self.refusals.append(
                f"the loss uses a tensor of the shape {list(tensor.shape)} that has a gradient and that neither the "
                "root module nor a function of PyTorch returned"
            )
        return slot

    def _slot_of_result(self, tensor: Any) -> int:
        known = self._known(tensor)
        return self._new(tensor) if known is None else known

    def _new(self, tensor: Any) -> int:
        self._slots[id(tensor)] = (weakref.ref(tensor), self._next)
        self._next += 1
        return self._next - 1

    def _keep_before(self, args: Any) -> None:
        changed = args[0] if args else None
        if isinstance(changed, self._torch.Tensor):
            slot = self._slot(changed)
            if slot in self.outside and slot not in self.before:
                self.before[slot] = changed.detach().clone()

    def _check_numbers(self, name: str, *arguments: Any) -> None:
        rows, length = self._shape
        suspicious = {number for number in (length - 1, length, length + 1) if number > 1}
        suspicious |= {rows * number for number in suspicious}
        if name in SHAPED and rows > 1:
            suspicious.add(rows)
        for number in _plain_numbers(arguments):
            if abs(number) in suspicious:
                self.refusals.append(
                    f"the script calls {name}(…, {number}, …) on the way to its loss, a plain number that may be the "
                    f"batch's ({rows} × {length}); write it as a size of a tensor (logits.shape[1])"
                )


def tensors_of_output(torch: ModuleType, output: Any) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yield (path, tensor) of what a root returned, also of an object's attributes."""
    found = list(tensors_of(torch, output))
    if not found and hasattr(output, "__dict__"):
        found = [(("__dict__", *path), tensor) for path, tensor in tensors_of(torch, vars(output))]
    yield from found


def mode_now(torch: ModuleType) -> Mode:
    """Return what PyTorch does to calls now."""
    kinds = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)
    states = tuple((kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in kinds)
    return Mode(torch.is_grad_enabled(), states)


def set_mode(torch: ModuleType, mode: Mode) -> None:
    """Let PyTorch do to calls what it did then."""
    torch.set_grad_enabled(mode.gradients)
    for kind, enabled, dtype in mode.autocast:
        torch.set_autocast_enabled(kind, enabled)
        torch.set_autocast_dtype(kind, dtype)


@contextlib.contextmanager
def modes_kept(torch: ModuleType) -> Iterator[None]:
    """Put back what PyTorch does to calls, when left; casts that were kept for autocast are forgotten."""
    before = mode_now(torch)
    try:
        yield
    finally:
        set_mode(torch, before)
        torch.clear_autocast_cache()


def _name(function: Any) -> str:
    return str(getattr(function, "__name__", ""))


def _plain_numbers(value: Any) -> Iterator[int]:
    if isinstance(value, (Slot, Rule)):
        return
    if isinstance(value, int) and not isinstance(value, bool):
        yield value
    elif isinstance(value, slice):
        yield from _plain_numbers((value.start, value.stop))
    elif isinstance(value, dict):
        yield from _plain_numbers(tuple(value.values()))
    elif isinstance(value, (tuple, list)):
        for inside in value:
            yield from _plain_numbers(inside)
