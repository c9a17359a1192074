"""A prediction beside what came of it, and whether it held."""

from typing import Literal

from stepprobe.model.estimate import Estimate

Judgement = Literal["held", "missed (gained more)", "missed (gained less)", "undecided"]

HELD: Judgement = "held"
MORE: Judgement = "missed (gained more)"
LESS: Judgement = "missed (gained less)"
UNDECIDED: Judgement = "undecided"


def judge(predicted: Estimate | None, measured: Estimate | None) -> Judgement:
    """Say whether the interval that was predicted held.

    ``held``: the whole measured interval lies inside. ``missed``: all of it lies outside, above (the change gained
    more) or below. ``undecided``: it reaches over an end of the prediction, or one of the two has no interval.
    """
    if predicted is None or measured is None:
        return UNDECIDED
    if predicted.low is None or predicted.high is None or measured.low is None or measured.high is None:
        return UNDECIDED
    if measured.low > predicted.high:
        return MORE
    if measured.high < predicted.low:
        return LESS
    return HELD if predicted.low <= measured.low and measured.high <= predicted.high else UNDECIDED


def inside(predicted: Estimate | None, measured: Estimate | None) -> bool | None:
    """Return whether the measured value lies in the predicted interval; None where there is none."""
    if predicted is None or measured is None or predicted.low is None or predicted.high is None:
        return None
    return predicted.low <= measured.value <= predicted.high
