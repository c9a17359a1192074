"""Packages that some commands need and an installation may lack."""

from importlib.util import find_spec

from stepprobe.errors import UsageError


def need_numpy(what: str) -> None:
    """Stop where numpy is missing.

    Args:
        what: What needs it, for a person.

    Raises:
        UsageError: It is missing.
    """
    if find_spec("numpy") is None:
        raise UsageError(f"{what} needs numpy; pip install numpy")
