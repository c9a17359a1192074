"""Stacked bars: to scale, escaped, and every part in the legend."""

import re

from stepprobe.model.report import Chart
from stepprobe.report.bars import LABEL, VALUE, WIDTH, svg


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
