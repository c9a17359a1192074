"""Known answers beside what was derived: the one comparison that every probe makes before it is believed."""

import math
from collections.abc import Mapping

from stepprobe.model.estimate import Estimate
from stepprobe.model.finding import Control

EXACT = 1e-9
"""Error that floating point may add to a known answer: relative, and absolute where the answer is zero."""
_NONE: Mapping[str, float] = {}


def recover(
    figures: Mapping[str, Estimate],
    expected: Mapping[str, float],
    *,
    usual: float = EXACT,
    tolerances: Mapping[str, float] = _NONE,
) -> tuple[Control, ...]:
    """Compare derived figures with their known values.

    Args:
        figures: What was derived; a figure that is absent is not recovered.
        expected: The known values by figure name.
        usual: Relative error up to which a value counts as recovered.
        tolerances: The same for figures that have one of their own.
    """
    return tuple(
        _control(name, value, figures.get(name), tolerances.get(name, usual)) for name, value in expected.items()
    )


def _control(name: str, expected: float, found: Estimate | None, tolerance: float) -> Control:
    recovered = found.value if found else math.nan
    ok = math.isclose(recovered, expected, rel_tol=tolerance, abs_tol=EXACT)
    return Control(name=name, expected=expected, recovered=recovered, ok=ok, tolerance=tolerance)
