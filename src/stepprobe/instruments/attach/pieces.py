"""What a training calls where it never calls its root: a method of the model's own calls its parts one by one.

``LightningModule.training_step`` does, and ``model.loss(batch)`` in many a loop. So when the first optimizer step has
ended without a call of the root, each module below it gets a hook until the next has ended. The outermost modules that
were called are the forward pass, and the one that was given the batch counts it: the most ids, of those that lie as the
activations do, since a table of relative positions may be larger. Each of several models has one of its own.
"""

import weakref
from collections.abc import Iterable, Iterator
from math import prod
from types import ModuleType
from typing import Any

from stepprobe.instruments.attach.batches import Batches
from stepprobe.instruments.attach.modules import ModuleHooks, is_compiled
from stepprobe.instruments.attach.observer import Observer

Shape = tuple[int, ...]


class Pieces:
    """Listens, for one step, which modules below the root are called."""

    def __init__(self, observer: Observer, hooks: ModuleHooks, batches: Batches, torch: ModuleType) -> None:
        self._observer, self._hooks, self._batches, self._torch = observer, hooks, batches, torch
        self._handles: list[Any] = []
        self._forget()

    def _forget(self) -> None:
        self._names: dict[int, tuple[int, str]] = {}
        """Number of the root and name below it, by the module's id."""
        self._called: dict[int, tuple[weakref.ref[Any], Shape]] = {}
        self._inside: set[int] = set()
        self._leading: set[Shape] = set()
        """What the shapes of floats that a part was given begin with: rows and slots among it."""

    @property
    def listens(self) -> bool:
        """Whether the hooks are in place."""
        return bool(self._handles)

    def listen(self, roots: Iterable[Any]) -> None:
        """Put a hook on each module with parameters below these."""
        compiling = self._torch.compiler.is_compiling
        named_parameters = self._torch.nn.Module.named_parameters  # a class of the user's own may have another

        def called(*call: Any) -> None:  # no method: a copy of a hook must not be a copy of all that is behind it
            if not compiling():
                self._batches.quietly(self._note, *call)

        for number, root in enumerate(roots):
            for name, module in self._below(root, ""):
                if id(module) not in self._names and next(named_parameters(module), None) is not None:
                    self._names[id(module)] = number, name
                    self._handles.append(module.register_forward_pre_hook(called, prepend=True, with_kwargs=True))

    def stop(self) -> None:
        """Take the hooks away."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._forget()

    def adopt(self) -> bool:
        """Hook for good what was called; return whether anything was."""
        called = [(module, ids) for reference, ids in self._called.values() if (module := reference()) is not None]
        if not called:
            return False
        best: dict[int, tuple[bool, int, Any]] = {}
        for module, ids in called:
            number, _ = self._names[id(module)]
            found = ids in self._leading, prod(ids) if ids else 0, module
            best[number] = max(best.get(number, found), found, key=lambda one: one[:2])
        counting = [module for _, ids, module in best.values() if ids] or [called[0][0]]
        for tell in self._observer.on.counting:
            tell(counting[0])
        for module, _ in called:
            counts = any(module is one for one in counting)
            self._hooks.adopt(module, name=self._names[id(module)][1], counts=counts)
        return True

    def _below(self, module: Any, prefix: str) -> Iterator[tuple[str, Any]]:
        for name, child in module.named_children():
            if getattr(child, "_compiled_call_impl", None) is not None or isinstance(
                child, self._torch.jit.ScriptModule
            ):
                continue  # its hooks would be compiled with it
            yield f"{prefix}{name}", child
            if not is_compiled(child):
                yield from self._below(child, f"{prefix}{name}.")

    def _note(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        observer, torch = self._observer, self._torch
        if observer.forward_depth or observer.backward_depth:
            return
        if id(module) in self._inside or not torch.is_grad_enabled():
            return
        ids = self._batches.ids(args, kwargs)
        _, most = self._called.get(id(module), (None, ()))
        shape = tuple(ids.shape) if ids is not None else ()
        self._called[id(module)] = weakref.ref(module), max(most, shape, key=prod) if most and shape else most or shape
        self._inside.update(id(inner) for inner in module.modules() if inner is not module)
        for value in (*args, *kwargs.values()):
            if isinstance(value, torch.Tensor) and value.is_floating_point():
                self._leading.update(tuple(value.shape[:end]) for end in range(1, value.dim()))
