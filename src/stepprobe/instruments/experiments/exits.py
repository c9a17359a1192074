"""Whether a step that ends the script means it, or only will not take a shape that it never saw."""

import signal
import traceback
from collections.abc import Iterator
from typing import Any


def refuses(error: BaseException) -> bool:
    """Return whether what a step raised is about its batch: every exception, and ``sys.exit`` in the step itself.

    An interrupt is not, nor is an exit out of a handler of a signal, and where a handler's frames could not be told
    no exit is taken for the step's.
    """
    if not isinstance(error, SystemExit):
        return isinstance(error, Exception)
    handlers = list(_handlers())
    codes = {getattr(getattr(one, "__func__", one), "__code__", None) for one in handlers}
    if None in codes:
        return False
    return not any(frame.f_code in codes for frame, _ in traceback.walk_tb(error.__traceback__))


def _handlers() -> Iterator[Any]:
    """Yield what the script lets Python call at a signal."""
    for number in signal.valid_signals():
        handler = signal.getsignal(number)
        if callable(handler) and handler is not signal.default_int_handler:
            yield handler
