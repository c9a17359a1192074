"""What a training calls where it never calls its root: a method of the model's own calls its parts one by one.

``LightningModule.training_step`` does, and ``model.loss(batch)`` in many a loop. So when the first optimizer step has
ended without a call of the root, each module below it gets a hook until the next has ended. The outermost modules that
were called are the forward pass, and the one that was given the most ids counts the batch.
"""

import weakref
from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import Any

from stepprobe.instruments.attach.batches import Batches
from stepprobe.instruments.attach.modules import ModuleHooks, is_compiled
from stepprobe.instruments.attach.observer import Observer


class Pieces:
    """Listens, for one step, which modules below the root are called."""

    def __init__(self, observer: Observer, hooks: ModuleHooks, batches: Batches, torch: ModuleType) -> None:
        self._observer, self._hooks, self._batches, self._torch = observer, hooks, batches, torch
        self._handles: list[Any] = []
        self._names: dict[int, str] = {}
        self._called: dict[int, tuple[weakref.ref[Any], int]] = {}
        self._inside: set[int] = set()

    @property
    def listens(self) -> bool:
        """Whether the hooks are in place."""
        return bool(self._handles)

    def listen(self, roots: Iterable[Any]) -> None:
        """Put a hook on each module with parameters below these."""

        def called(*call: Any) -> None:  # no method: a copy of a hook must not be a copy of all that is behind it
            self._batches.quietly(self._note, *call)

        for root in roots:
            for name, module in self._below(root, ""):
                if id(module) not in self._names and next(module.parameters(), None) is not None:
                    self._names[id(module)] = name
                    self._handles.append(module.register_forward_pre_hook(called, prepend=True, with_kwargs=True))

    def stop(self) -> None:
        """Take the hooks away."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def adopt(self) -> bool:
        """Hook for good what was called; return whether anything was."""
        called = [(module, ids) for reference, ids in self._called.values() if (module := reference()) is not None]
        if not called:
            return False
        counting = max(called, key=lambda one: one[1])[0]
        for tell in self._observer.on.counting:
            tell(counting)
        for module, _ in called:
            self._hooks.adopt(module, name=self._names[id(module)], counts=module is counting)
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
        if torch.compiler.is_compiling() or observer.forward_depth or observer.backward_depth:
            return
        if id(module) in self._inside or not torch.is_grad_enabled():
            return
        ids = self._batches.ids(args, kwargs)
        _, most = self._called.get(id(module), (None, 0))
        self._called[id(module)] = weakref.ref(module), max(most, ids.numel() if ids is not None else 0)
        self._inside.update(id(inner) for inner in module.modules() if inner is not module)
