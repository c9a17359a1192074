"""The loss: what the logits of a batch cost in memory, how many rows to compute at once, how many rows ran out of it.

The unfused bf16 path holds for each logit: the logit itself (2 bytes, kept in the outputs), the log-softmax in fp32
(4, saved), and in the backward pass the gradient of the loss (4) and of the log-softmax (4): 14 bytes at the peak. A
chunked loss makes the gradient in the forward pass, chunk by chunk, and holds those of one chunk alone.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stepprobe.errors import EvidenceError, UsageError

CE = "ce.json"
"""Evidence file: chunk sizes that were really run."""

BYTES_PER_LOGIT = {"bf16": (14.4, 14.0, 14.6), "fp32": (16.4, 16.0, 16.6)}
"""(usual, by the count of buffers, most) of the unfused path, as ``padding --measure-loss`` measures them."""
CHUNK_BYTES = {"bf16": 6.0, "fp32": 4.0}
"""The same of a chunk: fp32 logits, turned into their gradient in place, and in bf16 a copy for the product."""
ITEM = {"bf16": 2, "fp32": 4}
OVERHEAD = 0.05
"""Part of the time that chunking may add."""
ROOFLINE_ROWS = 1024
"""Rows from which a chunk is bound by arithmetic on a card of today: r rows give r FLOP a byte of the bf16 head, cards
need about 300, and the head's gradient doubles it. A prediction, taken only where nothing was measured."""
STEP = 128
_UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


@dataclass(frozen=True)
class Fit:
    """Time of the loss over all rows: ``chunks · fixed + rows · each``."""

    fixed: float
    """Seconds a chunk."""
    each: float
    """Seconds a row."""
    residual: float
    """Largest relative error at the points that were not fitted."""
    checked: int
    """Number of those points."""

    def time(self, rows: int, chunk: int) -> float:
        """Return the seconds that ``rows`` take in chunks."""
        return -(-rows // chunk) * self.fixed + rows * self.each

    @property
    def efficient(self) -> int:
        """Smallest chunk whose fixed cost is within ``OVERHEAD`` of the rest."""
        return max(1, round(self.fixed / (OVERHEAD * self.each)))


def fit(rows: int, points: Sequence[tuple[int, float]]) -> Fit | None:
    """Fit (chunk, seconds) on the smallest and the largest chunk, and check it on those between.

    Returns None where fewer than three chunk sizes were measured: two points always fit.
    """
    ordered = sorted(points)
    if len(ordered) < 3:
        return None
    (small, slow), (large, fast) = ordered[0], ordered[-1]
    chunks = -(-rows // small), -(-rows // large)
    fixed = max(0.0, (slow - fast) / (chunks[0] - chunks[1]))
    each = (fast - chunks[1] * fixed) / rows
    made = Fit(fixed, each, 0.0, len(ordered) - 2)
    residual = max(abs(made.time(rows, chunk) / seconds - 1) for chunk, seconds in ordered[1:-1])
    return Fit(fixed, each, residual, len(ordered) - 2)


@dataclass(frozen=True)
class Choice:
    """How many rows of logits to compute at once."""

    rows: int
    """Rows of logits of the largest batch."""
    plain: float
    """Bytes at the peak of the unfused loss."""
    chunk: int
    """Rows of a chunk; all rows where chunking brings nothing."""
    chunked: float
    """Bytes at the peak with such chunks."""
    reason: str


@dataclass(frozen=True, kw_only=True)
class Head:
    """The last layer, over whose outputs the loss is taken."""

    vocabulary: int
    """Logits a row."""
    hidden: int
    """Size of the hidden state; 0 where it is not known."""
    dtype: str = "bf16"
    """``bf16`` or ``fp32``."""
    trained: bool = True
    """Whether it gets a gradient."""

    def fixed_bytes(self, rows: int) -> float:
        """Return what a chunked loss holds beside its chunk: the gradients of the hidden states and of the head."""
        return float(ITEM[self.dtype] * self.hidden * (rows + (self.vocabulary if self.trained else 0)))


def choose(rows: int, head: Head, made: Fit | None = None, budget: float | None = None) -> Choice:
    """Choose the chunk: as large as the budget allows, no larger than what makes chunking nearly free.

    Args:
        rows: Rows of logits of the largest batch.
        head: The last layer.
        made: A fit of time, where chunks were measured.
        budget: Bytes that the loss may take; None sets no limit.
    """
    plain = rows * head.vocabulary * BYTES_PER_LOGIT[head.dtype][0]
    of_row = head.vocabulary * CHUNK_BYTES[head.dtype]
    efficient = made.efficient if made else ROOFLINE_ROWS
    chunk, reason = -(-efficient // STEP) * STEP, "its fixed cost is 5 % of the time" if made else "roofline"
    fixed = head.fixed_bytes(rows)
    if budget is not None:
        if plain <= budget:
            return Choice(rows, plain, rows, plain, "the unfused loss fits the budget")
        allowed = max(0, int((budget - fixed) / of_row))
        if allowed < chunk:
            chunk, reason = max(1, allowed // STEP * STEP or allowed), "the budget"
    if chunk >= rows:
        return Choice(rows, plain, rows, plain, "the batch has no more rows than a chunk")
    chunked = fixed + chunk * of_row
    if chunked >= plain:
        return Choice(rows, plain, rows, plain, "the gradient of the head is larger than what chunking saves")
    return Choice(rows, plain, chunk, chunked, reason)


@dataclass(frozen=True)
class Allocation:
    """A size in an out-of-memory message."""

    bytes: float
    half_width: float
    """Half of the last digit that was printed, in bytes."""

    def rows(self, vocabulary: int, item: int) -> tuple[float, float, float]:
        """Return (rows, fewest, most) of logits of ``item`` bytes that this size holds."""
        unit = vocabulary * item
        return self.bytes / unit, (self.bytes - self.half_width) / unit, (self.bytes + self.half_width) / unit


def read_oom(message: str) -> Allocation:
    """Return the size that a message says could not be allocated.

    Raises:
        UsageError: The message names no size.
    """
    found = re.search(r"(?:allocate\s+)?(\d+(?:\.(\d+))?)\s*(bytes|[KMGT]?i?B)\b", message)
    if not found:
        raise UsageError(f"{message!r} names no size; paste the line that says “Tried to allocate … GiB”")
    word = found[3]
    unit = 1 if word == "bytes" else _UNITS[word if "i" in word or word == "B" else f"{word[0]}iB"]
    return Allocation(float(found[1]) * unit, 0.5 * 10.0 ** -len(found[2] or "") * unit if unit > 1 else 0.0)


def whole_batches(allocation: Allocation, vocabulary: int, batch_size: int) -> list[tuple[str, int]]:
    """Return (kind, tokens a row) for each kind of buffer whose rows are whole rows of a batch."""
    found = []
    for kind, item in (("fp32 logits", 4), ("16-bit logits", 2)):
        _, fewest, most = allocation.rows(vocabulary, item)
        length = round((fewest + most) / 2 / batch_size)
        if length and fewest <= length * batch_size <= most:
            found.append((kind, length))
    return found


def read_measured(files: Mapping[str, bytes]) -> dict[str, Any] | None:
    """Return what was measured of the loss; None where nothing was.

    Raises:
        EvidenceError: The file is damaged.
    """
    if CE not in files:
        return None
    try:
        held = json.loads(files[CE])
        points = [(int(one["chunk"]), float(one["cpu_s"]), float(one["peak_bytes"])) for one in held["points"]]
        return {**held, "points": points}
    except (ValueError, KeyError, TypeError) as error:
        raise EvidenceError(f"{CE} is damaged ({error}); measure the loss again") from error
