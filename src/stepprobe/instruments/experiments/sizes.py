"""Whole numbers that remember from which tensor's shape they were computed."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

Rule = tuple[Any, ...]
"""``("size", slot, dimension)``, or ``(operation, left, right)`` of rules and plain numbers."""

_OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda left, right: left + right,
    "sub": lambda left, right: left - right,
    "mul": lambda left, right: left * right,
    "floordiv": lambda left, right: left // right,
    "mod": lambda left, right: left % right,
}


class Size(int):
    """A size of a tensor, or what was computed from sizes; in all else an int."""

    rule: Rule

    @classmethod
    def of(cls, value: int, rule: Rule) -> "Size":
        """Return a size with the rule that gives it."""
        size = cls(value)
        size.rule = rule
        return size

    def __neg__(self) -> int:
        return Size.of(-int(self), ("sub", 0, self.rule))

    def __reduce__(self) -> Any:
        return int, (int(self),)


def _forward(name: str) -> Callable[[Any, Any], Any]:
    compute = _OPERATIONS[name]

    def operator(size: Size, other: Any) -> Any:
        if not isinstance(other, int):
            return getattr(int, f"__{name}__")(size, other)
        return Size.of(compute(int(size), int(other)), (name, size.rule, getattr(other, "rule", other)))

    return operator


def _reflected(name: str) -> Callable[[Any, Any], Any]:
    compute = _OPERATIONS[name]

    def operator(size: Size, other: Any) -> Any:
        if not isinstance(other, int):
            return getattr(int, f"__r{name}__")(size, other)
        return Size.of(compute(int(other), int(size)), (name, other, size.rule))

    return operator


for _name in _OPERATIONS:
    setattr(Size, f"__{_name}__", _forward(_name))
    setattr(Size, f"__r{_name}__", _reflected(_name))


def computed(rule: Any, sizes: Mapping[int, Sequence[int]]) -> int:
    """Return what a rule gives for other shapes (slot -> shape)."""
    if not isinstance(rule, tuple):
        return int(rule)
    kind, left, right = rule
    if kind == "size":
        return int(sizes[left][right])
    return int(_OPERATIONS[kind](computed(left, sizes), computed(right, sizes)))
