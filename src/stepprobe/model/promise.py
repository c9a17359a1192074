"""A prediction beside what came of it, and whether it held."""

from typing import Literal

from stepprobe.model.estimate import Estimate

Judgement = Literal["held", "missed (gained more)", "missed (gained less)", "undecided"]

HELD: Judgement = "held"
MORE: Judgement = "missed (gained more)"
LESS: Judgement = "missed (gained less)"
UNDECIDED: Judgement = "undecided"

ROUNDING = 1e-9


def judge(predicted: Estimate | None, measured: Estimate | None) -> Judgement:
    """Say whether the interval that was predicted held.

    ``held``: the whole measured interval lies inside. ``missed``: all of it lies outside, above (the change gained
    more) or below. ``undecided``: it reaches over an end of the prediction, or one of the two has no interval.

    Of a ceiling only the measured value must lie below its upper end, which is what the run before held, as a mean: a
    gain of all of that is as unsure as that mean, so its interval reaches over the end by necessity.
    """
    if predicted is None or measured is None:
        return UNDECIDED
    if predicted.low is None or predicted.high is None or measured.low is None or measured.high is None:
        return UNDECIDED
    if measured.low > predicted.high:
        return MORE
    if measured.high < predicted.low:
        return LESS
    upper = measured.value if predicted.bound else measured.high
    return HELD if predicted.low <= measured.low and upper <= _end(predicted, predicted.high) else UNDECIDED


def inside(predicted: Estimate | None, measured: Estimate | None) -> bool | None:
    """Return whether the measured value lies in the predicted interval; None where there is none."""
    if predicted is None or measured is None or predicted.low is None or predicted.high is None:
        return None
    return predicted.low <= measured.value <= _end(predicted, predicted.high)


def _end(predicted: Estimate, high: float) -> float:
    """Return the upper end, of a ceiling without the rounding that a sum in another order leaves."""
    return high * (1 + ROUNDING) if predicted.bound else high
