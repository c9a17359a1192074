"""The report as one HTML file: no script, no outside request, every foreign text neutralised and escaped."""

from typing import TYPE_CHECKING, Any

import msgspec

from stepprobe.model.estimate import Estimate
from stepprobe.model.report import Report, Table
from stepprobe.report import bars, charts, ledger, numbers
from stepprobe.report import findings as words
from stepprobe.report.inline_code import pieces
from stepprobe.report.text import is_place, visible

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

NO_CHARTS = "Charts are left out: vl-convert-python is not installed (pip install vl-convert-python)."


class Picture(msgspec.Struct, frozen=True, kw_only=True):
    """One chart, drawn."""

    title: str
    svg: str
    caption: str


class Track(msgspec.Struct, frozen=True, kw_only=True):
    """Where an interval lies on the common scale of all gains, in percent of the track."""

    zero: float
    start: float
    length: float
    point: float | None
    """None where only the ends are known."""


def render(report: Report) -> str:
    """Return the report as a complete HTML document.

    Without vl-convert-python the document has its bars and tables and says that the charts are missing.
    """
    pictures, missing = _pictures(report)
    template = _environment().get_template("report.html.jinja")
    return template.render(
        report=report,
        wall=numbers.step_wall(report),
        wall_ms=ledger.wall_ms(report),
        lines=ledger.lines(report),
        families=ledger.families(report),
        off_cpu=ledger.off_cpu(report),
        pictures=pictures,
        notes=(*report.notes, *missing),
        next_steps=words.next_steps(report),
        scale=_scale(report),
        track=_track,
        columns=_columns,
        words=words,
        numbers=numbers,
    )


def _environment() -> "Environment":
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    def finalized(value: object) -> object:
        return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value

    environment = Environment(
        loader=PackageLoader("stepprobe.report"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=finalized,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.globals["drawn_svg"] = Markup
    environment.filters["prose"] = _prose
    environment.filters["cell"] = _cell
    environment.filters["unbroken"] = lambda text: visible(text).replace(" · ", f"{numbers.NBSP}· ")
    return environment


def _prose(text: str) -> "Markup":
    """Return a sentence, escaped, with what is code in it marked as such."""
    from markupsafe import Markup, escape

    parts = (Markup("<code>{}</code>").format(part) if code else escape(part) for part, code in pieces(visible(text)))
    return Markup("").join(parts)


def _cell(text: str, head: dict[str, Any]) -> "Markup":
    """Return a cell's text, escaped: a line to copy, a place, or else a few words."""
    from markupsafe import Markup

    shown = visible(text)
    if head["code"]:
        return Markup('<code class="line">{}</code>').format(shown)
    return Markup("<code>{}</code>").format(shown) if is_place(shown) else _prose(shown)


def _pictures(report: Report) -> tuple[tuple[Picture, ...], tuple[str, ...]]:
    """Return the drawn charts, and a note for what could not be drawn."""
    stacked = tuple(
        Picture(title=chart.title, svg=bars.svg(chart), caption=chart.caption)
        for chart in report.charts
        if chart.values and chart.mark == "stacked"
    )
    plotted = [chart for chart in report.charts if chart.values and chart.mark != "stacked"]
    wanted = [(chart.title, chart.caption, charts.spec(chart)) for chart in plotted]
    try:
        drawn = tuple(
            Picture(title=title, svg=charts.svg(spec, f"chart{place}"), caption=caption)
            for place, (title, caption, spec) in enumerate(wanted)
        )
    except ImportError:
        return stacked, (NO_CHARTS,)
    cut = (
        f"Chart “{chart.title}”: {left_out:,} of {len(chart.values):,} values are not drawn (no number, or too many)."
        for chart in plotted
        if (left_out := charts.omitted(chart))
    )
    return (*drawn, *stacked), tuple(cut)


def _scale(report: Report) -> tuple[float, float]:
    """Return the ms at the left and right end of every gain track."""
    shown = [
        end
        for finding in report.findings
        for remedy in finding.remedies
        for estimate in (remedy.predicted, remedy.outcome)
        if estimate is not None and estimate.unit == "ms"
        for end in (estimate.value, estimate.low, estimate.high)
        if numbers.is_number(end)
    ]
    return min([0.0, *shown]), max([0.0, *shown])


def _track(estimate: Estimate | None, scale: tuple[float, float]) -> Track | None:
    """Return where to draw an estimate; None where there is nothing to draw."""
    left, right = scale
    if estimate is None or estimate.unit != "ms" or not numbers.is_number(estimate.value) or right <= left:
        return None
    sure = numbers.has_interval(estimate)
    low, high = (estimate.low, estimate.high) if sure else (estimate.value, estimate.value)
    per_ms = 100 / (right - left)
    return Track(
        zero=-left * per_ms,
        start=((low or 0.0) - left) * per_ms,
        length=((high or 0.0) - (low or 0.0)) * per_ms,
        point=None if estimate.bound else (estimate.value - left) * per_ms,
    )


def _columns(table: Table) -> list[dict[str, Any]]:
    """Return the columns of a table as text, each with its title and whether it holds numbers."""
    return [
        {
            "title": head.title + (f" ({head.unit})" if head.unit in ("ms", "s", "ns") else ""),
            "code": head.code,
            "cells": numbers.column([row[place] for row in table.rows], head.unit),
            "numeric": not any(isinstance(row[place], str) for row in table.rows),
        }
        for place, head in enumerate(table.columns)
    ]
