"""Rows that were deduced are the rows that are there, for every kind of mask."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepprobe.instruments.attention import rows
from stepprobe.instruments.attention.masks import read_mask
from stepprobe.instruments.attention.rows import RowReader, TooIrregularError


def matrix(mask):
    """Every element of a mask that was read into runs."""
    values = np.zeros((len(mask.batch), mask.queries, mask.keys), dtype=bool)
    for place, pattern in enumerate(mask.batch):
        for stretch in mask.patterns[pattern]:
            for index in range(stretch.first, stretch.end):
                for first, end in rows.at(stretch, index):
                    values[place, index, first:end] = True
    return values


def read(values, hints=()):
    batch, queries, keys = values.shape
    return read_mask(batch, queries, keys, lambda first, end: values[:, first:end], tuple(hints))


@st.composite
def masks(draw):
    """A mask with any mixture of window, documents, padding, images and holes, with the points where it can change."""
    length = draw(st.integers(1, 70))
    index = np.arange(length)
    query, key = index[:, None], index[None]
    values = key <= query
    starts = sorted(draw(st.sets(st.integers(0, length - 1), max_size=5)) | {0})
    owner = np.searchsorted(starts, index, side="right")
    if draw(st.booleans()):
        values &= owner[:, None] == owner[None]
    if draw(st.booleans()):
        values &= key > query - draw(st.integers(1, length))
    hints = set(starts)
    if draw(st.booleans()):
        first, end = sorted(draw(st.tuples(st.integers(0, length), st.integers(0, length))))
        hints |= {first, end}
        values |= (first <= query) & (query < end) & (first <= key) & (key < end)
    if draw(st.booleans()):
        first, end = sorted(draw(st.tuples(st.integers(0, length), st.integers(0, length))))
        values &= ~((first <= key) & (key < end))
        hints |= {first, end}
    return values[None], hints


@given(masks())
@settings(max_examples=300, deadline=None)
def test_deduced_rows_are_the_rows(drawn):
    values, hints = drawn
    near = {point + step for point in hints for step in (-1, 0, 1)}
    assert np.array_equal(matrix(read(values, near)), values)


def test_few_rows_are_read_of_a_long_window():
    length, window = 4096, 1000
    index = np.arange(length)
    values = ((index[None] <= index[:, None]) & (index[None] > index[:, None] - window))[None]
    mask = read(values)
    assert mask.rows_read < 150
    assert np.array_equal(matrix(mask), values)


def test_a_surprise_between_change_points_makes_every_row_be_read():
    values = np.tril(np.ones((600, 600), dtype=bool))[None].copy()
    values[0, 100:400:2, 0] = False
    mask = read(values)
    assert mask.rows_read >= 600
    assert np.array_equal(matrix(mask), values)


def test_a_mask_without_structure_is_opaque():
    values = np.random.default_rng(0).random((1, 200, 200)) > 0.5
    mask = read(values)
    assert "separate runs" in mask.opaque
    assert mask.patterns == ()


def test_reading_stops_where_it_would_cost_too_much(monkeypatch):
    monkeypatch.setattr(rows, "MOST_PAIRS", 1000)
    reader = RowReader(lambda first, end: np.ones((1, end - first, 200), dtype=bool), 200, 200, 1)
    with pytest.raises(TooIrregularError, match="pairs would have to be read"):
        reader.all_rows()
