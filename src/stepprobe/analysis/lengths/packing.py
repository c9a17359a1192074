"""Packing: best-fit-decreasing on the histogram of lengths, with lower bounds on what any packing can reach.

Best-fit-decreasing takes the rows in falling length and puts each into the bin with the smallest room that still holds
it. Rows of one length behave alike, and so do bins of one room: the smallest room that holds a length also takes the
next row of that length until less than the length is left. So whole groups of bins move at once, and the cost depends
on the number of distinct (length, room) pairs, never on the number of rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_SHIFT = 9
_MASK = (1 << _SHIFT) - 1


@dataclass(frozen=True)
class Packing:
    """A packing of a histogram: how many bins, and the moves from which every row's bin can be told."""

    cap: int
    bins: int
    moves: "NDArray[np.int64]"
    """Columns length, first bin, number of bins, rows a bin; rows are numbered in falling length."""


class _Rooms:
    """The rooms that are not empty, as bits in two levels, so that the smallest one that fits is found at once."""

    def __init__(self, cap: int) -> None:
        self.words = [0] * ((cap >> _SHIFT) + 1)
        self.top = 0

    def smallest(self, length: int) -> int:
        """Return the smallest room of at least ``length``, or 0."""
        place = length >> _SHIFT
        word = self.words[place] >> (length & _MASK)
        if word:
            return length + (word & -word).bit_length() - 1
        above = self.top >> (place + 1)
        if not above:
            return 0
        place += (above & -above).bit_length()
        word = self.words[place]
        return (place << _SHIFT) + (word & -word).bit_length() - 1

    def add(self, room: int) -> None:
        self.words[room >> _SHIFT] |= 1 << (room & _MASK)
        self.top |= 1 << (room >> _SHIFT)

    def remove(self, room: int) -> None:
        place = room >> _SHIFT
        self.words[place] ^= 1 << (room & _MASK)
        if not self.words[place]:
            self.top ^= 1 << place


def best_fit_decreasing(lengths: Sequence[int], rows: Sequence[int], cap: int) -> Packing:
    """Pack ``rows[i]`` rows of ``lengths[i]`` tokens (rising, 1 .. cap) into bins of ``cap``.

    Raises:
        ValueError: A length is not in 1 .. cap.
    """
    import numpy as np

    if len(lengths) and not 0 < min(lengths) <= max(lengths) <= cap:
        raise ValueError(f"lengths must lie in 1 .. {cap}; truncate or drop the others first")
    rooms, groups, bins = _Rooms(cap), dict[int, list[tuple[int, int]]](), 0
    moves: list[tuple[int, int, int, int]] = []
    for length, left in zip(reversed(lengths), reversed(rows), strict=True):
        while left:
            room = rooms.smallest(length)
            if room:
                group = groups[room]
                first, count = group.pop()
                if not group:
                    rooms.remove(room)
            else:
                room, first, count = cap, bins, left
            each = room // length
            taken = min(count, left // each)
            if not taken:  # fewer rows than one bin takes
                taken, each = 1, left
            if room == cap and first == bins:
                bins += taken
            elif taken < count:
                _put(rooms, groups, room, (first + taken, count - taken))
            left -= taken * each
            moves.append((length, first, taken, each))
            if rest := room - each * length:
                _put(rooms, groups, rest, (first, taken))
    return Packing(cap, bins, np.array(moves, np.int64).reshape(-1, 4))


def _put(rooms: _Rooms, groups: dict[int, list[tuple[int, int]]], room: int, bins: tuple[int, int]) -> None:
    group = groups.get(room)
    if group:
        group.append(bins)
    else:
        groups[room] = [bins]
        rooms.add(room)


def assign(packing: Packing, lengths: "NDArray[np.integer]") -> "NDArray[np.int32]":
    """Return the bin of every row, in the order of ``lengths``: the same lengths whose histogram was packed."""
    import numpy as np

    first, taken, each = packing.moves[:, 1], packing.moves[:, 2], packing.moves[:, 3]
    begins = np.cumsum(taken) - taken
    filled = np.repeat((first - begins).astype(np.int32), taken)
    filled += np.arange(len(filled), dtype=np.int32)
    bins = np.empty(len(lengths), np.int32)
    bins[_falling(lengths, packing.cap)] = np.repeat(filled, np.repeat(each, taken))
    return bins


def _falling(lengths: "NDArray[np.integer]", cap: int) -> "NDArray[np.intp]":
    """Return the order of falling length; 16-bit keys are sorted by radix, in linear time."""
    import numpy as np

    keys = cap - lengths
    order = np.argsort((keys & 0xFFFF).astype(np.uint16), kind="stable")
    for shift in range(16, cap.bit_length(), 16):
        order = order[np.argsort(((keys >> shift) & 0xFFFF).astype(np.uint16)[order], kind="stable")]
    return order


def lower_bounds(lengths: "NDArray[np.int64]", rows: "NDArray[np.int64]", cap: int) -> tuple[int, int]:
    """Return two numbers of bins that no packing can go below: by tokens, and by rows that exclude each other.

    The second (Martello and Toth's L2) holds for each threshold a <= cap/2: rows above cap − a stand alone, rows above
    cap/2 stand in different bins, and what those leave free must hold the rows from a to cap/2.
    """
    import numpy as np

    tokens = np.concatenate((np.cumsum((lengths * rows)[::-1])[::-1], [0]))
    count = np.concatenate((np.cumsum(rows[::-1])[::-1], [0]))
    by_tokens = -(-int(tokens[0]) // cap)
    half = np.searchsorted(lengths, cap // 2 + 1)
    thresholds = np.unique(np.concatenate(([0], lengths[:half], cap - lengths[half:], [cap // 2])))
    alone = np.searchsorted(lengths, cap - thresholds + 1)
    small = np.searchsorted(lengths, thresholds)
    large = count[half] - count[alone]
    free = large * cap - (tokens[half] - tokens[alone])
    more = np.maximum(0, -(-(tokens[small] - tokens[half] - free) // cap))
    return by_tokens, max(by_tokens, int((count[alone] + large + more).max()))


def next_fit(lengths: Sequence[int], cap: int) -> int:
    """Return the bins when rows come in order and a new bin is opened as soon as one does not fit."""
    bins, room = 0, 0
    for length in lengths:
        if length > room:
            bins, room = bins + 1, cap
        room -= length
    return bins
