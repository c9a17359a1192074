"""Transformers' choice of an attention function, intercepted: for every model, in every version since 4.53."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

Stand = Callable[[str, Callable[..., Any]], Callable[..., Any]]
"""Takes the name of an attention implementation and its function, returns the function to use instead."""


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
    try:
        yield
    finally:
        if own:
            setattr(AttentionInterface, name, original)
        else:
            delattr(AttentionInterface, name)
