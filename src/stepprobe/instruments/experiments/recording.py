"""Writes a tape while the script goes from what its root returned to ``backward``."""

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

from stepprobe.instruments.attach.callers import unseen
from stepprobe.instruments.experiments.tape import Tape


class Recording:
    """Begins when the root has returned, and ends when backward is called (or, unfinished, when it is stopped).

    Args:
        torch: The user's.
        tape: Where calls are written.
        backward_comes: Called with what backward is called on, before it.
        backward_ended: Called behind that backward.
    """

    def __init__(
        self,
        torch: ModuleType,
        tape: Tape,
        backward_comes: Callable[[Any], None],
        backward_ended: Callable[[], None],
    ) -> None:
        self._torch = torch
        self._tape = tape
        self._comes, self._ended = backward_comes, backward_ended
        self._mode: Any = None
        self._inside = 0
        self._apply: Any = None
        self._backwards: list[tuple[Any, Any]] = []

    @staticmethod
    def refused(torch: ModuleType) -> str:
        """Return why nothing can be recorded here; empty where it can."""
        modes = torch._C._len_torch_function_stack()
        default = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None) is not None
        return "the model is called under a function mode of PyTorch (torch.device, …)" if modes > default else ""

    def start(self) -> None:
        """Begin to see calls."""
        torch = self._torch
        self._mode = _mode_class(torch)(self)
        self._apply = torch.autograd.Function.__dict__["apply"]
        # a tensor's own as well: while a mode is told of a call it is off the stack, and could not be left there
        self._backwards = [(owner, owner.backward) for owner in (torch.autograd, torch.Tensor)]
        torch.autograd.Function.apply = classmethod(self._recording_apply())
        for owner, backward in self._backwards:
            owner.backward = self._noticing(backward)
        self._mode.__enter__()

    def stop(self) -> None:
        """See no more calls."""
        if self._mode is None:
            return
        mode, self._mode = self._mode, None
        torch = self._torch
        torch.autograd.Function.apply = self._apply
        for owner, backward in self._backwards:
            owner.backward = backward
        if torch._C._len_torch_function_stack() and torch.overrides._get_current_function_mode() is mode:
            mode.__exit__(None, None, None)
        else:
            self._tape.refusals.append("the script left a function mode of PyTorch between the root and backward")
            mode.asleep = True

    def see(self, function: Any, args: Any, kwargs: Any) -> Any:
        """Make a call of the script, and write it down unless it is part of one that is."""
        call = functools.partial(function, *args, **kwargs)
        if self._inside or self._mode is None or self._torch.compiler.is_compiling():
            return call()
        if getattr(function, "__name__", "") == "backward":
            return call()
        return self._record(function, args, kwargs, call)

    def _record(self, function: Any, args: Any, kwargs: Any, call: Callable[[], Any]) -> Any:
        def alone() -> Any:
            self._inside += 1
            try:
                return call()
            finally:
                self._inside -= 1

        return self._tape.record(function, args, kwargs, alone)

    def _recording_apply(self) -> Any:
        """Wrap ``autograd.Function.apply``, which no mode sees, but what it calls inside."""
        apply = self._apply.__func__

        def recording(kind: Any, *args: Any, **kwargs: Any) -> Any:
            call = functools.partial(apply, kind, *args, **kwargs)
            if self._inside or self._mode is None:
                return call()
            return self._record(functools.partial(apply, kind), args, kwargs, call)

        return recording

    def _noticing(self, backward: Any) -> Any:
        @unseen(backward)
        def noticing(*args: Any, **kwargs: Any) -> Any:
            if self._mode is None:
                return backward(*args, **kwargs)
            self.stop()
            if _keeps_graph(args, kwargs):
                self._tape.refusals.append("backward keeps its graph, so that it can be called again for the same call")
            self._comes(args[0] if args else kwargs.get("tensors", kwargs.get("self")))
            result = backward(*args, **kwargs)
            self._ended()
            return result

        return noticing


def _keeps_graph(args: Any, kwargs: Any) -> bool:
    """Return whether backward was told ``retain_graph`` or ``create_graph``: the third and fourth of both its forms."""
    return any((*args[2:4], kwargs.get("retain_graph"), kwargs.get("create_graph")))


@functools.lru_cache(maxsize=1)
def _mode_class(torch: ModuleType) -> Any:
    class Seeing(torch.overrides.TorchFunctionMode):  # type: ignore[misc,name-defined]
        def __init__(self, recording: Recording) -> None:
            super().__init__()
            self._recording = recording
            self.asleep = False

        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if self.asleep:
                return function(*args, **(kwargs or {}))
            return self._recording.see(function, args, kwargs or {})

    return Seeing
