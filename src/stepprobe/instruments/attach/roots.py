"""Find the module that a training step calls, without a global hook.

The root owns the parameters that the optimizer got. Often several modules own all of them (a wrapper and what it
wraps, with LoRA even the list of layers), and not all of them are ever called: so each gets one hook, and the first
to be called is the root.
"""

import weakref
from threading import get_ident
from types import ModuleType
from typing import Any

from stepprobe.instruments.attach import tensors
from stepprobe.instruments.attach.callers import unseen
from stepprobe.instruments.attach.modules import ModuleHooks, is_compiled
from stepprobe.instruments.attach.observer import Observer, nothing
from stepprobe.instruments.attach.pieces import Pieces


class RootFinder:
    """Watches whose parameters are asked for, and who owns those that an optimizer gets."""

    def __init__(self, observer: Observer, hooks: ModuleHooks, pieces: Pieces, torch: ModuleType) -> None:
        self._observer = observer
        self._hooks = hooks
        self._torch = torch
        self._asked: dict[int, weakref.ref[Any]] = {}
        self._named_parameters = torch.nn.Module.named_parameters
        self._pieces = pieces
        self._candidates: list[weakref.ref[Any]] = []
        self._outermost: list[weakref.ref[Any]] = []
        self._classes: set[type] = set()
        self._compiled_functions = False
        self._compiled: set[int] = set()

    def watch(self) -> None:
        """Put the two places in place."""
        torch, patches = self._torch, self._observer.patches
        patches.replace(torch.nn.Module, "named_parameters", self._remembering)
        patches.replace(torch.optim.Optimizer, "__init__", self._finding)
        patches.replace(torch, "compile", self._noticing)
        self._observer.optimizer_stepped = self._look_below

    def _remembering(self, named_parameters: Any) -> Any:
        @unseen(named_parameters)
        def remembering(module: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._torch.compiler.is_compiling():
                self._asked[id(module)] = weakref.ref(module)
            return named_parameters(module, *args, **kwargs)

        return remembering

    def _finding(self, init: Any) -> Any:
        @unseen(init)
        def finding(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            init(optimizer, *args, **kwargs)
            try:
                self._arm(optimizer)
            except Exception as error:  # whatever a user's module does when asked for its children
                self._observer.note(f"the root module was not found: {type(error).__name__}")

        return finding

    def _noticing(self, compile_: Any) -> Any:
        @unseen(compile_)
        def noticing(model: Any = None, *args: Any, **kwargs: Any) -> Any:
            if isinstance(model, self._torch.nn.Module):
                self._compiled.add(id(model))
            elif model is not None:
                self._compiled_functions = True
            if "compiled" not in self._observer.facts:
                self._observer.facts["compiled"] = True
                self._keep_apart()
            return compile_(model, *args, **kwargs)

        return noticing

    def _keep_apart(self) -> None:
        """Let nothing be compiled of what our hooks call."""
        try:
            self._hooks.keep_apart()
            self._meet = self._torch.compiler.disable(self._meet)  # type: ignore[method-assign]
        except Exception as error:  # no compiler can be had here; what that means for the script, PyTorch tells
            self._observer.note(f"the hooks of the root may be compiled: {type(error).__name__}")

    def _arm(self, optimizer: Any) -> None:
        observer = self._observer
        observer.optimizers += 1
        if observer.optimizers == 1:
            observer.tell("optimizer")
        observer.facts["optimizer"] = type(optimizer).__name__
        for option in ("foreach", "fused"):
            if optimizer.defaults.get(option) is not None:
                observer.facts[f"optimizer_{option}"] = bool(optimizer.defaults[option])
        wanted = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        owners = self._owners(wanted)
        best = max((count for count, _ in owners), default=0)
        candidates = [module for count, module in owners if count == best]
        compiled = [module for module in candidates if is_compiled(module)]
        self._candidates += map(weakref.ref, candidates)
        if candidates and not any(map(self._is_known, candidates)):
            self._look_again()
        self._await_first_call(compiled or candidates)

    def _is_known(self, module: Any) -> bool:
        """Return whether a module is a root, or its parts were looked for already."""
        return self._hooks.is_root(module) or any(reference() is module for reference in self._outermost)

    def _look_again(self) -> None:
        """An optimizer came for another model than those before: it may be called part by part, too."""
        self._pieces.stop()
        self._hooks.trained = False
        self._observer.optimizer_stepped = self._look_below

    def _owners(self, wanted: set[int]) -> list[tuple[int, Any]]:
        """Return (how many of the wanted parameters it owns, module) for all that were asked and what is below."""
        owners: dict[int, tuple[int, Any]] = {}
        pending = [module for reference in self._asked.values() if (module := reference()) is not None]
        while pending:
            module = pending.pop()
            if id(module) in owners:
                continue
            count = len({id(parameter) for _, parameter in self._named_parameters(module)} & wanted)
            if count:
                owners[id(module)] = (count, module)
                if not is_compiled(module):
                    pending.extend(module.children())
        return list(owners.values())

    def _await_first_call(self, modules: list[Any]) -> None:
        handles: list[Any] = []

        def first(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if self._torch.compiler.is_compiling() or self._observer.forward_depth:
                return
            self._meet(handles, module, args, kwargs)

        for module in modules:
            handles.append(module.register_forward_pre_hook(first, prepend=True, with_kwargs=True))

    def _meet(self, handles: list[Any], module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        for handle in handles:
            handle.remove()
        under_way = not self._hooks.is_root(module)  # else its own hook, which comes behind this one, sees the call
        self._adopt(module)
        if under_way:
            self._hooks.root_begins(module, args, kwargs)

    def _look_below(self) -> None:
        """An optimizer step has ended: where no root was called up to now, find what is called in its place."""
        over = True
        try:
            over = self._hooks.trained or self._found_below()
        except Exception as error:  # whatever a user's module does when asked for its children
            self._observer.note(f"what is called below the root was not found: {type(error).__name__}")
        if over:
            self._pieces.stop()
            self._candidates.clear()
            self._observer.optimizer_stepped = nothing

    def _found_below(self) -> bool:
        """Listen in the first step, adopt in a later one; return whether there is nothing left to look for."""
        pieces = self._pieces
        if not pieces.listens:
            candidates = [module for reference in self._candidates if (module := reference()) is not None]
            if self._compiled_functions or any(is_compiled(one) or id(one) in self._compiled for one in candidates):
                return True  # called in a compiled region, in which a new hook would make guards fail
            inner = {id(below) for module in candidates for below in module.modules() if below is not module}
            outermost = [module for module in candidates if id(module) not in inner]
            self._outermost = [weakref.ref(module) for module in outermost]
            pieces.listen(outermost)
            self._set_aside(pieces.listens)
            return not pieces.listens
        if not pieces.adopt():
            return False
        self._set_aside(True)
        for module in [module for reference in self._outermost if (module := reference()) is not None]:
            self._describe(module)
            self._watch_mode(type(module))
        return True

    def _set_aside(self, apart: bool) -> None:
        """The step under way lacks the counts of its batch."""
        if apart and self._observer.running and not self._observer.aside:
            self._observer.aside = "parts"

    def _adopt(self, root: Any) -> None:
        self._describe(root)
        for tell in self._observer.on.root:
            tell(root)
        self._hooks.adopt(root)
        self._watch_mode(type(root))

    def _describe(self, root: Any) -> None:
        parameters = [parameter for _, parameter in self._named_parameters(root)]
        self._observer.facts.update(
            model=type(root).__name__,
            parameters=sum(parameter.numel() for parameter in parameters),
            trainable_parameters=sum(parameter.numel() for parameter in parameters if parameter.requires_grad),
            device=parameters[0].device.type if parameters else "cpu",
        )
        if self._compiled_functions:
            self._observer.note("torch.compile was used on a function: no hooks inside the modules")
        if self._observer.facts["device"] == "cpu":
            tensors.forget_device(self._observer, self._torch)

    def _watch_mode(self, kind: type) -> None:
        """Notice train() and eval() of the root; on its class, so that its thousands of children stay untouched."""
        if kind in self._classes or kind is self._torch.nn.Module:
            return
        self._classes.add(kind)
        self._observer.patches.replace(kind, "train", self._switching, inherited=True)

    def _switching(self, train: Any) -> Any:
        observer = self._observer
        clock, gate = observer.clock, observer.gate

        @unseen(train)
        def switching(module: Any, *args: Any, **kwargs: Any) -> Any:
            mode = args[0] if args else kwargs.get("mode", True)
            if mode is False:
                observer.evaluation_began()
            elif mode is True:  # else it is a method of the user's own that shares the name
                observer.training_resumed()
            if mode is not True or not gate.open or get_ident() != clock.owner:
                return train(module, *args, **kwargs)
            observer.count("train_walks")
            depth = clock.push(observer.forward_part)
            begin = clock.wall_at
            try:
                return train(module, *args, **kwargs)
            finally:
                clock.pop_to(depth)
                observer.count("train_walk_ns", clock.wall_at - begin)

        return switching
