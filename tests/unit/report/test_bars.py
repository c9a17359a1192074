"""Stacked bars: to scale, escaped, and every part in the legend."""

import re

import msgspec

from stepprobe.model.report import Chart
from stepprobe.report.bars import EDGE, LABEL, VALUE, WIDTH, svg


def chart(values, color="part"):
    return Chart(
        name="c",
        title="C",
        mark="stacked",
        x="row",
        y="ms",
        x_title="",
        y_title="ms",
        values=tuple(values),
        color=color,
    )


def widths(drawn):
    return [float(width) for width in re.findall(r'<rect x="[\d.]+" y="\d+" width="([\d.]+)" height="11"', drawn)]


def test_parts_are_drawn_to_one_scale():
    values = [{"row": "a", "part": "x", "ms": 30.0}, {"row": "a", "part": "y", "ms": 10.0}]
    drawn = svg(chart([*values, {"row": "b", "part": "x", "ms": 20.0}]))
    room = WIDTH - LABEL - VALUE
    assert widths(drawn) == [round(room * share, 2) for share in (0.75, 0.25, 0.5)]
    assert drawn.count(">x</text>") == 1
    assert ">40" in drawn


def test_names_are_escaped_and_odd_numbers_left_out():
    values = [{"row": "<script>", "part": "&", "ms": 1.0}, {"row": "b", "part": "y", "ms": float("nan")}]
    drawn = svg(chart([*values, {"row": "c", "part": "y", "ms": -1.0}, {"row": "d", "part": "y", "ms": None}]))
    assert "<script>" not in drawn
    assert "&lt;script&gt;" in drawn
    assert len(widths(drawn)) == 1


def test_nothing_to_draw_is_an_empty_drawing():
    assert widths(svg(chart([]))) == []
    assert widths(svg(chart([{"row": "a", "ms": 0.0}], color=None))) == [0.0]


def test_bars_that_say_something_take_the_whole_width():
    values = [
        {"row": "now", "part": "step", "ms": 40.0, "says": "40.0 ms"},
        {"row": "<b>", "part": "step", "ms": 30.0, "says": "saves 10.0 ms (4.5 to 21.5)"},
        {"row": "<b>", "part": "saved", "ms": 10.0, "says": ""},
    ]
    drawn = svg(msgspec.structs.replace(chart(values), label="says"))
    room = WIDTH - 2 * EDGE
    assert widths(drawn) == [room, round(0.75 * room, 2), round(0.25 * room, 2)]
    texts = re.findall(r'<text x="(\d+)" y="(\d+)"[^>]*>([^<]*)</text>', drawn)
    places = {said: (int(x), int(y)) for x, y, said in texts}
    assert places["&lt;b&gt;"] == (EDGE, places["saves 10.0 ms (4.5 to 21.5)"][1])
    assert places["saves 10.0 ms (4.5 to 21.5)"][0] == WIDTH - EDGE
    top = int(re.findall(r'<rect x="4.00" y="(\d+)"', drawn)[-1])
    assert 0 < top - places["&lt;b&gt;"][1] < 8  # over its own bar
