"""A name for what a mask looks like, from its rows alone: ``causal+window(1024)``, ``causal+blocks(3)``."""

from typing import TYPE_CHECKING

from stepprobe.analysis.attention.reference import Seen, seen_in_batch
from stepprobe.model.attention import Mask

if TYPE_CHECKING:
    import numpy as np

OPAQUE = "opaque"


def structure(mask: Mask) -> str:
    """Return the structure of a mask; of its different rows of the batch, each once."""
    if mask.opaque:
        return OPAQUE
    rows = [mask.batch.index(place) for place in range(len(mask.patterns))]
    return " | ".join(dict.fromkeys(name_of(seen_in_batch(mask, row), mask.keys) for row in rows))


def name_of(seen: Seen, keys: int) -> str:
    """Return the structure of the keys that queries see."""
    import numpy as np

    lines = seen.end > seen.first
    filled = lines.any(0)
    if not filled.any():
        return "nothing visible"
    holes = bool((lines.sum(0) > 1).any())
    index = np.flatnonzero(filled)
    first = np.where(lines, seen.first, keys).min(0)[filled]
    end = np.where(lines, seen.end, 0).max(0)[filled]
    left, right = int(index[0]), keys - int(end.max())
    future = end > index + 1
    if bool((first == first[0]).all() and (end == end[0]).all()) and len(index) > 1 and future.any():
        name = (
            "bidirectional"
            if (first[0], end[0]) == (0, keys)
            else f"bidirectional+padding({keys - int(end[0] - first[0])})"
        )
        return name + ("+holes" if holes else "")
    name = "image blocks" if future.any() else "causal"
    if future.any():
        name += f"({_count(future)})"
    if window := _window(first, index):
        name += f"+window({window})"
    name += _blocks(first, index, left)
    name += f"+left_pad({left})" if left else ""
    name += f"+right_pad({right})" if right else ""
    return name + ("+holes" if holes else "")


def _window(first: "np.ndarray", index: "np.ndarray") -> int:
    """Return the window, 0 where there is none: it shows in first keys that move with the query."""
    import numpy as np

    moving = (np.diff(first) == 1) & (np.diff(index) == 1) & (first[1:] != index[1:])
    if moving.any():
        return int((index[1:] - first[1:] + 1)[moving].max())
    return 1 if len(index) > 2 and bool((first == index).all()) else 0


def _blocks(first: "np.ndarray", index: "np.ndarray", left: int) -> str:
    """Return the documents or chunks: queries that begin with themselves."""
    starts = index[(first == index) & (index > left)]
    if not len(starts) or len(starts) == len(index) - 1:
        return ""
    ends = [*starts.tolist(), int(index[-1]) + 1]
    sizes = [end - begin for begin, end in zip([left, *starts.tolist()], ends, strict=True)]
    if (len(sizes) > 2 and len(set(sizes[:-1])) == 1 and sizes[-1] <= sizes[0]) or sizes == [sizes[0]] * 2:
        return f"+blocks({len(sizes)} x {sizes[0]})"
    return f"+blocks({len(sizes)})"


def _count(future: "np.ndarray") -> int:
    """Return how many stretches of queries see the future."""
    import numpy as np

    return int((np.diff(future.astype(int), prepend=0) == 1).sum())


def describe_expected(kind: str, size: int | None, length: int, documents: bool, padded: bool) -> str:
    """Return in the same words what a layer should see."""
    name = "bidirectional" if kind == "bidirectional" else "causal"
    if kind == "sliding" and size and size < length:
        name += f"+window({size})"
    if kind == "chunked" and size and size < length:
        name += f"+chunks({size})"
    return name + ("+blocks" if documents else "") + ("+padding" if padded else "")
