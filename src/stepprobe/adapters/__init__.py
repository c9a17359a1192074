"""Whose step: one file a framework, independent of each other.

Each file has ``ON_IMPORT``: module name -> function(observer, module), called when the user's script has imported that
module. What they replace books its time and calls through; nothing is ever imported for the user.
"""

import importlib
import pkgutil
from collections.abc import Callable
from types import ModuleType

from stepprobe.instruments.attach.observer import Observer

Action = Callable[[Observer, ModuleType], None]


def actions() -> dict[str, Action]:
    """Return what to do after the import of which module, over all adapters."""
    found: dict[str, Action] = {}
    for file in pkgutil.iter_modules(__path__):
        found.update(importlib.import_module(f"stepprobe.adapters.{file.name}").ON_IMPORT)
    return found
