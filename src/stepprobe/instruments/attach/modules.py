"""Hooks on the user's modules: the root on every step, its parts on the steps that are observed in detail.

Never a global module hook (``torch.compile`` would compile everything again), never a replaced ``forward``, never a
full backward hook (it breaks operations in place). The backward pass is split by pre-hooks on the ``grad_fn`` of what
a part returned: when autograd reaches it, the backward of that part begins.
"""

import time
import weakref
from collections.abc import Callable, Iterator
from threading import get_ident
from types import BuiltinFunctionType, ModuleType
from typing import Any

from stepprobe.instruments.attach.batches import IGNORED, Batches
from stepprobe.instruments.attach.callers import named, unseen
from stepprobe.instruments.attach.clock import INDEX
from stepprobe.instruments.attach.first_calls import FirstCalls
from stepprobe.instruments.attach.kinds import kind_of
from stepprobe.instruments.attach.observer import FORWARD, Observer
from stepprobe.model.accounts import FORWARD_PARTS

RECOMPUTE = INDEX["recompute"]
BACKWARD = INDEX["backward"]
BACKWARD_OTHER = INDEX["backward.other"]
_FORWARD = {part: INDEX[f"forward.{part}"] for part in FORWARD_PARTS}
_BACKWARD = {part: INDEX[f"backward.{part}"] for part in FORWARD_PARTS}
_BACKWARD_OF = {INDEX[f"forward.{part}"]: INDEX[f"backward.{part}"] for part in FORWARD_PARTS}
_IS_BACKWARD = frozenset(_BACKWARD.values())


class ModuleHooks:
    """Books forward and backward by part."""

    def __init__(self, observer: Observer, batches: Batches, torch: ModuleType) -> None:
        self._observer = observer
        self._clock = observer.clock
        self._gate = observer.gate
        self._batches = batches
        self._torch = torch
        self._compiling: Callable[[], bool] = torch.compiler.is_compiling
        self._grad_enabled: Callable[[], bool] = torch.is_grad_enabled
        self._tensor = torch.Tensor
        self._unseen = torch._C.DisableTorchFunction
        self._roots: dict[int, weakref.ref[Any]] = {}
        self._root_depths: list[int] = []
        self._depths: list[int] = []
        self._parts: dict[int, tuple[weakref.ref[Any], str]] = {}
        self._handles: list[Any] = []
        self._enter = {part: self._entering(_BACKWARD[part]) for part in FORWARD_PARTS}
        self._leave: dict[tuple[int, int], Callable[..., None]] = {}
        self._pairs = {part: self.hooks_for(part) for part in FORWARD_PARTS}
        self.trained = False
        """Whether a root was ever called with gradients."""
        self.first_calls: FirstCalls | None = None
        """Keeps what masks depend on; None where nobody asks."""
        observer.on.detail.append(self._set_detail)

    # -- the root -----------------------------------------------------------------------------------------------

    def adopt(self, root: Any, *, name: str = "", counts: bool = True) -> None:
        """Hook a root for good, and remember which of its parts to hook on steps in detail.

        Args:
            root: The module that a step calls.
            name: Its name where it is only one of several that a step calls; it may be a part itself then.
            counts: Whether a call of it is a forward, and its arguments are the batch.
        """
        if self.is_root(root):
            return  # another optimizer, or the next one, has parameters of the same root
        self._roots[id(root)] = weakref.ref(root)

        # functions, not methods: a copy of a hook must not be a copy of all that is behind it
        def begins(*call: Any) -> None:
            if not self._compiling():
                self.root_begins(*call, counts=counts)

        def ended(*call: Any) -> None:
            if not self._compiling():
                self._root_ended(*call)

        root.register_forward_pre_hook(begins, prepend=True, with_kwargs=True)
        root.register_forward_hook(ended, always_call=True, with_kwargs=True)
        for module, part in _parts_of(root, name):
            self._parts[id(module)] = weakref.ref(module), part
        if self._observer.detail:
            self._set_detail(True)

    def is_root(self, module: Any) -> bool:
        """Return whether a module was adopted."""
        known = self._roots.get(id(module))
        return known is not None and known() is module

    def root_begins(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], *, counts: bool = True) -> None:
        """Pre-hook of a root."""
        observer, clock = self._observer, self._clock
        gradients = self._grad_enabled()
        self.trained = self.trained or gradients
        training = gradients and module.training
        if training and counts and not observer.backward_depth and not observer.forward_depth:
            observer.root_called()
        if not self._gate.open or get_ident() != clock.owner:
            return
        observer.forward_depth += 1
        if counts and observer.forward_depth == 1 and not observer.backward_depth:
            self._count_forward(module, training, args, kwargs)
        self._root_depths.append(clock.push(RECOMPUTE if observer.backward_depth else observer.forward_part))
        part = self._part_of(module)
        if part is not None:
            self._pairs[part][0](module, args)

    def _part_of(self, root: Any) -> str | None:
        """Return what part a root is itself, on steps in detail; None where it is none.

        Its call may begin such a step: hooks of a part, put on it then, would run behind the call and not before it.
        """
        reference, part = self._parts.get(id(root), (None, "")) if self._observer.detail else (None, "")
        return part if reference is not None and reference() is root else None

    def keep_apart(self) -> None:
        """Let ``torch.compile``, which the script uses, compile nothing of what the hooks of a root call."""
        self.root_begins = self._torch.compiler.disable(self.root_begins)  # type: ignore[method-assign]
        self._root_ended = self._torch.compiler.disable(self._root_ended)  # type: ignore[method-assign]

    def _count_forward(self, module: Any, training: bool, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        begin = time.perf_counter_ns()
        self._observer.count("forwards")
        if not training:
            self._observer.count("no_grad_forwards")
        self._batches.forward(args, kwargs)
        if self.first_calls is not None:
            self.first_calls.begins(module, args, kwargs)
        self._observer.add_cost(time.perf_counter_ns() - begin)

    def _root_ended(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        if not self._root_depths or not self._gate.open or get_ident() != self._clock.owner:
            return
        self._observer.forward_depth -= 1
        part = self._part_of(module)
        if part is not None:
            self._pairs[part][1](module, args, kwargs, output)
        depth = self._root_depths.pop()
        self._clock.pop_to(depth)
        while self._depths and self._depths[-1] > depth:  # of a part that met the hook before it alone
            self._depths.pop()
        if not self._observer.forward_depth and self.first_calls is not None and self.first_calls.left:
            begin = time.perf_counter_ns()
            self.first_calls.ended()
            self._observer.add_cost(time.perf_counter_ns() - begin)

    def unwind(self) -> None:
        """Leave a forward that an interrupt ended: PyTorch calls no hook behind it."""
        if entered := self._root_depths[:1] + self._depths[:1]:
            self._clock.pop_to(min(entered))
            self._root_depths.clear()
            self._depths.clear()
            self._observer.forward_depth = 0

    # -- its parts, on steps in detail --------------------------------------------------------------------------

    def _set_detail(self, detail: bool) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self.unwind()  # a call under way has met the hooks before it, and would not meet those behind it
        if not detail:
            return
        for key, (reference, part) in self._parts.items():
            module = reference()
            if module is not None and key not in self._roots:
                begins, ended = self._pairs[part]
                self._handles.append(module.register_forward_pre_hook(begins, prepend=True))
                self._handles.append(module.register_forward_hook(ended, always_call=True, with_kwargs=True))

    def hooks_for(self, part: str) -> tuple[Callable[..., None], Callable[..., None]]:
        """Return the hooks that go before and behind the forward of a part."""
        observer, clock, gate, depths = self._observer, self._clock, self._gate, self._depths
        account, now = _FORWARD[part], time.perf_counter_ns

        def begins(module: Any, args: tuple[Any, ...]) -> None:
            if gate.open and not self._compiling() and get_ident() == clock.owner:
                begin = now()
                depths.append(clock.push(RECOMPUTE if observer.backward_depth else account))
                observer.hook_took(now() - begin)

        def ended(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            if depths and gate.open and not self._compiling() and get_ident() == clock.owner:
                begin = now()
                clock.pop_to(depths.pop())
                observer.parts += 1
                self.mark_backward(part, output, args or kwargs.get("hidden_states"))
                observer.hook_took(now() - begin)

        return begins, ended

    # -- functions that are parts -------------------------------------------------------------------------------

    def part(self, part: str, told: Callable[..., None] | None = None) -> Callable[[Any], Any]:
        """Return a decorator that books a function as a part of the forward pass.

        Args:
            part: The part.
            told: Called with the arguments of each call on steps in detail, inside our own cost.
        """
        observer, clock, gate, compiling = self._observer, self._clock, self._gate, self._compiling
        account, now = _FORWARD[part], time.perf_counter_ns

        def decorate(function: Any) -> Any:
            if isinstance(function, BuiltinFunctionType):
                function = named(function, self._torch.compiler)

            @unseen(function)
            def piece(*args: Any, **kwargs: Any) -> Any:
                if not gate.open or compiling() or get_ident() != clock.owner:
                    return function(*args, **kwargs)
                whole = RECOMPUTE if observer.backward_depth else FORWARD
                if not observer.detail and clock.stack[-1] in (whole, BACKWARD):
                    observer.passes += 1
                    return function(*args, **kwargs)
                detail = observer.detail
                depth = clock.push(account if detail and whole == FORWARD else whole)
                try:
                    output = function(*args, **kwargs)
                finally:
                    clock.pop_to(depth)
                if detail:
                    begin = now()
                    if told is not None:
                        told(args, kwargs)
                    self.mark_backward(part, output, args)
                    observer.add_cost(now() - begin)
                return output

            return piece

        return decorate

    def loss(self, function: Any) -> Any:
        """Wrap ``cross_entropy``: a part of the forward pass whose targets are counted."""
        booked = self.part("loss")(function)

        @unseen(function)
        def cross_entropy(*args: Any, **kwargs: Any) -> Any:
            if self._gate.open and not self._compiling() and not self._observer.backward_depth:
                begin = time.perf_counter_ns()
                target = args[1] if len(args) > 1 else kwargs.get("target")
                self._batches.loss(target, kwargs.get("ignore_index", IGNORED))
                self._observer.add_cost(time.perf_counter_ns() - begin)
            return booked(*args, **kwargs)

        return cross_entropy

    # -- backward -----------------------------------------------------------------------------------------------

    def backward(self, function: Any) -> Any:
        """Wrap ``torch.autograd.backward``, where every way of calling backward ends."""
        observer, clock, gate, compiling = self._observer, self._clock, self._gate, self._compiling

        @unseen(function)
        def backward(*args: Any, **kwargs: Any) -> Any:
            if not gate.open or compiling() or (get_ident() != clock.owner and not observer.backward_depth):
                return function(*args, **kwargs)
            depth = clock.push(BACKWARD_OTHER if observer.detail else BACKWARD)
            observer.backward_depth += 1
            if observer.backward_depth == 1:
                observer.count("backwards")
            try:
                return function(*args, **kwargs)
            finally:
                observer.backward_depth -= 1
                clock.pop_to(depth)

        return backward

    def mark_backward(self, part: str, output: Any, inputs: Any) -> None:
        """Let autograd tell when it enters the backward of what returned ``output``, and when it leaves it."""
        try:
            with self._unseen():  # the user's tensors and modes are told of every attribute that is read
                self._mark_backward(part, output, inputs)
        except Exception as error:  # tensors of the user's own kind may lack any operation
            self._observer.note(f"the backward of a part was not marked: {type(error).__name__}")

    def _mark_backward(self, part: str, output: Any, inputs: Any) -> None:
        leaving_to = getattr(self._first(output), "grad_fn", None)
        if leaving_to is None:
            return
        leaving_to.register_prehook(self._enter[part])
        arrived = getattr(self._first(inputs), "grad_fn", None)
        if arrived is not None and arrived is not leaving_to:
            around = _BACKWARD_OF.get(self._clock.stack[-1], BACKWARD_OTHER)
            arrived.register_prehook(self._leaving(_BACKWARD[part], around))

    def _entering(self, account: int) -> Callable[..., None]:
        observer, clock = self._observer, self._clock

        def enter(*_: Any) -> None:
            if observer.backward_depth and clock.stack[-1] in _IS_BACKWARD:
                clock.mark(account)

        return enter

    def _leaving(self, account: int, around: int) -> Callable[..., None]:
        known = self._leave.get((account, around))
        if known is None:
            observer, clock = self._observer, self._clock

            def known(*_: Any) -> None:
                if observer.backward_depth and clock.stack[-1] == account:
                    clock.mark(around)

            self._leave[account, around] = known
        return known

    def _first(self, value: Any) -> Any:
        """Return the first tensor of an output that carries a gradient."""
        if isinstance(value, self._tensor):
            return value
        if isinstance(value, dict):
            value = value.values()
        elif not isinstance(value, (tuple, list)):
            return None
        return next((item for item in value if isinstance(item, self._tensor) and item.requires_grad), None)


def _parts_of(root: Any, name: str) -> Iterator[tuple[Any, str]]:
    """Yield the modules that are parts: those below a root, and the root itself where it has a name."""
    compiled: list[str] = []
    for below, module in root.named_modules():
        if is_compiled(module):
            compiled.append(below)  # hooks inside would make guards fail and everything compile again
        elif not any(not top or below == top or below.startswith(f"{top}.") for top in compiled):
            part = kind_of(below or name, module) if below or name else None
            if part is not None:
                yield module, part


def is_compiled(module: Any) -> bool:
    """Return whether ``torch.compile`` has this module."""
    return type(module).__name__ == "OptimizedModule" or getattr(module, "_compiled_call_impl", None) is not None
