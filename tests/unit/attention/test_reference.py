"""The reference, the counts of what departs from it, the names of structures, and the small pictures."""

import numpy as np
import pytest

from stepprobe.analysis.attention.pictures import coverage, shaded
from stepprobe.analysis.attention.reference import (
    Seen,
    difference,
    expected,
    needed_pairs,
    seen_by_rows,
    seen_without_mask,
)
from stepprobe.analysis.attention.structure import name_of
from stepprobe.analysis.attention.views import _NUMBER
from stepprobe.model.attention import Batch, Layer, Rows

LENGTH = 12


def batch(**changes):
    return Batch(kind="made", size=1, length=LENGTH, names=("input_ids",), **changes)


def layer(kind="full", size=None):
    return Layer(index=0, kind=kind, size=size)


def matrix(wanted):
    """The reference as a matrix."""
    index = np.arange(LENGTH)
    seen = (index[None] >= wanted.first[:, None]) & (index[None] < wanted.end[:, None])
    return seen & wanted.real[None]


def brute(query, key, kind, size, start, real, document):
    """What one query should see, said in the plainest words."""
    if not real[key] or document[query] != document[key]:
        return False
    if kind == "bidirectional":
        return True
    if key > query:
        return False
    if kind == "sliding":
        return query - key < size
    if kind == "chunked":
        origin = max(start[query], int(np.argmax(real)))
        return (query - origin) // size == (key - origin) // size
    return True


@pytest.mark.parametrize("kind", ["full", "sliding", "chunked", "bidirectional"])
@pytest.mark.parametrize("pads", [(), ((3, 12),), ((0, 9),)])
@pytest.mark.parametrize("jumps", [(), ((0, 0), (5, 0), (8, 0))])
def test_the_reference_is_what_plain_words_say(kind, pads, jumps):
    made = batch(valid=(pads,) if pads else (), positions=(jumps,) if jumps else ())
    wanted = expected(made, layer(kind, 4), 0, "any")
    starts = [place for place, _ in jumps] or [0]
    document = np.searchsorted(starts, np.arange(LENGTH), side="right")
    real = np.zeros(LENGTH, dtype=bool)
    for first, end in pads or ((0, LENGTH),):
        real[first:end] = True
    start = [starts[number - 1] for number in document]
    for query in np.flatnonzero(real):
        told = [brute(query, key, kind, 4, start, real, document) for key in range(LENGTH)]
        assert matrix(wanted)[query].tolist() == told, query
    assert needed_pairs(wanted) == matrix(wanted)[real].sum()


def test_cumulative_lengths_are_documents_too():
    wanted = expected(batch(boundaries=(0, 5, 12)), layer(), 0, "any")
    assert wanted.document.tolist() == [0] * 5 + [5] * 7


def test_image_blocks_see_each_other_in_classes_that_have_them():
    made = batch(blocks=(((4, 8, 1),),))
    assert expected(made, layer(), 0, "gemma3").end.tolist()[4:8] == [8] * 4
    assert expected(made, layer(), 0, "qwen3_vl").end.tolist()[4:8] == [5, 6, 7, 8]


def test_each_departure_is_counted_where_it_belongs():
    causal = seen_without_mask(LENGTH, LENGTH, causal=True)
    both = seen_without_mask(LENGTH, LENGTH, causal=False)
    plain = expected(batch(), layer(), 0, "any")
    assert difference(causal, plain).clean
    assert difference(both, plain).future == 66
    packed = expected(batch(positions=(((0, 0), (5, 0)),)), layer(), 0, "any")
    assert (difference(causal, packed).document, difference(causal, packed).leaked) == (35, 35)
    window = expected(batch(), layer("sliding", 4), 0, "any")
    assert (difference(causal, window).reach, difference(causal, window).leaked) == (36, 36)
    padded = expected(batch(valid=(((3, 12),),)), layer(), 0, "any")
    assert (difference(causal, padded).padding, difference(causal, padded).missing) == (27, 0)
    blind = Seen(first=causal.first, end=causal.end - 1)
    assert (difference(blind, plain).blind, difference(blind, plain).missing, difference(blind, plain).empty) == (
        12,
        12,
        1,
    )


@pytest.mark.parametrize(
    ("rows", "name"),
    [
        ([(0, 12, 0, 1, 0, 1)], "causal"),
        ([(0, 4, 0, 1, 0, 1), (4, 12, 1, 5, 1, 1)], "causal+window(4)"),
        ([(0, 5, 0, 1, 0, 1), (5, 12, 5, 6, 0, 1)], "causal+blocks(2)"),
        ([(0, 4, 0, 1, 0, 1), (4, 8, 4, 5, 0, 1), (8, 12, 8, 9, 0, 1)], "causal+blocks(3 x 4)"),
        ([(0, 9, 0, 1, 0, 1), (9, 12, 0, 9, 0, 0)], "causal+right_pad(3)"),
        ([(3, 12, 3, 4, 0, 1)], "causal+left_pad(3)"),
        ([(0, 12, 0, 12, 0, 0)], "bidirectional"),
        ([(0, 4, 0, 1, 0, 1), (4, 8, 0, 8, 0, 0), (8, 12, 0, 9, 0, 1)], "image blocks(1)"),
        ([], "nothing visible"),
    ],
)
def test_structures_have_names(rows, name):
    told = tuple(Rows(first=first, end=end, runs=((a, b, by, by_end),)) for first, end, a, b, by, by_end in rows)
    assert name_of(seen_by_rows(told, LENGTH), LENGTH) == name


def test_holes_are_named():
    rows = (Rows(first=0, end=6, runs=((0, 1, 0, 1),)), Rows(first=6, end=12, runs=((0, 4, 0, 0), (6, 7, 0, 1))))
    assert name_of(seen_by_rows(rows, LENGTH), LENGTH).endswith("+holes")


def test_pictures_show_what_is_seen():
    cells = coverage(seen_without_mask(LENGTH, LENGTH, causal=True), LENGTH, side=4)
    assert cells[0].tolist() == [pytest.approx(2 / 3), 0, 0, 0]
    assert cells[3].tolist() == [1, 1, 1, pytest.approx(2 / 3)]
    assert shaded(cells)[0] == "▓▓······"
    assert shaded(cells)[3] == "██████▓▓"


def test_numbers_of_layers_are_read_from_names():
    assert _NUMBER.search("model.layers.12.self_attn")[1] == "12"
    assert _NUMBER.search("transformer.h.3")[1] == "3"
