"""Six changes to a tiny training, their sizes drawn by chance, so that no rule can have been fitted to them.

    python bench/forecast_cases.py 7      # the cases of draw 7, as words of forecast_job.py

A draw is a number; from it follow all seeds, lengths and sizes. Whoever changes a rule of the forecasts after having
seen how the cases of a draw came out takes another draw for the table.
"""

import random
import sys
from collections.abc import Callable
from typing import NamedTuple

Words = tuple[str, ...]


class Case(NamedTuple):
    """A change: the words of both trainings, and the forecast that speaks of it."""

    name: str
    forecast: str
    """Remedy of ``forecast.<remedy>``."""
    both: Words
    before: Words
    after: Words
    says: str = ""
    """What the forecast's action must say, where the change has a size of its own."""
    steps: int = 50
    """Steps that the profile observes."""
    steps_after: int = 50
    """Of the run after; it ends before the experiments of the profile begin, or their clock would move."""


def cases(draw: int) -> list[Case]:
    """Return six cases, their sizes drawn in this order."""
    dice = random.Random(draw)
    return [make(dice) for make in MAKERS]


def _words(dice: random.Random, **sizes: object) -> Words:
    sizes = {"seed": dice.randrange(10**6), **sizes}
    return tuple(word for name, value in sizes.items() for word in (f"--{name.replace('_', '-')}", str(value)))


def _ragged(dice: random.Random, longest: int = 512) -> Words:
    return _words(
        dice,
        longest=longest,
        rows=dice.choice((4, 6, 8)),
        median=dice.randrange(50, 110),
        spread=round(dice.uniform(0.5, 0.8), 2),
        width=dice.choice((48, 64, 96)),
    )


def bucketing(dice: random.Random) -> Case:
    """Rows of about one length in each batch."""
    sides = ("--order", "random"), ("--order", "grouped")
    return Case("bucketing", "bucketing", _ragged(dice), *sides, steps=80, steps_after=100)


def packing(dice: random.Random) -> Case:
    """Rows cut to a length that a few of a hundred reach, and packed into rows of that length."""
    longest = dice.choice((160, 192, 224))
    sides = ("--order", "random"), ("--order", "packed")
    says = f"into rows of {longest} slots"
    return Case("packing", "packing", _ragged(dice, longest), *sides, says=says, steps=80, steps_after=45)


def labelled_rows(dice: random.Random) -> Case:
    """A prompt without labels in each row."""
    both = _words(
        dice,
        spread=0,
        median=dice.randrange(64, 160),
        rows=dice.choice((4, 6, 8)),
        prompt=round(dice.uniform(0.5, 0.9), 2),
        vocabulary=dice.choice((4096, 6144, 8192)),
    )
    return Case("head and loss on labelled rows only", "labelled_rows", both, (), ("--labelled-rows",))


def checkpointing_off(dice: random.Random) -> Case:
    """Activations kept."""
    both = _words(
        dice, spread=0, median=dice.randrange(64, 192), rows=dice.choice((4, 6, 8)), width=dice.choice((64, 96, 128))
    )
    return Case("gradient checkpointing off", "checkpointing_off", both, ("--checkpointing",), ())


def workers(dice: random.Random) -> Case:
    """Rows that take a while to read."""
    rows = dice.choice((4, 6, 8))
    both = _words(dice, spread=0, median=dice.randrange(96, 160), rows=rows, slow_ms=round(dice.uniform(2, 5), 1))
    return Case("workers for a slow dataset", "workers", both, (), ("--workers", "2"), says="num_workers=2")


def window(dice: random.Random) -> Case:
    """All layers with a sliding window, which rows reach or do not."""
    size = dice.choice((384, 448, 512, 576))
    both = _words(dice, spread=0, rows=dice.choice((1, 2, 3)), vocabulary=512, width=dice.choice((32, 48)), window=size)
    sides = ("--median", str(size), "--longest", "1024"), ("--median", str(size - 1), "--longest", "1024")
    return Case("T = window − 1", "fast_path", both, *sides, says=f"max_length={size - 1}")


MAKERS: tuple[Callable[[random.Random], Case], ...] = (
    bucketing,
    packing,
    labelled_rows,
    checkpointing_off,
    workers,
    window,
)


if __name__ == "__main__":
    for case in cases(int(sys.argv[1])):
        print(f"{case.name}: {' '.join(case.both)} | {' '.join(case.before)} | {' '.join(case.after)}")
