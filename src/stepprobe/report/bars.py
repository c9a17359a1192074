"""Stacked bars as inline SVG, drawn here: many rows of one kind need no plotting engine."""

from collections.abc import Mapping, Sequence
from html import escape
from math import fsum, isfinite
from typing import NamedTuple

from stepprobe.model.report import Cell, Chart
from stepprobe.report.numbers import decimals, number
from stepprobe.report.text import pinched, visible

WIDTH, LABEL, VALUE, ROW, BAR = 400, 118, 46, 18, 11
"""px; the page scales the drawing."""
SAYING_ROW, EDGE = 38, 4
"""px of a row whose words stand over its bar, and beside everything."""
LONGEST_LABEL = 22
LONGEST_SAYING = 44
COLORS = (
    *("#4f8fd6", "#7467c4", "#c95f6b", "#8a9199", "#d9822b"),
    *("#a877c9", "#e0b04c", "#3f9d6b", "#5fb3b3", "#b07d62"),
)
"""Mid tones, readable on white and on near-black; parts beyond the last colour begin again."""
SAVING = (COLORS[0], "#3f9d6b", "#8a9199")
"""Where bars speak for themselves: what there is, what goes, and what may go."""


class Bar(NamedTuple):
    """One named bar."""

    name: str
    parts: list[tuple[str, float]]
    """What each part is, and how long."""
    says: list[str]
    """Words of its own; only the first ones are drawn."""


def svg(chart: Chart) -> str:
    """Return the chart as one ``<svg>`` element, with a legend where its bars have parts.

    Where bars have words of their own (``label``), name and words stand over the bar, which takes the whole width.
    """
    bars = _bars(chart)
    parts = list(dict.fromkeys(part for bar in bars for part, _ in bar.parts if part))
    longest = max((fsum(length for _, length in bar.parts) for bar in bars), default=0.0) or 1.0
    row, left, right, step = (_row, LABEL, VALUE, ROW) if chart.label is None else (_saying, EDGE, EDGE, SAYING_ROW)
    scale = (WIDTH - left - right) / longest
    colors = COLORS if chart.label is None else SAVING
    legend = [_legend(place, part, colors) for place, part in enumerate(parts)]
    top = ROW * ((len(parts) + 1) // 2) + (6 if parts else 0)
    shades = {part: colors[place % len(colors)] for place, part in enumerate(parts)}
    rows = [row(bar, shades, scale, top + place * step) for place, bar in enumerate(bars)]
    height = top + step * len(bars) + 16
    unit = f'<text x="{left}" y="{height - 4}" {_BETWEEN} opacity=".7">{escape(visible(chart.y_title))}</text>'
    body = "".join([*legend, *rows, unit])
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}">{body}</svg>'


_STYLE = 'font-family="sans-serif" font-size="10" fill="currentColor"'
_BETWEEN = 'font-family="sans-serif" font-size="11" fill="currentColor"'
_LARGER = 'font-family="sans-serif" font-size="12.5" fill="currentColor"'


def _bars(chart: Chart) -> list[Bar]:
    bars: dict[str, Bar] = {}
    for value in chart.values:
        length = value.get(chart.y)
        if isinstance(length, int | float) and isfinite(length) and length >= 0:
            name = _text(value.get(chart.x))
            bar = bars.setdefault(name, Bar(name, [], []))
            bar.parts.append((_text(value.get(chart.color or "")), length))
            bar.says.append(_text(value.get(chart.label or "")))
    return list(bars.values())


def _row(bar: Bar, shades: Mapping[str, str], scale: float, top: float) -> str:
    drawn, reach = _drawn(bar, shades, scale, (LABEL, top + 3))
    label = escape(pinched(bar.name, LONGEST_LABEL))
    drawn += f'<text x="{LABEL - 6}" y="{top + 12:.0f}" {_STYLE} text-anchor="end">{label}</text>'
    value = number(reach, decimals(reach, 3))
    return f'{drawn}<text x="{LABEL + reach * scale + 4:.2f}" y="{top + 12:.0f}" {_STYLE}>{value}</text>'


def _saying(bar: Bar, shades: Mapping[str, str], scale: float, top: float) -> str:
    drawn, _ = _drawn(bar, shades, scale, (EDGE, top + 17))
    name, said = escape(pinched(bar.name, LONGEST_LABEL)), escape(pinched(bar.says[0], LONGEST_SAYING))
    place = f'y="{top + 12:.0f}" {_LARGER}'
    return (
        f'<text x="{EDGE}" {place} font-weight="600">{name}</text>'
        f'<text x="{WIDTH - EDGE}" {place} text-anchor="end">{said}</text>{drawn}'
    )


def _drawn(bar: Bar, shades: Mapping[str, str], scale: float, corner: tuple[float, float]) -> tuple[str, float]:
    """Return the parts of a bar side by side, and how far they reach."""
    reach, drawn = 0.0, []
    for part, length in bar.parts:
        color = shades.get(part, COLORS[0])
        x, width = corner[0] + reach * scale, length * scale
        drawn.append(f'<rect x="{x:.2f}" y="{corner[1]:.0f}" width="{width:.2f}" height="{BAR}" fill="{color}"/>')
        reach += length
    return "".join(drawn), reach


def _legend(place: int, part: str, colors: Sequence[str]) -> str:
    x, y = 4 + (place % 2) * WIDTH / 2, (place // 2) * ROW
    square = f'<rect x="{x:.0f}" y="{y + 4}" width="9" height="9" fill="{colors[place % len(colors)]}"/>'
    return f'{square}<text x="{x + 14:.0f}" y="{y + 12}" {_BETWEEN}>{escape(pinched(part, 34))}</text>'


def _text(cell: Cell) -> str:
    return "" if cell is None else visible(str(cell))
