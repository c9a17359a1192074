"""Unions and nesting of intervals, against what looking at each of them gives."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from stepprobe.analysis.trace.cover import Cover
from stepprobe.analysis.trace.joining import NOTHING, nest

spans = st.tuples(st.integers(0, 3000), st.integers(0, 800)).map(lambda pair: (pair[0], pair[0] + pair[1]))


@settings(max_examples=200, deadline=None)
@given(st.lists(spans, max_size=30), spans)
def test_a_union_is_what_counting_instants_gives(intervals, window):
    starts, ends = (np.array([pair[side] for pair in intervals], "<i8") for side in (0, 1))
    cover = Cover(starts, ends)
    instants = {time for start, end in intervals for time in range(start, end)}
    assert cover.total == len(instants) <= sum(end - start for start, end in intervals)
    low, high = (np.array([edge]) for edge in window)
    assert cover.within(low, high)[0] == sum(window[0] <= time < window[1] for time in instants)


@settings(max_examples=300, deadline=None)
@given(st.lists(spans, max_size=30), st.lists(st.integers(0, 3800), max_size=20))
def test_the_innermost_is_what_looking_at_each_gives(intervals, times):
    intervals, times = sorted(intervals, key=lambda pair: (pair[0], -pair[1])), sorted(times)
    starts, ends = (np.array([pair[side] for pair in intervals], "<i8") for side in (0, 1))
    parent, owner = nest(starts, ends, np.array(times, "<i8"))

    def last(places):
        return max(places, default=NOTHING)

    assert parent.tolist() == [
        last(place for place in range(mine) if intervals[place][1] > start) for mine, (start, _) in enumerate(intervals)
    ]
    assert owner.tolist() == [
        last(place for place, (start, end) in enumerate(intervals) if start <= time <= end) for time in times
    ]
