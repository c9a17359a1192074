"""Stacked bars as inline SVG, drawn here: many rows of one kind need no plotting engine."""

from html import escape
from math import fsum, isfinite

from stepprobe.model.report import Cell, Chart
from stepprobe.report.numbers import decimals, number
from stepprobe.report.text import pinched, visible

WIDTH, LABEL, VALUE, ROW, BAR = 400, 118, 46, 18, 11
"""px; the page scales the drawing."""
LONGEST_LABEL = 22
COLORS = (
    *("#4f8fd6", "#7467c4", "#c95f6b", "#8a9199", "#d9822b"),
    *("#a877c9", "#e0b04c", "#3f9d6b", "#5fb3b3", "#b07d62"),
)
"""Mid tones, readable on white and on near-black; parts beyond the last colour begin again."""


def svg(chart: Chart) -> str:
    """Return the chart as one ``<svg>`` element, with a legend where its bars have parts."""
    bars: dict[str, list[tuple[str, float]]] = {}
    for value in chart.values:
        length = value.get(chart.y)
        if isinstance(length, int | float) and isfinite(length) and length >= 0:
            bars.setdefault(_text(value.get(chart.x)), []).append((_text(value.get(chart.color or "")), length))
    parts = list(dict.fromkeys(part for bar in bars.values() for part, _ in bar if part))
    longest = max((fsum(length for _, length in bar) for bar in bars.values()), default=0.0) or 1.0
    scale = (WIDTH - LABEL - VALUE) / longest
    legend = [_legend(place, part) for place, part in enumerate(parts)]
    top = ROW * ((len(parts) + 1) // 2) + (6 if parts else 0)
    rows = [_row(name, bar, parts, scale, top + place * ROW) for place, (name, bar) in enumerate(bars.items())]
    height = top + ROW * len(bars) + 16
    unit = f'<text x="{LABEL}" y="{height - 4}" {_STYLE} opacity=".7">{escape(visible(chart.y_title))}</text>'
    body = "".join([*legend, *rows, unit])
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}">{body}</svg>'


_STYLE = 'font-family="sans-serif" font-size="10" fill="currentColor"'


def _row(name: str, bar: list[tuple[str, float]], parts: list[str], scale: float, top: float) -> str:
    reach, drawn = 0.0, []
    for part, length in bar:
        color = COLORS[parts.index(part) % len(COLORS) if part else 0]
        x, width = LABEL + reach * scale, length * scale
        drawn.append(f'<rect x="{x:.2f}" y="{top + 3:.0f}" width="{width:.2f}" height="{BAR}" fill="{color}"/>')
        reach += length
    label = escape(pinched(name, LONGEST_LABEL))
    drawn.append(f'<text x="{LABEL - 6}" y="{top + 12:.0f}" {_STYLE} text-anchor="end">{label}</text>')
    value = number(reach, decimals(reach, 3))
    drawn.append(f'<text x="{LABEL + reach * scale + 4:.2f}" y="{top + 12:.0f}" {_STYLE}>{value}</text>')
    return "".join(drawn)


def _legend(place: int, part: str) -> str:
    x, y = 4 + (place % 2) * WIDTH / 2, (place // 2) * ROW
    square = f'<rect x="{x:.0f}" y="{y + 4}" width="9" height="9" fill="{COLORS[place % len(COLORS)]}"/>'
    return f'{square}<text x="{x + 14:.0f}" y="{y + 12}" {_STYLE}>{escape(pinched(part, 34))}</text>'


def _text(cell: Cell) -> str:
    return "" if cell is None else visible(str(cell))
