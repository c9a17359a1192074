"""Which keys each query should see, from the batch and the config alone: O(length), and independent of all mask code.

The keys that a query should see are those of one interval that are no padding. Where it begins and ends follows from
the document that the query is in, the window or chunk of its layer, and the image that it is part of.
"""

from typing import TYPE_CHECKING

import msgspec

from stepprobe.model.attention import Batch, Layer, Mask, Rows

if TYPE_CHECKING:
    import numpy as np

IMAGE_BLOCKS = ("gemma3", "gemma3n", "gemma4", "paligemma", "t5gemma2")
"""Model types (or their beginning) whose image tokens see each other both ways."""


class Expected(msgspec.Struct, frozen=True, kw_only=True):
    """Keys that each query of one row of the batch should see."""

    first: "np.ndarray"
    """First key of each query."""
    end: "np.ndarray"
    """Key after the last one of each query."""
    document: "np.ndarray"
    """First token of the document that each query is in."""
    real: "np.ndarray"
    """Whether each token is no padding."""


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """Keys that each query sees: one line of ``first`` and ``end`` for each run."""

    first: "np.ndarray"
    end: "np.ndarray"


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """Pairs of query and key in which a mask departs from the reference, over queries that are no padding."""

    future: int = 0
    """Seen although the key comes after the query."""
    document: int = 0
    """Seen although the key is in another document."""
    padding: int = 0
    """Seen although the key is padding."""
    reach: int = 0
    """Seen although the key lies before the window or chunk."""
    missing: int = 0
    """Not seen although it should be."""
    blind: int = 0
    """Queries that do not see their own token."""
    empty: int = 0
    """Queries that see nothing."""

    def __add__(self, other: "Difference") -> "Difference":
        return Difference(**{name: getattr(self, name) + getattr(other, name) for name in self.__struct_fields__})

    @property
    def leaked(self) -> int:
        """Pairs that are seen and should not be."""
        return self.future + self.document + self.padding + self.reach

    @property
    def clean(self) -> bool:
        """Whether the mask is the reference."""
        return not (self.leaked or self.missing or self.blind or self.empty)


def expected(batch: Batch, layer: Layer, row: int, model_type: str) -> Expected:
    """Return what one layer should see in one row of a batch."""
    import numpy as np

    length = batch.length
    index = np.arange(length)
    real = real_tokens(batch, row)
    starts, ends = document_bounds(batch, row, length)
    first, end = starts.copy(), index + 1
    if layer.kind == "sliding" and layer.size:
        first = np.maximum(first, index - layer.size + 1)
    elif layer.kind == "chunked" and layer.size:
        origin = np.maximum(starts, int(np.argmax(real)) if real.any() else 0)
        first = np.where(index >= origin, index - (index - origin) % layer.size, index)
    elif layer.kind == "bidirectional":
        end = ends
    for block_first, block_end, _ in _blocks(batch, row, model_type):
        first[block_first:block_end] = np.minimum(first[block_first:block_end], block_first)
        end[block_first:block_end] = np.maximum(end[block_first:block_end], block_end)
    return Expected(first=first, end=end, document=starts, real=real)


def real_tokens(batch: Batch, row: int) -> "np.ndarray":
    """Return which tokens of a row are no padding."""
    import numpy as np

    if not batch.valid:
        return np.ones(batch.length, dtype=bool)
    real = np.zeros(batch.length, dtype=bool)
    for first, end in batch.valid[row]:
        real[first:end] = True
    return real


def document_bounds(batch: Batch, row: int, length: int) -> tuple["np.ndarray", "np.ndarray"]:
    """Return for each token where its document begins and ends."""
    import numpy as np

    begins = {0} | {place for place, _ in (batch.positions[row] if batch.positions else ())}
    offset = row * length
    begins |= {place - offset for place in batch.boundaries if offset <= place < offset + length}
    places = np.array(sorted(begins))
    owner = np.searchsorted(places, np.arange(length), side="right") - 1
    return places[owner], np.append(places[1:], length)[owner]


def packed(batch: Batch) -> bool:
    """Tell whether rows hold more than one document."""
    return any(len(row) > 1 for row in batch.positions) or len(batch.boundaries) > batch.size + 1


def _blocks(batch: Batch, row: int, model_type: str) -> tuple[tuple[int, int, int], ...]:
    return batch.blocks[row] if batch.blocks and model_type.startswith(IMAGE_BLOCKS) else ()


def seen_by_rows(rows: tuple[Rows, ...], queries: int) -> Seen:
    """Return the keys that a pattern lets each query see."""
    import numpy as np

    count = max((len(stretch.runs) for stretch in rows), default=0)
    first = np.zeros((max(count, 1), queries), dtype=np.int64)
    end = np.zeros_like(first)
    for stretch in rows:
        moved = np.arange(stretch.end - stretch.first)
        for place, (run_first, run_end, by, by_end) in enumerate(stretch.runs):
            first[place, stretch.first : stretch.end] = run_first + moved * by
            end[place, stretch.first : stretch.end] = run_end + moved * by_end
    return Seen(first=first, end=end)


def seen_without_mask(queries: int, keys: int, causal: bool, window: int | None = None) -> Seen:
    """Return the keys that each query sees when the kernel is given no mask."""
    import numpy as np

    index = np.arange(queries)
    first = np.maximum(0, index - window + 1) if window else np.zeros(queries, dtype=np.int64)
    return Seen(first=first[None], end=(index + 1 if causal else np.full(queries, keys))[None])


def seen_in_batch(mask: Mask, row: int) -> Seen:
    """Return the keys that each query of one row of the batch sees under a mask."""
    place = mask.batch[row] if row < len(mask.batch) else mask.batch[0]
    return seen_by_rows(mask.patterns[place], mask.queries)


def difference(seen: Seen, wanted: Expected) -> Difference:
    """Count the pairs in which what is seen departs from what should be."""
    import numpy as np

    keys = np.concatenate([[0], np.cumsum(wanted.real)])
    index = np.arange(len(wanted.first))
    real = wanted.real
    low, high = np.maximum(seen.first, wanted.first), np.minimum(seen.end, wanted.end)
    inside = high > low
    overlap = np.where(inside, keys[np.maximum(high, low)] - keys[low], 0)
    padding = np.where(inside, high - low, 0) - overlap
    future = np.maximum(0, seen.end - np.maximum(seen.first, wanted.end))
    early = np.maximum(0, np.minimum(seen.end, wanted.first) - seen.first)
    foreign = np.maximum(0, np.minimum(seen.end, wanted.document) - seen.first)
    needed = keys[wanted.end] - keys[wanted.first]
    self_seen = ((seen.first <= index) & (index < seen.end)).any(0)
    sums = {
        "future": future.sum(0),
        "document": foreign.sum(0),
        "padding": padding.sum(0),
        "reach": (early - foreign).sum(0),
        "missing": needed - overlap.sum(0),
        "blind": ~self_seen,
        "empty": (seen.end <= seen.first).all(0),
    }
    return Difference(**{name: int(np.sum(values[real])) for name, values in sums.items()})


def needed_pairs(wanted: Expected) -> int:
    """Return how many pairs of query and key the reference asks for."""
    import numpy as np

    keys = np.concatenate([[0], np.cumsum(wanted.real)])
    return int((keys[wanted.end] - keys[wanted.first])[wanted.real].sum())
