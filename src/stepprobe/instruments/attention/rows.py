"""A mask as runs of keys for each query row, exact, from as few evaluated rows as its structure allows.

Between two change points the runs of keys either stand still or move by one key a row. So two rows that agree with
that, and two more between them, settle all rows of a stretch; where they do not agree it is halved. Where change
points can lie is told by the tensors that the mask is made from. Afterwards rows drawn at random must look as they
were deduced; if one does not, every row is read.
"""

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from stepprobe.model.attention import Rows, Run

if TYPE_CHECKING:
    import numpy as np

CHECKED = 64
"""Rows that are drawn at random to test the deduction."""
MOST_RUNS = 16
"""Runs of keys in a row beyond which a mask counts as unreadable."""
MOST_PAIRS = 1 << 32
"""Pairs of query and key that may be evaluated for one mask."""

Plain = tuple[tuple[int, int], ...]
"""Runs of keys of one row, without movement."""


class TooIrregularError(Exception):
    """The mask has no structure that could be told in runs; the text says what stood in the way."""


class RowReader:
    """Evaluates rows of a mask and keeps them as runs.

    Args:
        read: Returns rows ``first`` to ``end`` as booleans (batch, rows, keys).
        queries: Number of query rows.
        keys: Number of keys.
        batch: Rows of the batch.
    """

    def __init__(self, read: Callable[[int, int], "np.ndarray"], queries: int, keys: int, batch: int) -> None:
        self._read = read
        self._known: dict[int, tuple[Plain, ...]] = {}
        self.queries, self.keys, self.batch = queries, keys, batch
        self.read_rows = 0

    def row(self, index: int) -> tuple[Plain, ...]:
        """Return the runs of one query row for each row of the batch."""
        if index not in self._known:
            self._take(index, index + 1)
        return self._known[index]

    def all_rows(self) -> None:
        """Read every row, in stretches that stay small."""
        stretch = max(1, (1 << 24) // max(1, self.keys * self.batch))
        for first in range(0, self.queries, stretch):
            self._take(first, min(self.queries, first + stretch))

    def _take(self, first: int, end: int) -> None:
        self.read_rows += end - first
        if self.read_rows * self.keys * self.batch > MOST_PAIRS:
            raise TooIrregularError(f"more than {MOST_PAIRS:,} pairs would have to be read")
        values = self._read(first, end)
        for offset in range(end - first):
            self._known[first + offset] = tuple(_runs(values[place, offset]) for place in range(self.batch))


def patterns(reader: RowReader, hints: Iterable[int], seed: int = 0) -> tuple[list[tuple[Rows, ...]], int]:
    """Return the rows of each batch row's mask, and how many random rows were found as deduced.

    Raises:
        TooIrregularError: A row has too many runs, or too much would have to be read.
    """
    from random import Random

    drawn = Random(seed)
    tested = [drawn.randrange(reader.queries) for _ in range(min(CHECKED, reader.queries))]
    points = sorted({0, reader.queries} | {point for point in hints if 0 < point < reader.queries})
    found = [_deduce(reader, place, points, drawn) for place in range(reader.batch)]
    for place, rows in enumerate(found):
        if any(_at(rows, index) != reader.row(index)[place] for index in tested):
            reader.all_rows()
            return [_every_row(reader, batch_row) for batch_row in range(reader.batch)], len(tested)
    return found, len(tested)


def _deduce(reader: RowReader, place: int, points: Sequence[int], drawn: object) -> tuple[Rows, ...]:
    stack = [(first, end) for first, end in itertools.pairwise(points)][::-1]
    rows: list[Rows] = []
    while stack:
        first, end = stack.pop()
        told = _stretch(reader, place, first, end, drawn)
        if told is None:
            middle = (first + end) // 2
            stack += [(middle, end), (first, middle)]
        else:
            _append(rows, told)
    return tuple(rows)


def _stretch(reader: RowReader, place: int, first: int, end: int, drawn: object) -> Rows | None:
    """Return the rows of a stretch when its ends and two rows between them move together; else None."""
    last = end - 1
    runs = _moving(reader.row(first)[place], reader.row(last)[place], last - first)
    if runs is None:
        return None
    told = Rows(first=first, end=end, runs=runs)
    between = {first + 1, (first + last) // 2, drawn.randrange(first, end)} if last - first > 1 else set()  # type: ignore[attr-defined]
    return told if all(at(told, index) == reader.row(index)[place] for index in between) else None


def _moving(start: Plain, stop: Plain, distance: int) -> tuple[Run, ...] | None:
    if len(start) != len(stop):
        return None
    runs = []
    for (first, end), (last_first, last_end) in zip(start, stop, strict=True):
        moves = (last_first - first, last_end - end)
        if any(move not in (0, distance) for move in moves):
            return None
        runs.append((first, end, int(moves[0] > 0), int(moves[1] > 0)))
    return tuple(runs)


def at(rows: Rows, index: int) -> Plain:
    """Return the runs of keys that row ``index`` of a stretch sees."""
    moved = index - rows.first
    return tuple((first + moved * by, end + moved * by_end) for first, end, by, by_end in rows.runs)


def _at(found: Sequence[Rows], index: int) -> Plain:
    return next((at(rows, index) for rows in found if rows.first <= index < rows.end), ())


def _every_row(reader: RowReader, place: int) -> tuple[Rows, ...]:
    rows: list[Rows] = []
    for index in range(reader.queries):
        still = tuple((first, end, 0, 0) for first, end in reader.row(index)[place])
        _append(rows, Rows(first=index, end=index + 1, runs=still))
    return tuple(rows)


def _append(rows: list[Rows], told: Rows) -> None:
    """Add a stretch, joined to the one before it when it only carries that one on."""
    if rows:
        before = rows[-1]
        size = before.end - before.first
        if size == 1:
            plain = at(told, told.first)
            joined = _moving(at(before, before.first), plain, 1)
            fits = joined is not None and (told.end - told.first == 1 or joined == _still(told.runs, joined))
            if joined is not None and fits:
                rows[-1] = Rows(first=before.first, end=told.end, runs=joined)
                return
        elif at(before, told.first) == at(told, told.first):
            single = told.end - told.first == 1
            if single or tuple(run[2:] for run in before.runs) == tuple(run[2:] for run in told.runs):
                rows[-1] = Rows(first=before.first, end=told.end, runs=before.runs)
                return
    rows.append(told)


def _still(runs: tuple[Run, ...], joined: tuple[Run, ...]) -> tuple[Run, ...] | None:
    """Return ``joined`` when it moves as ``runs`` do."""
    return joined if tuple(run[2:] for run in runs) == tuple(run[2:] for run in joined) else None


def _runs(row: "np.ndarray") -> Plain:
    import numpy as np

    edges = np.flatnonzero(np.diff(row.astype(np.int8), prepend=0, append=0))
    if len(edges) > 2 * MOST_RUNS:
        raise TooIrregularError(f"a row has {len(edges) // 2} separate runs of keys")
    return tuple((int(first), int(end)) for first, end in edges.reshape(-1, 2))
