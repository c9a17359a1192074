"""Wrappers that no warning is put down to: it names the script's own line and file, as it does without us.

``warnings`` names a Python frame. Python code counts frames outwards (``stacklevel``), and ``warnings``, like
``logging``, passes over those of the import system, which it knows by the name of their file: ``unseen`` gives our
wrappers such a name. C code, PyTorch's own among it, means the innermost frame, whatever its name, and that is the
wrapper that calls a C function: so it makes the call in a stand-in, a function with the file, the line and the globals
of the caller. The filters for modules and lines, and the registry of what was told already, then are the script's own.
"""

import functools
import sys
from collections.abc import Callable
from types import CellType, CodeType, FrameType, FunctionType, ModuleType
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])
MARK = " (importlib_bootstrap)"
"""Ends the name of a wrapper's file: ``warnings`` passes over what has ``importlib`` and ``_bootstrap`` in it."""
STAND_IN = "called_through_stepprobe"
"""Name of every stand-in."""
MOST = 4096
"""Places that are remembered for one function; for any other, and for those of no module, a stand-in is made at each
call."""

_marked: dict[int, CodeType] = {}
_made: list[CodeType] = []
_told: list[Callable[[CodeType], None]] = []


def unseen(function: Any) -> Callable[[Function], Function]:
    """Return a decorator like ``functools.wraps(function)`` for a wrapper that no ``stacklevel`` counts."""

    def decorate(wrapper: Any) -> Any:
        code = wrapper.__code__
        marked = _marked.get(id(code))  # a constant of our own modules, which stay
        if marked is None:
            marked = _marked[id(code)] = code.replace(co_filename=code.co_filename + MARK)
        wrapper.__code__ = marked
        return functools.wraps(function)(wrapper)

    return decorate


def tell(of_code: Callable[[CodeType], None]) -> None:
    """Have a function called with the code of each stand-in, those to come and those that are there."""
    _told.append(of_code)
    for code in _made:
        of_code(code)


class Place:
    """A place in somebody's code that calls a wrapped C function."""

    __slots__ = ("at", "call", "code", "row")

    def __init__(self, caller: FrameType, function: Any) -> None:
        self.code = caller.f_code  # kept, so that nothing else gets its id
        self.at = caller.f_lasti
        self.call = _stand_in(caller, function)
        """The function, called in the name of this place."""
        self.row: list[int] | None = None
        """What is counted here, once something is."""


class Places(dict[tuple[int, int], Place]):
    """The places that call a wrapped C function, by the id of their code and the position in it."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self._function = function

    def meet(self, caller: FrameType) -> Place:
        """Return the place where a frame is now, which is not among them yet."""
        place = Place(caller, self._function)
        if len(self) < MOST and _stays(caller.f_globals):
            self[id(place.code), place.at] = place
            _made.append(place.call.__code__)
        return place


def named(function: Any, compiler: ModuleType) -> Any:
    """Return a C function as our wrappers are to call it: what it warns of is said of the line that called them.

    Args:
        function: The C function.
        compiler: ``torch.compiler``; the function itself goes into the graphs that are traced.
    """
    known, tracing, getframe = Places(function), compiler.is_dynamo_compiling, sys._getframe

    @unseen(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        if tracing():
            return function(*args, **kwargs)
        try:
            caller = getframe(2)
        except ValueError:  # a thread that runs nothing but the wrapper
            return function(*args, **kwargs)
        place = known.get((id(caller.f_code), caller.f_lasti)) or known.meet(caller)
        return place.call(args, kwargs)

    return called


def _stays(namespace: dict[str, Any]) -> bool:
    """Return whether it is a module's own: to remember what ``exec`` was given would keep all that lies in it."""
    name = namespace.get("__name__")
    module = sys.modules.get(name) if isinstance(name, str) else None
    return isinstance(module, ModuleType) and vars(module) is namespace


def _bound(function: Any) -> FunctionType:
    return lambda args, kwargs: function(*args, **kwargs)  # type: ignore[return-value]


_BODY = _bound(None).__code__  # all on one line, so that its first line is the line of everything in it


def _stand_in(caller: FrameType, function: Any) -> FunctionType:
    file, line = caller.f_code.co_filename, caller.f_lineno or 1
    code = _BODY.replace(co_filename=file, co_firstlineno=line, co_name=STAND_IN)
    for of_code in _told:
        of_code(code)
    return FunctionType(code, caller.f_globals, STAND_IN, None, (CellType(function),))
