"""Charts as Vega-Lite specs, and specs as inline SVG that takes its text colours from the page around it."""

import re
from typing import Any

from stepprobe.model.report import Cell, Chart
from stepprobe.report.numbers import is_number
from stepprobe.report.text import pinched, visible

Spec = dict[str, Any]

VEGA_LITE = "5.20"
"""The version that draws, so that the same report gives the same chart."""
WIDTH = 400
"""Width of the drawing in px, labels included; the page scales it, and from here its text is readable on a phone."""
ROW = 22
PLOT_HEIGHT = 180
DOTTED_HEIGHT = 230
COLORS = ("#4f8fd6", "#d9822b", "#3f9d6b", "#a877c9", "#c95f6b", "#8a9199")
"""Mid tones: readable on white and on near-black."""
LONGEST_LABEL = 28
LABELLED = 4
"""Rows and columns of a picture in cells that are labelled at most."""
MOST_VALUES = 5000

_PINCHED = "length(datum.label) > 28 ? slice(datum.label, 0, 9) + '…' + slice(datum.label, -18) : datum.label"
"""Shortens what is read, not what is drawn: two long names that look alike stay two bars."""
_TAG = re.compile(r"<[^<>]*>")
_CLIP = re.compile(r'(?:(?<=id=")|(?<=\(#))clip\d+')
_AUTOSIZE: Spec = {"type": "fit-x", "contains": "padding"}
_CONFIG: Spec = {
    "aria": False,
    "background": None,
    "font": "sans-serif",
    "padding": {"left": 12, "right": 8, "top": 2, "bottom": 2},
    "view": {"stroke": None},
    "axis": {"labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": "normal", "gridOpacity": 0.6, "ticks": False}
    | {"domain": False, "labelPadding": 6, "labelFlush": False, "titlePadding": 8, "labelLimit": 180},
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
    values = _values(chart)
    numeric = all(isinstance(row["x"], int | float) for row in values)
    y: Spec = {"field": "y", "type": "quantitative", "title": _title(chart.y_title)}
    x: Spec = {"field": "x", "title": _title(chart.x_title)}
    if not numeric:
        x |= {"type": "nominal", "sort": None, "axis": {"labelExpr": _PINCHED}}
    elif chart.mark == "bar":
        x |= {"type": "ordinal", "axis": {"labelOverlap": True, "labelAngle": 0}}
    else:
        x |= {"type": "quantitative", "scale": {"zero": False, "nice": False}}
    lying = chart.mark in ("bar", "stacked") and not numeric
    encoding: Spec = {"y": x, "x": y} if lying else {"x": x, "y": y}
    if chart.color is not None:
        encoding["color"] = {"field": "color", "type": "nominal", "sort": None, "legend": {"labelExpr": _PINCHED}}
    if chart.dots is not None:
        return _framed({"data": {"values": values}, "layer": _with_dots(encoding)}, DOTTED_HEIGHT)
    if chart.mark == "rect":
        return _framed({"data": {"values": values}, "mark": "rect", "encoding": _cells(x, y, values)}, WIDTH)
    drawing: Spec = {
        "data": {"values": values},
        "mark": "bar" if chart.mark == "stacked" else chart.mark,
        "encoding": encoding,
    }
    return _framed(drawing, {"step": ROW} if lying else PLOT_HEIGHT)


def omitted(chart: Chart) -> int:
    """Return how many values ``spec`` leaves out: without a place or a number, or past the first ``MOST_VALUES``."""
    return len(chart.values) - len(_values(chart))


def svg(drawn: Spec, name: str) -> str:
    """Return the spec as one ``<svg>`` element, drawn without network; the same spec always gives the same text.

    Args:
        drawn: What to draw.
        name: Sets the ids inside the drawing apart from those of other drawings on the page.

    Raises:
        ImportError: vl-convert-python is not installed.
    """
    import vl_convert

    written = str(vl_convert.vegalite_to_svg(drawn, vl_version=VEGA_LITE, allowed_base_urls=[]))
    # Clips are numbered through the life of the process: count them anew.
    clips = {clip: place for place, clip in enumerate(dict.fromkeys(re.findall(r'<clipPath id="(clip\d+)">', written)))}
    return _TAG.sub(lambda tag: _CLIP.sub(lambda clip: f"{name}-clip{clips.get(clip[0], 0)}", tag[0]), written)


def _framed(drawing: Spec, height: Spec | int) -> Spec:
    return {"width": WIDTH, "height": height, "autosize": _AUTOSIZE, "config": _CONFIG, **drawing}


def _with_dots(encoding: Spec) -> list[Spec]:
    """Return lines, and in their colours the dots of each kind on top: circles, and diamonds for the second kind."""
    shape: Spec = {"field": "dot", "type": "nominal", "sort": None, "scale": {"range": ["circle", "diamond"]}}
    shape["legend"] = {"symbolType": "circle", "symbolFillColor": COLORS[-1], "symbolStrokeWidth": 0, "symbolSize": 80}
    lines = {**encoding, "color": {**encoding["color"], "legend": {"symbolType": "stroke", "labelExpr": _PINCHED}}}
    return [
        {"transform": [{"filter": "datum.dot === null"}], "mark": "line", "encoding": lines},
        {
            "transform": [{"filter": "datum.dot !== null"}],
            "mark": {"type": "point", "size": 80, "opacity": 1},
            "encoding": {**encoding, "shape": shape},
        },
    ]


def _cells(x: Spec, y: Spec, values: list[Spec]) -> Spec:
    """Return the encoding of a picture in cells: rows from the top, the darker the more; what is little is seen, too.

    A few cells alone are labelled: on a phone there is no room for more.
    """
    scale: Spec = {"type": "sqrt", "domain": [0, 1], "range": ["#8a919922", COLORS[0]]}
    color: Spec = {"field": "color", "type": "quantitative", "scale": scale, "legend": None}
    axes: Spec = {}
    for name, encoded in (("x", x), ("y", y)):
        places = list(dict.fromkeys(row[name] for row in values))
        axis = {"labelAngle": 0, "format": ",d", "values": places[:: -(-len(places) // LABELLED) or 1]}
        axes[name] = {**encoded, "type": "ordinal", "axis": axis, "scale": {}}
    return {**axes, "color": color}


def _values(chart: Chart) -> list[Spec]:
    fields = {"x": chart.x, "y": chart.y, "color": chart.color or ""} | ({"dot": chart.dots} if chart.dots else {})
    rows = ({name: _shown(row.get(field)) for name, field in fields.items()} for row in chart.values[:MOST_VALUES])
    return [row for row in rows if row["x"] is not None and row["y"] is not None]


def _title(text: str) -> str | None:
    return pinched(visible(text), LONGEST_LABEL) or None


def _shown(cell: Cell) -> Cell:
    if isinstance(cell, str):
        return visible(cell)
    return cell if is_number(cell) else None
