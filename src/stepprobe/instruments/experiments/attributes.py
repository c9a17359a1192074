"""The plain state of the user's objects (counters, lists of metrics, flags, small tensors), kept and put back."""

import contextlib
import dataclasses
from collections import Counter, OrderedDict, defaultdict, deque
from types import ModuleType
from typing import Any

DEPTH = 6
"""Containers inside containers that are followed."""
MOST_ITEMS = 2_000
"""Items of a container that are kept; of a longer one only its identity and length."""
MOST_BYTES = 64 << 20
"""Bytes of a buffer that is kept by value; of a larger one only its version."""
MOST_BYTES_INSIDE = 64 << 10
"""The same for a tensor inside a container."""

_MAPPINGS = (dict, defaultdict, OrderedDict, Counter)
_SEQUENCES = (list, deque)
_STATE = (bool, int, float, complex, str, type(None), list, dict, set)
_PARTS = ("_parameters", "_buffers", "_modules")
_ATOMS = (bool, int, float, complex, str, bytes, type(None))


class Kept:
    """One value and what is inside it, as they were; a mutable one is put back in place, so that all see it."""

    __slots__ = ("_children", "_copy", "_keys", "_length", "_torch", "_version", "value")

    def __init__(self, value: Any, torch: ModuleType, depth: int = DEPTH) -> None:
        self.value = value
        self._torch = torch
        self._children: list[Kept] | None = None
        self._keys: list[Any] = []
        self._copy: Any = None
        self._version: Any = None
        self._length = -1
        if isinstance(value, torch.Tensor):
            self._keep_tensor(value, MOST_BYTES if depth in (0, DEPTH) else MOST_BYTES_INSIDE)
        elif type(value) is set:
            self._copy = set(value)
        elif (items := _items(value)) is not None:
            self._length = len(items)
            if depth and len(items) <= MOST_ITEMS:
                self._keys = list(items) if isinstance(items, dict) else []
                inside = list(items.values()) if isinstance(items, dict) else list(items)
                self._children = [Kept(item, torch, depth - 1) for item in inside]

    def differs(self) -> bool:
        """Return whether anything inside is not as it was."""
        if self._children is not None:
            return not self._has_same_items() or any(child.differs() for child in self._children)
        if isinstance(self.value, self._torch.Tensor):
            return self._tensor_differs()
        if type(self.value) is set:
            return bool(self.value != self._copy)
        return self._length >= 0 and len(_items(self.value) or ()) != self._length

    def put_back(self) -> None:
        """Make everything inside as it was, as far as it was kept."""
        if self._children is not None:
            if not self._has_same_items():
                self._refill()
            for child in self._children:
                child.put_back()
        elif type(self.value) is set:
            if self.differs():
                self.value.clear()
                self.value.update(self._copy)
        elif self._copy is not None:
            if self.differs():
                with self._torch.no_grad():
                    self.value.copy_(self._copy)
            self._put_version_back()

    def _put_version_back(self) -> None:
        """Let a graph that saved the tensor before find it unchanged, as it is: its backward is yet to come."""
        if self._version is None or self.value._version == self._version:
            return
        set_version = getattr(self._torch._C._autograd, "_unsafe_set_version_counter", None)
        if set_version is None:
            return
        try:
            set_version((self.value,), (self._version,))
        except TypeError:  # PyTorch before 2.7 takes one tensor
            set_version(self.value, self._version)

    def _keep_tensor(self, value: Any, most: int) -> None:
        torch = self._torch
        with contextlib.suppress(RuntimeError):  # a tensor of inference mode has no version
            self._version = value._version
        plain = type(value) is torch.Tensor and value.layout == torch.strided
        if plain and value.numel() * value.element_size() <= most:
            self._copy = value.detach().clone()

    def _tensor_differs(self) -> bool:
        if self._copy is not None:
            return not same_bits(self._torch, self._copy, self.value)
        return self._version is not None and self.value._version != self._version

    def _has_same_items(self) -> bool:
        assert self._children is not None
        items = _items(self.value)
        if items is None or len(items) != len(self._children):
            return False
        if isinstance(items, dict):
            if not all(same(old, new) for old, new in zip(self._keys, items, strict=True)):
                return False
            items = items.values()
        return all(same(child.value, item) for child, item in zip(self._children, items, strict=True))

    def _refill(self) -> None:
        assert self._children is not None
        values = [child.value for child in self._children]
        if type(self.value) in _SEQUENCES:
            self.value.clear()
            self.value.extend(values)
        elif (items := _items(self.value)) is not None and isinstance(items, dict):
            items.clear()
            items.update(zip(self._keys, values, strict=True))


class OwnAttributes:
    """The attributes of one object, kept and put back.

    With ``plain`` only those that count, collect or switch: a module's own, not its parts or hooks.
    """

    def __init__(self, torch: ModuleType, owner: Any, *, plain: bool = False) -> None:
        self._owner = owner
        self._plain = plain
        self._kept = {name: Kept(value, torch) for name, value in self._now().items()}

    def differs(self) -> bool:
        """Return whether one is not as it was, was added or is gone."""
        now = self._now()
        if list(now) != list(self._kept):
            return True
        return any(not same(kept.value, now[name]) or kept.differs() for name, kept in self._kept.items())

    def put_back(self) -> None:
        """Make the attributes what they were."""
        attributes = vars(self._owner)
        for name in [name for name in self._now() if name not in self._kept]:
            del attributes[name]
        for name, kept in self._kept.items():
            kept.put_back()
            attributes[name] = kept.value

    def _now(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self._owner).items() if self._is_kept(name, value)}

    def _is_kept(self, name: str, value: Any) -> bool:
        if self._plain:
            return name not in _PARTS and "hook" not in name and (type(value) in _STATE or hasattr(value, "_version"))
        return "data" not in name  # datasets and their loaders: nothing asks them for anything


def _items(value: Any) -> Any:
    """Return the mapping or the sequence that a value is made of; None for one that is not looked into."""
    if type(value) in _MAPPINGS or type(value) in _SEQUENCES or type(value) is tuple:
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return getattr(value, "__dict__", None)
    return None


def same(old: Any, new: Any) -> bool:
    """Return whether two values are one object, or plain and equal."""
    if old is new:
        return True
    return type(old) is type(new) and isinstance(old, _ATOMS) and bool(old == new)


def same_bits(torch: ModuleType, old: Any, new: Any) -> bool:
    """Return whether two tensors hold the same bits, so that no number equals itself too."""
    if old.shape != new.shape or old.dtype != new.dtype or old.device != new.device:
        return False
    left, right = (one.detach().contiguous().reshape(-1).view(torch.uint8) for one in (old, new))
    return bool(torch.equal(left, right))
