"""Experiments on shapes of the run itself: more rows of fewer tokens, and the same tokens with and without padding."""

from collections.abc import Sequence

from stepprobe.instruments.experiments.bench import Bench, Case
from stepprobe.instruments.experiments.plan import Point
from stepprobe.instruments.experiments.points import Design

ROWS_OF = (1, 2, 4)
"""Numbers of rows, over the fewest, at which the same tokens are measured."""


def fixed_tokens(bench: Bench, design: Design, tokens: int) -> list[Case]:
    """Return three cases of equally many tokens, about as many as the run's largest micro-batch has."""
    (_, _), (short, long) = design
    most = ROWS_OF[-1]
    shortest = short if most * short <= long else max(1, long // most)
    rows = max(1, tokens // (most * shortest))
    return [bench.step("fixed_tokens", rows * times, most * shortest // times) for times in ROWS_OF]


def ragged(batches: Sequence[Sequence[int]]) -> list[int]:
    """Return the real tokens of the rows of the micro-batch whose padding is the median of all that have any."""
    padded = [[one for one in batch if one > 0] for batch in batches]
    wasteful = sorted((batch for batch in padded if batch and min(batch) < max(batch)), key=_waste)
    return wasteful[len(wasteful) // 2] if wasteful else []


def padding(bench: Bench, lengths: Sequence[int]) -> list[Case]:
    """Return the rows of a micro-batch padded to its longest, and as many tokens in as many rows without padding."""
    rows, longest = len(lengths), max(lengths)
    mean = max(1, round(sum(lengths) / rows))
    return [bench.step("padded", rows, longest, lengths), bench.step("unpadded", rows, mean)]


def usual(batches: Sequence[Sequence[int]]) -> Point:
    """Return rows and longest length of the micro-batch whose slots are the median."""
    shapes = sorted(
        ((len(batch), max(batch)) for batch in batches if batch and max(batch) > 0),
        key=lambda shape: shape[0] * shape[1],
    )
    return shapes[len(shapes) // 2]


def _waste(batch: Sequence[int]) -> float:
    return 1 - sum(batch) / (len(batch) * max(batch))
