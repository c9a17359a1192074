"""Charts as Vega-Lite specs, and specs as inline SVG that takes its text colours from the page around it."""

import math
from collections.abc import Mapping
from typing import Any

from stepprobe.model.report import Cell, Chart, Report
from stepprobe.report.ledger import lines
from stepprobe.report.text import pinched, visible

Spec = dict[str, Any]

VEGA_LITE = "5.20"
"""The version that draws, so that the same report gives the same chart."""
WIDTH = 400
"""Plot width in px; the page scales the drawing, and at this width its text stays readable on a phone."""
ROW = 22
COLORS = ("#4f8fd6", "#d9822b", "#3f9d6b", "#a877c9", "#c95f6b", "#8a9199")
"""Mid tones: readable on white and on near-black."""
LONGEST_LABEL = 28
MOST_VALUES = 5000

_CONFIG: Spec = {
    "aria": False,
    "background": None,
    "font": "sans-serif",
    "view": {"stroke": None},
    "axis": {"labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": "normal", "gridOpacity": 0.6, "ticks": False}
    | {"domain": False, "labelPadding": 6, "titlePadding": 8, "labelLimit": 180},
    "legend": {"labelFontSize": 12, "titleFontSize": 12, "orient": "top", "title": None, "symbolType": "square"},
    "range": {"category": list(COLORS)},
    "bar": {"color": COLORS[0], "cornerRadiusEnd": 2},
    "line": {"color": COLORS[0], "strokeWidth": 1.75},
    "point": {"color": COLORS[0], "filled": True, "size": 36},
}


def spec(chart: Chart) -> Spec:
    """Return the Vega-Lite spec of a chart. Bars of named things lie, so that their names can be read.

    Fields are renamed to ``x``, ``y`` and ``color``: Vega-Lite would read dots and brackets in a name as a path.
    """
    values = [
        {"x": _shown(row.get(chart.x)), "y": _shown(row.get(chart.y)), "color": _shown(row.get(chart.color or ""))}
        for row in chart.values[:MOST_VALUES]
        if chart.x in row and chart.y in row
    ]
    numeric = all(isinstance(row["x"], int | float) for row in values)
    x: Spec = {"field": "x", "title": pinched(visible(chart.x_title), 2 * LONGEST_LABEL) or None}
    x |= (
        {"type": "quantitative", "scale": {"zero": False, "nice": False}}
        if numeric
        else {"type": "nominal", "sort": None}
    )
    y: Spec = {
        "field": "y",
        "type": "quantitative",
        "title": pinched(visible(chart.y_title), 2 * LONGEST_LABEL) or None,
    }
    lying = chart.mark == "bar" and not numeric
    encoding: Spec = {"y": x, "x": y} if lying else {"x": x, "y": y}
    if chart.color is not None:
        encoding["color"] = {"field": "color", "type": "nominal", "sort": None}
    if numeric and chart.mark == "bar":
        x |= {"type": "ordinal", "axis": {"labelOverlap": True, "labelAngle": 0}}
        x.pop("scale")
    return _framed(values, {"type": chart.mark}, encoding, {"step": ROW} if lying else 180)


def ledger_spec(report: Report) -> Spec:
    """Return the spec of the ledger: each account's time on and off the CPU, with its interval."""
    drawn = lines(report)
    rows = {row: label for row, label in enumerate(line.label for line in drawn)}
    parts = [
        {"row": rows[place], "ms": ms, "part": part}
        for place, line in enumerate(drawn)
        for part, ms in (
            ("on the CPU", line.ms * (1 - (line.off_cpu or 0.0))),
            ("off the CPU", line.ms * (line.off_cpu or 0.0)),
        )
    ]
    ends = [
        {"row": rows[place], "low": line.low, "high": line.high}
        for place, line in enumerate(drawn)
        if line.low is not None and line.high is not None
    ]
    y: Spec = {"field": "row", "type": "nominal", "sort": list(rows.values()), "title": None}
    ms: Spec = {"field": "ms", "type": "quantitative", "title": "ms per step, with 95 % interval"}
    color: Spec = {"field": "part", "type": "nominal", "scale": {"domain": ["on the CPU", "off the CPU"]}}
    bars: Spec = {"data": {"values": parts}, "mark": "bar", "encoding": {"y": y, "x": ms, "color": color}}
    whiskers: Spec = {
        "data": {"values": ends},
        "mark": {"type": "rule", "strokeWidth": 1.5, "color": COLORS[5]},
        "encoding": {"y": y, "x": {"field": "low", "type": "quantitative"}, "x2": {"field": "high"}},
    }
    return {"width": WIDTH, "height": {"step": ROW}, "config": _CONFIG, "layer": [bars, whiskers]}


def svg(drawn: Spec) -> str:
    """Return the spec as one ``<svg>`` element, drawn without network.

    Raises:
        ImportError: vl-convert-python is not installed.
    """
    import vl_convert

    return str(vl_convert.vegalite_to_svg(drawn, vl_version=VEGA_LITE, allowed_base_urls=[]))


def _framed(values: list[Spec], mark: Spec, encoding: Spec, height: Spec | int) -> Spec:
    return {
        "width": WIDTH,
        "height": height,
        "config": _CONFIG,
        "data": {"values": values},
        "mark": mark,
        "encoding": encoding,
    }


def _shown(cell: Cell | Mapping[str, Cell]) -> Cell:
    if isinstance(cell, str):
        return pinched(visible(cell), LONGEST_LABEL)
    return cell if isinstance(cell, int | float) and math.isfinite(cell) else None
