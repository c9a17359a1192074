"""Numbers inside sentences: a true minus sign, and no sign before a zero."""

import math


def signed(value: float, spec: str) -> str:
    """Return a change with its sign, ``+3.2`` or ``−3.2``; a change that is shown as zero has none.

    Args:
        value: The change.
        spec: How to write it, without a sign, for example ``".3g"`` or ``".1%"``.
    """
    written = format(abs(value), spec)
    if not any(digit in written for digit in "123456789"):
        return written
    return ("−" if value < 0 else "+") + written


def counted(count: int, noun: str) -> str:
    """Return ``1 layer`` or ``3 layers``."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def size(count: float) -> str:
    """Return bytes in the largest binary unit of which there is at least one, up to GiB: ``7.4 GiB``, ``5.2 MiB``."""
    power = min(3, max(0, int(count).bit_length() - 1) // 10)
    return f"{count / 1024**power:,.{1 if power else 0}f} {('B', 'KiB', 'MiB', 'GiB')[power]}"


def ends(low: float | None, high: float | None) -> str:
    """Return ``−3.1 to −2.4`` with digits that tell the ends apart; empty where there is no interval."""
    if low is None or high is None:
        return ""
    width = high - low
    places = min(6, max(0, 1 - math.floor(math.log10(width)))) if width > 0 else 3
    return f"{signed(low, f',.{places}f')} to {signed(high, f',.{places}f')}"
