"""Act the moment a module has been imported, so that a later ``from x import f`` already gets what we replaced."""

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType


class AfterImport(importlib.abc.MetaPathFinder):
    """A finder that finds nothing itself: it lets the others find, and calls an action after the module has run."""

    def __init__(self, actions: dict[str, Callable[[ModuleType], None]]) -> None:
        self._actions = actions
        self._finding: set[str] = set()

    def install(self) -> None:
        """Begin to watch; act at once for modules that are there already."""
        sys.meta_path.insert(0, self)
        self.catch_up()

    def catch_up(self) -> None:
        """Act for watched modules that were imported where we could not see it."""
        for name in [name for name in self._actions if name in sys.modules]:
            self._act(sys.modules[name])

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return the spec that the other finders give, with our action behind its ``exec_module``."""
        if fullname not in self._actions or fullname in self._finding:
            return None
        self._finding.add(fullname)
        try:
            spec = self._ask_the_others(fullname, path, target)
        finally:
            self._finding.discard(fullname)
        if spec is not None and hasattr(spec.loader, "exec_module"):
            self._follow(spec)
        return spec

    def _ask_the_others(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None
    ) -> importlib.machinery.ModuleSpec | None:
        for finder in sys.meta_path:
            if finder is not self and hasattr(finder, "find_spec"):
                spec = finder.find_spec(fullname, path, target)
                if spec is not None:
                    return spec
        return None

    def _follow(self, spec: importlib.machinery.ModuleSpec) -> None:
        loader = spec.loader
        assert loader is not None
        run = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            run(module)
            self._act(module)

        loader.exec_module = exec_module  # type: ignore[method-assign]

    def _act(self, module: ModuleType) -> None:
        action = self._actions.pop(module.__name__, None)
        if action is not None:
            action(module)
