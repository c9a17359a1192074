"""What an allocation that failed was going to hold: rows of logits, and how many times the batch that was set."""

from collections.abc import Iterator
from dataclasses import dataclass

from stepprobe.analysis.lengths.chunks import Allocation, read_oom
from stepprobe.errors import UsageError

KINDS = ((4, "fp32"), (2, "16-bit"), (8, "64-bit"))
"""Bytes of an element, the usual one of a spike first."""
PADDED_TO = (64, 128)
"""What frameworks pad a vocabulary to a multiple of."""
COPIES_MOST = 4
"""Copies of the logits that one allocation is believed to hold; more are another length, not more copies."""


@dataclass(frozen=True)
class Reading:
    """One way to read an allocation."""

    kind: str
    vocabulary: int
    rows: float
    half: float
    """Half of the rows that the last printed digit stands for."""
    of: int
    """Rows of logits that the settings say: rows × slots, or one slot less each, after the shift."""

    @property
    def ratio(self) -> float:
        """Rows in the allocation over those that the settings say."""
        return self.rows / self.of

    @property
    def copies(self) -> int:
        """Whole copies of the batch's logits, where the rounding allows it; else 0."""
        nearest = round(self.ratio)
        fits = 1 <= nearest <= COPIES_MOST and abs(self.rows - nearest * self.of) <= max(self.half, 0.5)
        return nearest if fits else 0


def readings(found: Allocation, vocabulary: int, rows: int, length: int) -> Iterator[Reading]:
    """Yield every way to read an allocation as logits of a batch."""
    padded = (-(-vocabulary // multiple) * multiple for multiple in PADDED_TO)
    for item, kind in KINDS:
        for entries in dict.fromkeys((vocabulary, *padded)):
            for slots in dict.fromkeys((length, max(1, length - 1))):
                value, low, high = found.rows(entries, item)
                yield Reading(kind, entries, value, (high - low) / 2, rows * slots)


def best(found: Allocation, vocabulary: int, rows: int, length: int) -> Reading:
    """Return the first reading that gives whole copies, the usual kinds first; else fp32 logits as they are set."""
    every = list(readings(found, vocabulary, rows, length))
    return next((one for one in every if one.copies), every[0])


def told(message: str, vocabulary: int, rows: int, length: int) -> str:
    """Say what the allocation in a message holds, beside the batch of that shape; empty where it names no size."""
    try:
        found = read_oom(message)
    except UsageError:
        return ""
    read = best(found, vocabulary, rows, length)
    size = f"{found.bytes / 2**30:,.2f} GiB are {read.rows:,.0f} (±{read.half:,.0f}) rows of {read.kind} logits"
    said = f"{size} over {read.vocabulary:,} entries"
    if read.copies:
        return f"{said}: {read.copies} × the {read.of:,} rows of {rows}×{length:,}"
    return (
        f"{said}: {read.ratio:.2f} × the {read.of:,} rows of {rows}×{length:,}; if it is logits, the longest batch is "
        f"{read.ratio:.2f} × that long, and truncation or packing is not what it seems"
    )
