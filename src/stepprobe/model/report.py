"""The report: the one object from which terminal, HTML, Markdown and JSON are drawn."""

from typing import Literal

import msgspec

from stepprobe.model.estimate import Estimate
from stepprobe.model.finding import Control, Finding
from stepprobe.model.ledger import LedgerRow

REPORT_SCHEMA = 1

Verdict = Literal["ok", "warn", "fail", "undecided", "not measured"]
Cell = str | int | float | None


class Column(msgspec.Struct, frozen=True, kw_only=True):
    """A column of a table."""

    title: str
    unit: str = ""
    """``ms``, ``1`` (a share, shown in percent), ``count``, ``tokens``, ``bytes``; empty for text."""
    code: bool = False
    """Its cells are lines to copy: no renderer cuts or wraps them."""


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """Rows for a person to read; each row has a cell for each column."""

    name: str
    """Stable name, lower case, for example ``"ranks"``."""
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    caption: str = ""
    """What the reader should see in it, and what it leaves out."""


class Chart(msgspec.Struct, frozen=True, kw_only=True):
    """Data for one chart; how it is drawn is the renderer's business."""

    name: str
    title: str
    mark: Literal["bar", "line", "point", "stacked", "rect"]
    """``stacked``: lying bars of one named thing each, made of the parts that ``color`` names, on a common scale."""
    x: str
    """Field of ``values`` on the horizontal axis."""
    y: str
    """Field of ``values`` on the vertical axis."""
    x_title: str
    y_title: str
    values: tuple[dict[str, Cell], ...]
    color: str | None = None
    """Field of ``values`` that tells the series apart."""
    dots: str | None = None
    """Of lines: field of ``values`` that names a kind of dot, such as ``measured``; None: the value is of a line."""
    label: str | None = None
    """Of stacked bars: field of ``values`` with the words that stand beside the name of a bar."""
    caption: str = ""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What a run found. Derived from evidence alone: the same evidence gives the same report."""

    command: str
    """The command whose question this answers, for example ``"run"``."""
    verdict: Verdict
    title: str
    """What was observed, for a person: the command line of the script, a model, a dataset."""
    headline: str
    """The answer in one line."""
    reason: str = ""
    """Why the verdict is not ``ok``, where the headline does not say it already."""
    figures: dict[str, Estimate]
    """Every number of the report by its stable dotted name."""
    ledger: tuple[LedgerRow, ...] = ()
    """Accounts in the order of ``model.accounts.ACCOUNTS``; they sum to the figure ``step.wall``."""
    findings: tuple[Finding, ...] = ()
    """Most expensive first; where their gains were forecast, the most to gain first."""
    controls: tuple[Control, ...] = ()
    tables: tuple[Table, ...] = ()
    charts: tuple[Chart, ...] = ()
    notes: tuple[str, ...] = ()
    """What was skipped, dropped, clamped, sampled or not joined, with its share. Never silent."""
    environment: dict[str, str] = {}
    run: str | None = None
    """The run folder."""
    schema: int = REPORT_SCHEMA
