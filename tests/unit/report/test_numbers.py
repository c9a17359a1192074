import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepprobe.model.estimate import Estimate, exact
from stepprobe.report import numbers
from stepprobe.report.numbers import NBSP, gain, spans_zero


def estimate(value, low=None, high=None, unit="ms"):
    return Estimate(value=value, unit=unit, low=low, high=high, n=9, method="m")


WALL = estimate(441.0)


@pytest.mark.parametrize(
    ("value", "places", "written"),
    [
        (1234567.891, 1, "1,234,567.9"),
        (-0.04, 1, "0.0"),
        (-0.06, 1, "−0.1"),
        (-1234.0, 0, "−1,234"),
        (0.0, 0, "0"),
        (math.nan, 1, "–"),
        (math.inf, 1, "–"),
        (None, 1, "–"),
    ],
)
def test_number(value, places, written):
    assert numbers.number(value, places) == written


@pytest.mark.parametrize(
    ("share", "written"),
    [(0.2934, "29.3"), (1.0, "100.0"), (0.0, "0.0"), (0.0004, "<0.1"), (0.0006, "0.1"), (math.nan, "–"), (None, "–")],
)
def test_percent(share, written):
    assert numbers.percent(share) == written


@pytest.mark.parametrize(
    ("value", "unit", "written"),
    [
        (129.42, "ms", "129.4 ms"),
        (71.04, "ms", "71.0 ms"),
        (5.2, "ms", "5.20 ms"),
        (0.0412, "ms", "0.0412 ms"),
        (12345.6, "ms", "12,346 ms"),
        (0, "ms", "0 ms"),
        (32768, "tokens/step", "32,768 tokens/step"),
        (3, "count", "3"),
        (0.31, "1", "31.0 %"),
        (1.7, "1", "1.70"),
        (3_221_225_472, "bytes", "3.0 GiB"),
        (17, "bytes", "17 B"),
        (math.nan, "ms", "–"),
        (4_026_531_840, "FLOP", "4.03 GFLOP"),
        (788e12, "FLOP/s", "788.0 TFLOP/s"),
        (20.1e9, "bytes/s", "20.1 Gbytes/s"),
        (12, "FLOP", "12 FLOP"),
    ],
)
def test_amount(value, unit, written):
    assert numbers.amount(value, unit).replace(NBSP, " ") == written


@pytest.mark.parametrize(
    ("low", "high", "written"),
    [
        (126.812, 131.988, "126.8 to 132.0"),
        (31.0, 48.5, "31 to 48"),
        (-0.6, 2.8, "−0.6 to 2.8"),
        (4.0, 4.0, ""),
        (None, 4.0, ""),
        (math.nan, 4.0, ""),
        (-math.inf, math.inf, ""),
    ],
)
def test_interval(low, high, written):
    assert numbers.interval(estimate(1.0, low, high)) == written


@given(st.floats(-1e12, 1e12), st.floats(1e-9, 1e12))
def test_ends_of_an_interval_are_told_apart(low, width):
    if (ends := numbers.interval(estimate(low, low, low + width))) and width > 1e-3 * abs(low) and width > 1e-6:
        assert len(set(ends.split(" to "))) == 2


@pytest.mark.parametrize(
    ("saved", "written"),
    [
        (estimate(126.3, 121.0, 131.0), "−29 % ± 1"),
        (estimate(39.7, 31.0, 48.5), "−9 % ± 2"),
        (estimate(10.6, 9.3, 11.9), "−2.4 % ± 0.3"),
        (estimate(108.0, 80.0, 122.0), "−18 to −28 %"),  # an uneven interval
        (estimate(1.1, -0.6, 2.8), "undecided"),
        (estimate(-44.1, -46.0, -42.0), "+10.0 % ± 0.5"),
        (exact(44.1, "ms", 3), "−10 %"),
        (estimate(4.41), "−1.0 %"),
        (estimate(math.nan), "–"),
    ],
)
def test_gain(saved, written):
    assert numbers.gain(saved, WALL).replace(NBSP, " ") == written


def test_gain_without_a_wall_is_in_ms():
    assert numbers.gain(estimate(5.2, 5.0, 5.4), None) == f"−5.20{NBSP}ms"
    assert numbers.gain(estimate(5.2, 5.0, 5.4), estimate(0.0)) == f"−5.20{NBSP}ms"


def test_a_column_aligns_its_decimal_points():
    assert numbers.column([218.412, 9.75, None, math.nan], "ms") == ["218.4", "9.8", "–", "–"]
    assert numbers.column([1211, 3.0], "count") == ["1,211", "3"]
    assert numbers.column(["a", 1], "") == ["a", "1"]
    assert numbers.column([4811.25, 2.115, None, math.inf, 3.0], "") == ["4,811", "2.115", "–", "–", "3"]
    assert numbers.column([12.5, 9.8765], "") == ["12.50", "9.88"], "alike in size: their points align"
    assert numbers.column([0.5, 0.0002], "1") == [f"50.0{NBSP}%", f"<0.1{NBSP}%"]


def test_a_figure_keeps_its_own_unit():
    assert numbers.figure(estimate(0.0029, 0.002, 0.004, unit="1")) == "0.002900"
    assert numbers.figure(exact(1_000_000, "tokens", 1)) == "1,000,000"
    assert numbers.figure(estimate(441.0)) == "441.0"


def test_a_gain_of_which_only_the_ceiling_is_known():
    saved = Estimate(value=35.0, unit="ms", low=0.0, high=70.0, n=5, method="up to all of it", bound=True)
    wall = Estimate(value=100.0, unit="ms", n=5, method="mean")
    assert gain(saved, wall).replace(NBSP, " ") == "up to −70 %"
    assert not spans_zero(saved)


def test_an_end_that_is_shown_as_nothing_has_no_sign():
    assert gain(estimate(2.0, 0.1, 13.0), estimate(400.0)).replace(NBSP, " ") == "0 to −3 %"
