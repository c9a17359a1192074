"""Packing against slow references, TRL's own packer, and the bound."""

import bisect

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepprobe.analysis.lengths.batching import Distribution
from stepprobe.analysis.lengths.packing import assign, best_fit_decreasing, lower_bounds, next_fit
from stepprobe.analysis.lengths.packs import pack, token_budget

CAPS = (7, 8, 9, 31, 32, 33, 255, 256, 257, 1000, 4095, 4096, 4097, 65535, 65536, 65537)


def histogram(lengths):
    distinct, rows = np.unique(lengths, return_counts=True)
    return distinct, rows


def packed(lengths, cap):
    distinct, rows = histogram(lengths)
    return best_fit_decreasing(distinct.tolist(), rows.tolist(), cap)


def one_by_one(lengths, cap):
    """Best fit decreasing, a row at a time: the fullest bin that still has room."""
    rooms, bins = [], 0
    for length in sorted(lengths.tolist(), reverse=True):
        place = bisect.bisect_left(rooms, length)
        if place == len(rooms):
            bins, room = bins + 1, cap
        else:
            room = rooms.pop(place)
        bisect.insort(rooms, room - length)
    return bins


def inputs(count, seed=0):
    random = np.random.default_rng(seed)
    for number in range(count):
        cap = int(random.choice(CAPS))
        rows = int(random.integers(1, 400))
        yield (
            cap,
            (
                random.integers(1, cap + 1, rows),
                np.full(rows, random.integers(1, cap + 1)),
                np.clip(random.lognormal(np.log(cap / 4), 1, rows).astype(int), 1, cap),
                np.clip(random.integers(max(1, cap // 4), max(2, cap // 2 + 2), rows), 1, cap),
            )[number % 4],
        )


def check(lengths, cap):
    """A packing that loses nothing, overfills nothing and is above the bound."""
    made = packed(lengths, cap)
    bins = assign(made, lengths)
    filled = np.bincount(bins, weights=lengths, minlength=made.bins)
    assert len(filled) == made.bins
    assert filled.max(initial=0) <= cap
    assert (np.bincount(bins, minlength=made.bins) > 0).all()
    assert int(filled.sum()) == int(lengths.sum())
    by_tokens, bound = lower_bounds(*histogram(lengths), cap)
    assert by_tokens <= bound <= made.bins
    return made


def test_the_bins_are_those_of_packing_row_by_row():
    for cap, lengths in inputs(500):
        assert check(lengths, cap).bins == one_by_one(lengths, cap), (cap, len(lengths))


def test_the_bins_are_those_of_trl():
    """TRL's own loop on 500 inputs, its whole set in one batch; tokens stand for nothing, so they are ones."""
    pa = pytest.importorskip("pyarrow")
    pack_bfd = pytest.importorskip("trl.data_utils")._pack_bfd
    for cap, lengths in inputs(500, seed=1):
        offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
        ids = pa.ListArray.from_arrays(offsets, pa.array(np.ones(offsets[-1], np.int8)))
        theirs = pack_bfd(pa.table({"input_ids": ids}), cap)
        assert packed(lengths, cap).bins == len(theirs), (cap, len(lengths))


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 300).flatmap(lambda cap: st.tuples(st.just(cap), st.lists(st.integers(1, cap), max_size=60))))
def test_any_packing_conserves_tokens(case):
    cap, lengths = case
    check(np.array(lengths, np.int64), cap)


def test_nothing_and_one_row():
    assert best_fit_decreasing([], [], 32).bins == 0
    assert packed(np.array([5]), 32).bins == 1
    assert packed(np.array([32] * 7), 32).bins == 7


@pytest.mark.parametrize("lengths", [[0], [33], [-1, 4]])
def test_lengths_that_fit_no_bin_are_refused(lengths):
    with pytest.raises(ValueError, match=r"1 \.\. 32"):
        best_fit_decreasing(sorted(lengths), [1] * len(lengths), 32)


def test_the_bound_knows_rows_that_exclude_each_other():
    assert lower_bounds(*histogram(np.array([6] * 10)), 10) == (6, 10)


def test_moves_alone_give_the_packing_again():
    lengths = np.random.default_rng(3).integers(1, 1000, 5000)
    made = packed(lengths, 1024)
    assert int((made.moves[:, 2] * made.moves[:, 3]).sum()) == len(lengths)
    assert int((made.moves[:, 0] * made.moves[:, 2] * made.moves[:, 3]).sum()) == int(lengths.sum())


def test_what_trainers_ship_needs_more_bins():
    lengths = np.clip(np.random.default_rng(0).lognormal(5, 1, 20_000).astype(int), 1, 8192)
    known = Distribution(*histogram(lengths))
    made = pack(known, 8192, int(lengths.sum()))
    real = sum(packed(lengths[i : i + 1000], 8192).bins for i in range(0, 20_000, 1000))
    assert made.per_map - made.per_map_error <= real <= made.per_map + made.per_map_error
    assert made.in_order == pytest.approx(next_fit(lengths.tolist(), 8192), rel=0.02)
    assert made.bound <= made.bins < made.per_map < made.in_order
    assert made.wrapped == -(-int(lengths.sum()) // 8192)


def test_a_token_budget_is_kept():
    lengths = np.sort(np.random.default_rng(0).integers(1, 2000, 3001))[::-1]
    budget, place, batches, padded = 8192, 0, 0, 0
    while place < len(lengths):
        each = max(1, budget // lengths[place])
        padded += lengths[place] * len(lengths[place : place + each])
        batches, place = batches + 1, place + each
    made = token_budget(Distribution(*histogram(lengths)), budget)
    assert (made.batches, made.padded) == (batches, padded)
