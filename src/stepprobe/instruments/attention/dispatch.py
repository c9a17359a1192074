"""Transformers' choice of an attention function, intercepted: for every model, in every version since 4.53."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

Stand = Callable[[str, Callable[..., Any]], Callable[..., Any]]
"""Takes the name of an attention implementation and its function, returns the function to use instead."""

_EAGER = "eager_attention_forward"


@contextlib.contextmanager
def interfaces(stand: Stand) -> Iterator[None]:
    """Let ``stand`` replace each attention function that a model looks up, while the context lasts."""
    from transformers.modeling_utils import AttentionInterface

    own = "get_interface" in vars(AttentionInterface)  # before transformers 5 models use it as a mapping
    name = "get_interface" if own else "__getitem__"
    original: Any = getattr(AttentionInterface, name)

    def get(self: Any, implementation: str, *default: Any) -> Any:
        return stand(implementation or "eager", original(self, implementation, *default))

    setattr(AttentionInterface, name, get)
    eager = {} if own else _eager_functions()
    for module, function in eager.items():
        vars(module)[_EAGER] = stand("eager", function)
    try:
        yield
    finally:
        for module, function in eager.items():
            vars(module)[_EAGER] = function
        if own:
            setattr(AttentionInterface, name, original)
        else:
            delattr(AttentionInterface, name)


def _eager_functions() -> dict[ModuleType, Callable[..., Any]]:
    """Return eager attention of each modelling file, which models before transformers 5 do not look up."""
    loaded = [module for name, module in sys.modules.items() if name.startswith("transformers.models.")]
    return {module: vars(module)[_EAGER] for module in loaded if module is not None and _EAGER in vars(module)}
