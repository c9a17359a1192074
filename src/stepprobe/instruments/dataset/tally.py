"""Counting: histograms of lengths that do not grow with the rows, and that merge by adding."""

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

_DENSE = 1 << 17
"""Lengths below are counted in arrays, longer ones (few) in a dictionary, so that one huge row costs no memory."""


class Tally:
    """Rows by source and length."""

    def __init__(self) -> None:
        import numpy as np

        self._numbers: dict[str, int] = {}
        self._dense = np.zeros((1, 1024), np.int64)
        self._sparse: Counter[tuple[int, int]] = Counter()

    @property
    def rows(self) -> int:
        """Rows counted so far."""
        return int(self._dense.sum()) + self._sparse.total()

    def number(self, source: str) -> int:
        """Return the number of a source, given in the order of first sight."""
        return self._numbers.setdefault(source, len(self._numbers))

    def add(self, sources: "Ints", lengths: "Ints") -> None:
        """Count rows."""
        import numpy as np

        if not len(lengths):
            return
        longest = int(lengths.max())
        if longest >= _DENSE:
            long = lengths >= _DENSE
            self._sparse.update(zip(sources[long].tolist(), lengths[long].tolist(), strict=True))
            self.add(sources[~long], lengths[~long])
            return
        width = 1 << max(10, longest.bit_length())
        self._grow(len(self._numbers), width)
        if len(self._numbers) < 2:
            counted = np.bincount(lengths)
            self._dense[0, : len(counted)] += counted
        elif len(self._numbers) * width <= max(1 << 22, 4 * len(lengths)):
            counted = np.bincount(sources * width + lengths, minlength=len(self._numbers) * width)
            self._dense[: len(self._numbers), :width] += counted.reshape(-1, width)
        else:
            np.add.at(self._dense, (sources, lengths), 1)

    def remove(self, source: int, length: int) -> None:
        """Take one row out again."""
        if length < _DENSE:
            self._dense[source, length] -= 1
        else:
            self._sparse[source, length] -= 1

    def merge(self, other: "Tally") -> None:
        """Add what another tally has counted."""
        import numpy as np

        for name, theirs in other._numbers.items():
            ours = self.number(name)
            self._grow(len(self._numbers), other._dense.shape[1])
            row = other._dense[theirs] if theirs < len(other._dense) else np.zeros(0, np.int64)
            self._dense[ours, : len(row)] += row
            self._sparse.update(
                {(ours, length): rows for (source, length), rows in other._sparse.items() if source == theirs}
            )

    def names(self) -> tuple[str, ...]:
        """Return the sources in alphabetical order: the order of their numbers in ``cells``."""
        return tuple(sorted(self._numbers))

    def order(self) -> "Ints":
        """Return, for each source as it was numbered here, its number in alphabetical order."""
        import numpy as np

        place = {name: number for number, name in enumerate(self.names())}
        return np.array([place[name] for name in self._numbers], np.int64)

    def cells(self) -> "Ints":
        """Return records of source (in alphabetical order), length, rows: sorted, none empty."""
        import numpy as np

        sources, lengths = np.nonzero(self._dense)
        found = np.column_stack((sources, lengths, self._dense[sources, lengths])).astype(np.int64)
        rest = [(source, length, rows) for (source, length), rows in self._sparse.items() if rows]
        if rest:
            found = np.concatenate((found, np.array(rest, np.int64)))
        if len(found):
            found[:, 0] = self.order()[found[:, 0]]
        return found[np.lexsort((found[:, 1], found[:, 0]))]

    def _grow(self, sources: int, width: int) -> None:
        import numpy as np

        rows, columns = self._dense.shape
        if sources > rows or width > columns:
            grown = np.zeros((max(rows, 2 * sources if sources > rows else rows), max(columns, width)), np.int64)
            grown[:rows, :columns] = self._dense
            self._dense = grown


class PairTally:
    """Rows by (length, labelled tokens)."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[int, int]] = Counter()

    def add(self, lengths: "Ints", labelled: "Ints") -> None:
        """Count rows."""
        import numpy as np

        pairs, rows = np.unique(np.column_stack((lengths, labelled)), axis=0, return_counts=True)
        self._counts.update(
            {(length, tokens): count for (length, tokens), count in zip(pairs.tolist(), rows.tolist(), strict=True)}
        )

    def merge(self, other: "PairTally") -> None:
        """Add what another tally has counted."""
        self._counts.update(other._counts)

    def cells(self) -> "Ints":
        """Return records of length, labelled, rows: sorted."""
        import numpy as np

        found = [(*pair, rows) for pair, rows in sorted(self._counts.items())]
        return np.array(found, np.int64).reshape(-1, 3)


def codes_of(tally: Tally, sources: Sequence[str]) -> "Ints":
    """Return the numbers of sources, one for each row."""
    import numpy as np

    return np.array([tally.number(source) for source in sources], np.int64)
