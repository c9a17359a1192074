"""A dispatch mode in which floats have no storage while integers and booleans keep their true values.

A model's own branches on masks then run as they would in the job ("is anything padded?", "is this packed?"), at real
size and real length, on a machine that could not hold the weights. ``FakeTensorMode`` answers those questions
otherwise, and a plain ``meta`` device cannot answer them at all.
"""

import contextlib
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from stepprobe.instruments.attention.remembered import Results

if TYPE_CHECKING:
    from torch import Tensor

LARGEST_INTEGERS = 1 << 26
"""Elements up to which an integer or boolean tensor that the model makes keeps its values."""
LARGEST_FLOATS = 1 << 20
"""The same for float tensors of at most two dimensions, which old models use as padding masks."""

_READS = {"aten::_local_scalar_dense", "aten::item", "aten::is_nonzero"}
_COUNTED = {"aten::bincount", "aten::unique_consecutive", "aten::_unique2", "aten::masked_select", "aten::nonzero"}
_UNCHANGED = {"aten::copy_", "aten::index_put_"}


class ValueReads:
    """Values of floats that the model asked for and that do not exist; the answer was zero."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()


def hybrid_mode(reads: ValueReads, on_softmax: Callable[["Tensor"], None]) -> Any:
    """Return the mode, a context.

    Args:
        reads: Counts what could not be answered.
        on_softmax: Called with the argument of every softmax over something without storage.
    """
    from torch.utils._python_dispatch import TorchDispatchMode

    results = Results()

    class Hybrid(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
        ) -> Any:
            name, kwargs = func._schema.name, dict(kwargs or {})
            tensors = _tensors(args, kwargs)
            if not any(tensor.device.type == "meta" for tensor in tensors):
                return _with_values(func, name, args, kwargs, tensors)
            if name == "aten::_softmax":
                on_softmax(args[0])
            if name in _COUNTED:
                return _without_values(func, name, args, kwargs, tensors, reads)
            return results.of(func, args, kwargs, lambda: _without_values(func, name, args, kwargs, tensors, reads))

    return Hybrid()


@contextlib.contextmanager
def autocast_without_device() -> Iterator[None]:
    """Let models of transformers 4 enter autocast for a device on which nothing is computed."""
    import torch

    original = torch.autocast.__init__

    def enter(self: Any, device_type: str, *args: Any, **kwargs: Any) -> None:
        original(self, "cpu" if device_type == "meta" else device_type, *args, **kwargs)

    torch.autocast.__init__ = enter
    try:
        yield
    finally:
        torch.autocast.__init__ = original


def _tensors(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    import torch

    found = []
    for value in (*args, *kwargs.values()):
        parts = value if isinstance(value, list | tuple) else (value,)
        found += [part for part in parts if isinstance(part, torch.Tensor)]
    return found


def _with_values(func: Any, name: str, args: Sequence[Any], kwargs: dict[str, Any], tensors: list[Any]) -> Any:
    """Run an operation whose inputs all have values; what can keep them stays on the CPU."""
    import torch

    device = kwargs.get("device")
    if device is None or torch.device(device).type != "meta":
        return func(*args, **kwargs)
    if name == "aten::_to_copy":
        shape, dtype = tuple(tensors[0].shape), kwargs.get("dtype") or tensors[0].dtype
        if not _keeps(shape, dtype):
            return torch.empty(shape, dtype=dtype, device="meta")
        return func(*args, **{**kwargs, "device": torch.device("cpu")})
    if name.startswith(("aten::empty", "aten::rand", "aten::normal")):
        return func(*args, **kwargs)
    made_dtype = _made_dtype(name, args, kwargs, tensors)
    shape = tuple(args[0] if args and isinstance(args[0], list | tuple) else tensors[0].shape if tensors else ())
    if made_dtype is not None and _keeps(shape, made_dtype):
        kwargs["device"] = torch.device("cpu")
    return func(*args, **kwargs)


def _keeps(shape: tuple[int, ...], dtype: Any) -> bool:
    if dtype.is_floating_point or dtype.is_complex:
        return len(shape) == 2 and math.prod(shape) <= LARGEST_FLOATS
    return math.prod(shape) <= LARGEST_INTEGERS


def _made_dtype(name: str, args: Sequence[Any], kwargs: Mapping[str, Any], tensors: list[Any]) -> Any:
    """Return the element type that a factory will make; None where it cannot be told."""
    import torch

    if kwargs.get("dtype") is not None:
        return kwargs["dtype"]
    if tensors:
        return tensors[0].dtype
    if name == "aten::arange":
        return torch.int64 if all(isinstance(number, int) for number in args) else torch.get_default_dtype()
    if name in ("aten::full", "aten::scalar_tensor"):
        fill = args[-1]
        return torch.bool if isinstance(fill, bool) else torch.int64 if isinstance(fill, int) else None
    return torch.get_default_dtype() if name in ("aten::ones", "aten::zeros") else None


def _without_values(
    func: Any, name: str, args: Sequence[Any], kwargs: dict[str, Any], tensors: list[Any], reads: ValueReads
) -> Any:
    """Run an operation by its shapes; what would need values is counted and answered with zero."""
    import torch

    source = tensors[0]
    if name in _READS:
        reads.counts[name] += 1
        return False if source.dtype == torch.bool else 0.0 if source.dtype.is_floating_point else 0
    if name in _COUNTED:
        reads.counts[name] += 1
    if name == "aten::nonzero":
        return torch.empty((0, source.dim()), dtype=torch.int64)
    if name == "aten::equal":
        return True
    if name in _UNCHANGED and args[0].device.type != "meta":
        return args[0]
    if name == "aten::_to_copy":
        dtype = kwargs.get("dtype") or source.dtype
        return torch.empty_strided(source.shape, source.stride(), dtype=dtype, device="meta")
    if name == "aten::histc":
        return torch.empty(args[1] if len(args) > 1 else kwargs.get("bins", 100), dtype=source.dtype, device="meta")
    if "device" not in kwargs and all(tensor.device.type == "meta" for tensor in tensors):
        return func(*args, **kwargs)
    return _by_shapes(func, args, kwargs)


def _by_shapes(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Run an operation after taking the values from those of its arguments that have some."""
    import torch
    from torch.utils._pytree import tree_map

    meta = torch.device("meta")

    def bare(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor) and leaf.device.type != "meta":
            return torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype, device=meta)
        return meta if isinstance(leaf, torch.device) else leaf

    return func(*tree_map(bare, tuple(args)), **tree_map(bare, dict(kwargs)))
