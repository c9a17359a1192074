"""A random sample and the longest rows of a stream, whatever its length, in one pass."""

import heapq
from typing import Any, NamedTuple

SEED = 0
BLOCK = 4096


class Kept(NamedTuple):
    """A row that is kept to be tokenised."""

    key: float
    number: int
    source: int
    chars: int
    row: Any


class Sampler:
    """Keeps ``size`` random rows and, beside them, the ``longest`` rows by characters.

    Every row draws a key from a seeded generator in the order of the stream; the smallest keys among the rows that are
    not the longest are a simple random sample of those rows.
    """

    def __init__(self, size: int, longest: int, seed: int = SEED) -> None:
        import numpy as np

        self._size, self._most = size, longest
        self._random = np.random.default_rng(seed)
        self._keys: list[float] = []
        self._lowest: list[tuple[float, int, Kept]] = []
        self._longest: list[tuple[int, int, Kept]] = []
        self.rows = 0

    def offer(self, source: int, chars: int, row: Any) -> None:  # noqa: ANN401 - whatever will be tokenised
        """Look at the next row."""
        if not self._keys:
            self._keys = self._random.random(BLOCK).tolist()[::-1]
        kept = Kept(self._keys.pop(), self.rows, source, chars, row)
        self.rows += 1
        _keep(self._lowest, (-kept.key, -kept.number, kept), self._size + self._most)
        _keep(self._longest, (chars, -kept.number, kept), self._most)

    def drawn(self) -> tuple[list[Kept], list[Kept]]:
        """Return the random sample of the rows that are not the longest, and the longest, both in stream order."""
        longest = {one.number: one for _, _, one in self._longest}
        rest = sorted(one for _, _, one in self._lowest if one.number not in longest)[: self._size]
        return sorted(rest, key=lambda one: one.number), sorted(longest.values(), key=lambda one: one.number)


def _keep(heap: list[Any], entry: tuple[Any, int, Kept], most: int) -> None:
    if len(heap) < most:
        heapq.heappush(heap, entry)
    elif heap and entry > heap[0]:
        heapq.heapreplace(heap, entry)
