"""The harness that the user names: ``--harness module:factory``."""

import importlib
from typing import Any

from stepprobe.instruments.experiments.exits import refuses

MEMBERS = ("batch", "step", "root", "trainable_modules")


class NotAHarness(Exception):
    """What the user named cannot be driven; the message says why, and the next step."""


def named_harness(name: str) -> Any:
    """Import a module of the script's own path, call the factory in it and return what it gives.

    Raises:
        NotAHarness: There is no such module or factory, it raises, or what it returns lacks a member.
    """
    module_name, _, factory_name = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except BaseException as error:
        if not refuses(error):
            raise
        raise NotAHarness(
            f"--harness {name}: {module_name} cannot be imported where the script runs "
            f"({type(error).__name__}: {error}); put the file beside the script, or its folder on PYTHONPATH"
        ) from error
    factory = getattr(module, factory_name, None)
    if not callable(factory):
        raise NotAHarness(f"--harness {name}: {module_name} has no function {factory_name}")
    try:
        harness = factory()
    except BaseException as error:
        if not refuses(error):
            raise
        raise NotAHarness(f"--harness {name}: {factory_name}() raised {type(error).__name__}: {error}") from error
    lacking = [member for member in MEMBERS if not callable(getattr(harness, member, None))]
    if lacking:
        raise NotAHarness(
            f"--harness {name}: what {factory_name}() returned ({type(harness).__name__}) has no method "
            f"{', '.join(lacking)}; a harness has {', '.join(MEMBERS)}"
        )
    return harness
