"""A number that says how sure it is. No bare float reaches a person."""

from typing import Literal

import msgspec

Unit = Literal[
    "ms",
    "s",
    "ns",
    "1",
    "tokens",
    "tokens/s",
    "tokens/step",
    "steps",
    "count",
    "count/step",
    "bytes",
    "MB/s",
    "layers",
    "pairs",
    "FLOP",
    "FLOP/s",
    "bytes/s",
    "µs/token",
    "ns/token/slot",
    "h",
]
"""Units of estimates. ``"1"`` is a share (0..1) or a ratio; ``ms`` is per optimizer step unless the name says else."""


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """A value with its interval and where it comes from."""

    value: float
    """Point estimate, in ``unit``."""
    unit: Unit
    """Unit of ``value``, ``low`` and ``high``."""
    low: float | None = None
    """Lower end of the 95 % interval; None where no interval can be given."""
    high: float | None = None
    """Upper end of the 95 % interval; None where no interval can be given."""
    n: int
    """Number of observations (usually steps) behind it."""
    method: str
    """How it was derived, for example ``"mean of steps, block interval"`` or ``"exact"``."""
    bound: bool = False
    """True: only ``low`` and ``high`` are known, and ``value`` stands somewhere between them without being a guess."""


def exact(value: float, unit: Unit, n: int, method: str = "exact") -> Estimate:
    """Return an estimate that was counted, not sampled: its interval is the value itself."""
    return Estimate(value=value, unit=unit, low=value, high=value, n=n, method=method)
