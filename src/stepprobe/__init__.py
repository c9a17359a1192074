"""Where a training step's time went, what to change, and what it will gain.

This module stays empty of imports: it is also loaded inside the user's training process, whose Python may have
none of our dependencies.
"""

__version__ = "0.1.0"

__all__ = ["__version__", "assert_masks"]


def __getattr__(name: str) -> object:
    """Load what is public when it is first asked for."""
    if name == "assert_masks":
        from importlib import import_module

        return import_module("stepprobe.probes.mask").assert_masks
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
