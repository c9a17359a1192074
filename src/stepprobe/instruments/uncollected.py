"""Put the garbage collector aside while much is made that nothing throws away."""

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Let no collection run while the context lasts.

    For code that makes objects by the million, or imports packages that do: each collection looks through all of them
    and finds nothing.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()
