"""What is copied, saved or compiled of the user's modules goes without our hooks.

Hooks lie in a module's own state: a checkpoint of the whole module, a deep copy or a script made of it would hold
them, and could be read only where stepprobe is.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from stepprobe.instruments.attach.callers import unseen
from stepprobe.instruments.attach.patches import Patches

HOOKS = ("_forward_pre_hooks", "_forward_hooks")
OPTIONS = ("_forward_pre_hooks_with_kwargs", "_forward_hooks_with_kwargs", "_forward_hooks_always_called")
_OURS = __name__.partition(".")[0] + "."


def watch(patches: Patches, torch: ModuleType) -> None:
    """Leave our hooks out of pickles and copies of modules, and out of what TorchScript compiles."""
    patches.replace(torch.nn.Module, "__reduce_ex__", _leaving_out, inherited=True)
    recursive = getattr(torch.jit, "_recursive", None)
    if recursive is not None:
        patches.replace(recursive, "create_script_module", _lifting)


def scriptable(torch: ModuleType, wrap: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a decorator like ``wrap`` behind whose result TorchScript sees the function that was there before."""

    def decorate(function: Any) -> Any:
        new = wrap(function)
        new.__prepare_scriptable__ = lambda: function
        builtins = getattr(torch.jit, "_builtins", None)
        if builtins is not None and (operator := builtins._find_builtin(function)):
            builtins._register_builtin(new, operator)
        return new

    return decorate


def _leaving_out(reduce: Any) -> Any:
    @unseen(reduce)
    def leaving_out(module: Any, protocol: Any) -> Any:
        reduced = reduce(module, protocol)
        if not isinstance(reduced, tuple):
            return reduced
        function, arguments, *rest = reduced
        return (function, tuple(map(_without_ours, arguments)), *map(_without_ours, rest))

    return leaving_out


def _without_ours(state: Any) -> Any:
    if not isinstance(state, dict):
        return state
    ours = {key for name in HOOKS for key, hook in state.get(name, {}).items() if _is_ours(hook)}
    if not ours:
        return state
    kept = {
        name: type(state[name])((key, value) for key, value in state[name].items() if key not in ours)
        for name in HOOKS + OPTIONS
        if name in state
    }
    return {**state, **kept}


def _lifting(create: Any) -> Any:
    @unseen(create)
    def lifting(module: Any, *args: Any, **kwargs: Any) -> Any:
        with _lifted(module):
            return create(module, *args, **kwargs)

    return lifting


@contextmanager
def _lifted(root: Any) -> Iterator[None]:
    """Take our hooks off a module and all below it for a while."""
    before = []
    for module in root.modules():
        own = module.__dict__
        kept = _without_ours(own)
        if kept is not own:
            before.append((own, {name: own[name] for name in HOOKS + OPTIONS if name in own}))
            own.update({name: kept[name] for name in HOOKS + OPTIONS if name in own})
    try:
        yield
    finally:
        for own, hooks in before:
            own.update(hooks)


def _is_ours(hook: Any) -> bool:
    return str(getattr(hook, "__module__", "")).startswith(_OURS)
