"""Replaced attributes, all of them remembered, so that every one can be put back."""

from collections.abc import Callable, MutableMapping
from threading import get_ident
from types import ModuleType
from typing import Any, TypeVar

from stepprobe.instruments.attach.callers import unseen
from stepprobe.instruments.attach.clock import StackClock

Function = TypeVar("Function", bound=Callable[..., Any])
_ABSENT = object()
_MARK = "_stepprobe_wraps"


class Gate:
    """Whether the hooks act. One attribute, read at the top of each wrapper.

    Open only between the begin and the end of a step, on the training thread, outside evaluation and checkpoints,
    and never in a forked child.
    """

    __slots__ = ("open",)

    def __init__(self) -> None:
        self.open = False


class Patches:
    """A list of replacements that can be taken back and put in place again."""

    def __init__(self) -> None:
        self._places: list[tuple[Any, str, Any, Any]] = []

    def replace(self, owner: Any, name: str, wrap: Callable[[Any], Any], *, inherited: bool = False) -> bool:
        """Replace ``owner.name`` by ``wrap(owner.name)``; do nothing where it is absent or already wrapped.

        ``owner`` is a module, a mutable mapping or a class. A class is asked for its own attribute only (an inherited
        one is best replaced where it is defined), unless ``inherited`` says that its definition cannot be touched.
        """
        old = own = _own(owner, name)
        if own is _ABSENT and inherited:
            old = getattr(owner, name, _ABSENT)
        if old is _ABSENT or not callable(old) or hasattr(old, _MARK):
            return False
        new = wrap(old)
        if not hasattr(new, _MARK):
            _place(new, owner, name)
        setattr(new, _MARK, True)
        self._places.append((owner, name, own, new))
        _put(owner, name, new)
        return True

    def drop(self, owner: Any, name: str) -> None:
        """Take one replacement back for good."""
        for place in [place for place in self._places if place[0] is owner and place[1] == name]:
            self._places.remove(place)
            _put(owner, name, place[2])

    def undo(self) -> None:
        """Put every original back."""
        for owner, name, own, _ in reversed(self._places):
            _put(owner, name, own)

    def redo(self) -> None:
        """Put every replacement back in place."""
        for owner, name, _, new in self._places:
            _put(owner, name, new)


def _place(function: Any, owner: Any, name: str) -> None:
    """Name a function for where it lies, so that pickle finds it there."""
    if isinstance(owner, type):
        function.__module__, function.__qualname__ = owner.__module__, f"{owner.__qualname__}.{name}"
    elif isinstance(owner, ModuleType):
        function.__module__, function.__qualname__ = owner.__name__, name


def _own(owner: Any, name: str) -> Any:
    if isinstance(owner, MutableMapping):
        return owner.get(name, _ABSENT)
    return owner.__dict__.get(name, _ABSENT) if isinstance(owner, type) else getattr(owner, name, _ABSENT)


def _put(owner: Any, name: str, value: Any) -> None:
    if isinstance(owner, MutableMapping):
        owner[name] = value
    elif value is _ABSENT:
        delattr(owner, name)
    else:
        setattr(owner, name, value)


def same(function: Any) -> Callable[[Any], Any]:
    """Return what gives another name of a replaced function the same replacement."""
    return lambda _: function


def booked(
    clock: StackClock, gate: Gate, account: int, compiling: Callable[[], bool] = bool
) -> Callable[[Function], Function]:
    """Return a decorator that books a function's time to ``account``, less what is booked inside it.

    Args:
        clock: Where it is booked.
        gate: Whether it is.
        account: To what.
        compiling: Whether a compiler traces the call; for functions that may lie in a compiled region.
    """

    def decorate(function: Function) -> Function:
        @unseen(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if not gate.open or compiling() or get_ident() != clock.owner:
                return function(*args, **kwargs)
            depth = clock.push(account)
            try:
                return function(*args, **kwargs)
            finally:
                clock.pop_to(depth)

        return wrapper  # type: ignore[return-value]

    return decorate


def swallowed(clock: StackClock, gate: Gate, account: int) -> Callable[[Function], Function]:
    """Return a decorator that books a function to ``account`` with all that happens inside it."""

    def decorate(function: Function) -> Function:
        @unseen(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if not gate.open or get_ident() != clock.owner:
                return function(*args, **kwargs)
            depth = clock.push(account)
            gate.open = False
            try:
                return function(*args, **kwargs)
            finally:
                gate.open = True
                clock.pop_to(depth)

        return wrapper  # type: ignore[return-value]

    return decorate
