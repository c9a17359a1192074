"""How the lengths of rows lie in the micro-batches.

What padding to the longest row leaves, and whether rows of a batch are more alike than chance makes them.
"""

import math
from collections.abc import Mapping

import msgspec

from stepprobe.analysis.ledger.process import Process

NEEDED = ("rows", "slots", "real", "longest_slots", "row_squares", "mixed_squares", "forwards")
"""Counters that are summed."""


class Rows(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of the steady steps; lengths are real tokens."""

    rows: int
    batches: int
    """Micro-batches."""
    slots: int
    real: int
    longest: int
    """Slots if each micro-batch were padded to its longest row."""
    squares: int
    """Sum of the squares of the lengths."""
    mixed: int
    """Sum of the squares of their distances from the mean of their micro-batch."""

    @property
    def beyond(self) -> float:
        """Share of the slots that lie beyond the longest row of their micro-batch."""
        return max(0.0, 1 - self.longest / self.slots)

    @property
    def uneven(self) -> float:
        """Share of the slots that padding to the longest row leaves without a token."""
        return max(0.0, (self.longest - self.real) / self.slots)

    @property
    def mixing(self) -> float | None:
        """Spread of the lengths within micro-batches over what it would be in an order of chance.

        1 there, 0 where all rows of a batch are alike; None where all lengths are equal, or micro-batches hold one row.
        """
        spread = self.squares - self.real**2 / self.rows
        by_chance = spread * (self.rows - self.batches) / max(1, self.rows - 1)
        return self.mixed / by_chance if by_chance > 0 else None

    @property
    def mixing_error(self) -> float:
        """Standard error of ``mixing`` in an order of chance, for so many batches of so many rows."""
        size = self.rows / self.batches
        return math.sqrt(2 / self.batches) / max(size - 1, 1e-9)

    @property
    def variation(self) -> float:
        """Coefficient of variation of the lengths."""
        mean = self.real / self.rows
        return math.sqrt(max(0.0, self.squares / self.rows - mean**2)) / mean


def rows_of(process: Process) -> Rows | None:
    """Return the rows of a process; None where their lengths were not counted."""
    total = _summed(process)
    if not all(total[name] for name in ("rows", "slots", "real", "longest_slots", "row_squares", "forwards")):
        return None
    return Rows(
        rows=total["rows"],
        batches=min(total["forwards"], total["rows"]),
        slots=total["slots"],
        real=total["real"],
        longest=total["longest_slots"],
        squares=total["row_squares"],
        mixed=total["mixed_squares"],
    )


def _summed(process: Process) -> Mapping[str, int]:
    return {name: sum(entry.counters.get(name, 0) for entry in process.entries) for name in NEEDED}
