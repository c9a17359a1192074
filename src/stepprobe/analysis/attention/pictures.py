"""Small pictures of masks: blocks of a terminal, a chart for the page."""

from typing import TYPE_CHECKING

from stepprobe.analysis.attention.answer import Answer
from stepprobe.analysis.attention.reference import Seen, seen_in_batch, seen_without_mask
from stepprobe.analysis.attention.structure import name_of
from stepprobe.analysis.attention.views import View
from stepprobe.model.report import Cell, Chart, Column, Table

if TYPE_CHECKING:
    import numpy as np

SIDE = 16
SHADES = "·░▒▓█"
LEGEND = "Of the pairs in a cell are seen: {} none, {} few, {} about half, {} most, {} all.".format(*SHADES)
MOST = 4
"""Distinct masks that are drawn."""


def coverage(seen: Seen, keys: int, side: int = SIDE) -> "np.ndarray":
    """Return which part of the pairs in each cell of a ``side`` by ``side`` grid is seen, 0..1."""
    import numpy as np

    queries = seen.first.shape[1]
    side = min(side, queries)
    low = np.arange(side) * keys // side
    high = (np.arange(side) + 1) * keys // side
    overlap = np.minimum(seen.end[:, :, None], high) - np.maximum(seen.first[:, :, None], low)
    by_row = np.maximum(overlap, 0).sum(0)
    edges = np.arange(side) * queries // side
    area = np.diff(np.append(edges, queries))[:, None] * (high - low)[None]
    return np.asarray(np.add.reduceat(by_row, edges, axis=0) / area)


def shaded(cells: "np.ndarray") -> tuple[str, ...]:
    """Return a picture in characters, one line a row of cells, each two wide."""
    most = len(SHADES) - 1
    return tuple("".join(2 * SHADES[_shade(part, most)] for part in row) for row in cells.tolist())


def _shade(part: float, most: int) -> int:
    return 0 if part == 0 else most if part == 1 else min(most - 1, max(1, round(part * most)))


def pictures(told: Answer) -> tuple[tuple[Table, ...], tuple[Chart, ...]]:
    """Return a table of blocks and a chart for each distinct mask."""
    drawn: dict[str, tuple[View, Seen, int]] = {}
    for view in told.views:
        if view.difference is None:
            continue
        for row in _rows(view):
            seen = seen_in_batch(view.mask, row) if view.mask else _unmasked(view)
            name = name_of(seen, _keys(view)) + (f", row {row} of the batch" if row else "")
            drawn.setdefault(name, (view, seen, row))
    chosen = list(drawn.items())[:MOST]
    tables = [_table(number, name, *rest[:2]) for number, (name, rest) in enumerate(chosen, 1)]
    charts = [_chart(number, name, *rest[:2]) for number, (name, rest) in enumerate(chosen, 1)]
    return tuple(tables), tuple(charts)


def _rows(view: View) -> list[int]:
    return [view.mask.batch.index(place) for place in range(len(view.mask.patterns))] if view.mask else [0]


def _unmasked(view: View) -> Seen:
    call = view.call
    return seen_without_mask(call.query[2], call.key[2], call.is_causal, call.window if call.api != "sdpa" else None)


def _keys(view: View) -> int:
    return view.mask.keys if view.mask else view.call.key[2]


def _table(number: int, name: str, view: View, seen: Seen) -> Table:
    lines = shaded(coverage(seen, _keys(view)))
    queries = seen.first.shape[1]
    return Table(
        name=f"picture{number}",
        title=f"Mask: {name}",
        columns=(Column(title="query", unit="count"), Column(title="keys →")),
        rows=tuple((place * queries // len(lines), line) for place, line in enumerate(lines)),
        caption=LEGEND,
    )


def _chart(number: int, name: str, view: View, seen: Seen) -> Chart:
    cells = coverage(seen, _keys(view), 2 * SIDE)
    side = len(cells)
    keys, queries = _keys(view), seen.first.shape[1]
    values: list[dict[str, Cell]] = [
        {"key": column * keys // side, "query": row * queries // side, "seen": float(part)}
        for row, line in enumerate(cells.tolist())
        for column, part in enumerate(line)
    ]
    return Chart(
        name=f"mask{number}", title=f"Mask: {name}", mark="rect", x="key", y="query", color="seen", x_title="key",
        y_title="query", values=tuple(values), caption="The darker a cell, the more of its pairs are seen.",
    )  # fmt: skip
