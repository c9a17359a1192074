"""The report of ``stepprobe padding``: how long rows are, what batches of them waste, what the loss needs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stepprobe.analysis.lengths import batching
from stepprobe.analysis.lengths.calibration import Counts, estimate, half_width
from stepprobe.analysis.lengths.options import Cut, Options, shortened
from stepprobe.analysis.lengths.strategies import without_empty
from stepprobe.analysis.unmeasured import unmeasured
from stepprobe.model.estimate import Estimate, exact
from stepprobe.model.evidence import Evidence
from stepprobe.model.finding import Control
from stepprobe.model.lengths import About
from stepprobe.model.report import Cell, Chart, Column, Report, Table

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]
    Rows = Ints | Floats

QUANTILES = (0.01, 0.25, 0.5, 0.75, 0.9, 0.99, 0.999)
LIMITS = (256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64)
OWN = "← yours"
SOURCES_MOST = 25
POINTS = 120
NORMAL = 1.959964


@dataclass(frozen=True, kw_only=True)
class Point:
    """What one way of cutting and batching rows costs."""

    size: int
    """Rows of a batch."""
    limit: int
    """Tokens after which rows are cut."""
    lost: float
    """Tokens lost, over all."""
    over: float
    """Rows cut, over all."""
    waste: float
    worst: int
    """Slots of the batch that holds the longest row."""
    own: bool
    """The one that was asked for."""


def padding_figures(about: About, known: Counts, seen: Cut, options: Options) -> dict[str, Estimate]:
    """Return every figure about lengths and padding."""
    rows = about.rows
    size = options.batch_size

    def lost(lengths: "Ints", counts: "Rows") -> float:
        total = float((lengths * counts).sum())
        kept = _short(lengths, counts, options)
        return max(0.0, 1 - float((kept.lengths * kept.counts).sum()) / total) if total else 0.0

    longest, spread = batching.batch_longest(seen.known, size)
    top = options.max_length or int(seen.known.padded[-1])
    figures = {
        "lengths.rows": exact(rows, "count", rows, "rows counted"),
        "lengths.rows_tokenised": exact(about.tokenised, "count", rows, "rows given to the tokenizer"),
        "lengths.sources": exact(len(about.sources), "count", rows, "counted"),
        "padding.tokens_total": estimate(
            known, lambda a, b: float((a * b).sum()), "tokens", "tokens of all rows", rows
        ),
        "padding.truncated_share": estimate(known, lost, "1", "tokens past max_length, over all", rows),
        "padding.truncated_rows": exact(seen.cut_rows, "count", rows, "rows longer than max_length"),
        "padding.expected_longest": exact(longest, "tokens", rows, "exact mean of a full random batch's longest row"),
        "padding.longest_spread": exact(spread, "tokens", rows, "exact standard deviation of the same"),
        "padding.waste_share": waste_figure(known, seen, options),
        "padding.waste_share.max_length": exact(
            1 - seen.known.tokens / (seen.known.rows * top), "1", rows, "every row padded to max_length, or the longest"
        ),
        "padding.worst_batch": exact(
            int(seen.known.padded[-1]) * min(size, seen.known.rows),
            "tokens",
            rows,
            "slots of the batch that holds the longest row",
        ),
        "padding.sum_of_squares": exact(
            seen.known.squares, "count", rows, "Σ L², what attention costs without padding"
        ),
    }
    if known.labelled_share is not None:
        figures["padding.labelled_share"] = known.labelled_share
    return figures | _quantiles(seen, rows)


def _quantiles(seen: Cut, rows: int) -> dict[str, Estimate]:
    figures = {
        f"lengths.p{100 * share:g}": exact(seen.known.quantile(share), "tokens", rows, "of all rows, cut to max_length")
        for share in QUANTILES
    }
    return figures | {"lengths.max": exact(seen.longest, "tokens", rows, "longest row before cutting")}


def _smooth_waste(known: batching.Distribution, size: int) -> float:
    """Return the waste of the random order, also for rows that are estimates and no whole numbers."""
    slots = batching.padded_tokens(known, batching.random_rows_at_least(known, size))
    return max(0.0, 1 - float((known.lengths * known.counts).sum()) / slots) if slots else 0.0


def _short(lengths: "Ints", counts: "Rows", options: Options) -> batching.Distribution:
    kept = lengths > 0
    return shortened(lengths[kept], counts[kept], options.max_length, options.multiple)


def replicated_waste(known: Counts, options: Options) -> list[float]:
    """Return the waste of the random order with each part of the sample left out."""
    return [_smooth_waste(_short(*one, options), options.batch_size) for one in known.replicates]


def waste_figure(known: Counts, seen: Cut, options: Options) -> Estimate:
    """Return the waste of a random epoch: exact mean; the interval holds one epoch in 95 % of all orders."""
    size, rows = options.batch_size, seen.known
    value = _smooth_waste(rows, size)
    slots = rows.tokens / (1 - value)
    half = NORMAL * (1 - value) * batching.epoch_spread(rows, size) / slots
    method = "exact mean over random orders; the interval holds the waste of one epoch"
    if known.replicates:
        sampled = half_width(known, replicated_waste(known, options))
        half = (half**2 + sampled**2) ** 0.5
        method += f"; from {known.sampled:,} tokenised rows and the characters of all"
    return Estimate(
        value=value, unit="1", low=max(0.0, value - half), high=min(1.0, value + half), n=rows.rows, method=method
    )


def source_table(about: About, known: Counts) -> Table:
    """Return lengths by source, the source with most tokens first."""
    rows: list[tuple[str, int, int, list[int]]] = []
    for number, name in enumerate(about.sources):
        cells = known.cells[(known.cells[:, 0] == number) & (known.cells[:, 1] > 0)]
        if not len(cells):
            continue
        one = batching.Distribution(cells[:, 1], cells[:, 2])
        rows.append((name, one.rows, one.tokens, [*map(one.quantile, QUANTILES), int(cells[-1, 1])]))
    total = sum(tokens for _, _, tokens, _ in rows) or 1
    rows.sort(key=lambda row: (-row[2], row[0]))
    columns = [Column(title="source"), Column(title="rows", unit="count"), Column(title="tokens", unit="1")]
    columns += [Column(title=f"p{100 * share:g}", unit="tokens") for share in QUANTILES]
    caption = "Tokens of a row, before cutting; the column tokens is the share of all."
    if len(rows) > SOURCES_MOST:
        caption += f" {len(rows) - SOURCES_MOST} smaller sources are left out."
    shown: tuple[tuple[Cell, ...], ...] = tuple(
        (name, count, tokens / total, *sizes) for name, count, tokens, sizes in rows[:SOURCES_MOST]
    )
    return Table(
        name="lengths",
        title="Lengths by source",
        columns=(*columns, Column(title="max", unit="tokens")),
        rows=shown,
        caption=caption,
    )


def limit_rows(known: Counts, options: Options) -> list[Point]:
    """Return what each limit costs, at the batch size that was asked for: limits below the longest row, and one's own.

    Without a limit of one's own the longest row is it: nothing is cut.
    """
    lengths, rows = _filled(known)
    longest = int(lengths[-1])
    own = options.max_length or longest
    limits = sorted({*(one for one in LIMITS if one < longest), own, longest})
    return [_point(lengths, rows, options.batch_size, limit, options.multiple, limit == own) for limit in limits]


def size_rows(known: Counts, options: Options) -> list[Point]:
    """Return what each batch size costs, rows cut as asked: usual sizes, and one's own."""
    lengths, rows = _filled(known)
    limit = options.max_length or int(lengths[-1])
    own = options.batch_size
    return [_point(lengths, rows, size, limit, options.multiple, size == own) for size in sorted({*BATCH_SIZES, own})]


def _filled(known: Counts) -> "tuple[Ints, Ints]":
    lengths, rows = known.by_length
    return lengths[lengths > 0], rows[lengths > 0]


def _point(lengths: "Ints", rows: "Ints", size: int, limit: int, multiple: int, own: bool) -> Point:
    one = shortened(lengths, rows, limit, multiple)
    return Point(
        size=size,
        limit=limit,
        lost=max(0.0, 1 - one.tokens / float((lengths * rows).sum())),
        over=float(rows[lengths > limit].sum() / rows.sum()),
        waste=_smooth_waste(one, size),
        worst=int(one.padded[-1]) * min(size, one.rows),
        own=own,
    )


def limit_table(found: Sequence[Point], options: Options, slot_bytes: float) -> Table:
    """Return the sweep over max_length; ``slot_bytes`` is what a slot of the loss takes, 0 where nobody knows."""
    mark = OWN if options.max_length else "← uncut"
    return without_empty(
        Table(
            name="limits",
            title=f"What max_length costs, at batch size {options.batch_size} in random order",
            columns=_heads("max_length|tokens", "tokens lost|1", "rows cut|1", *_COSTS),
            rows=tuple((one.limit, one.lost, one.over, *_costs(one, slot_bytes, mark)) for one in found),
            caption=f"{mark}: the row of this command line. The last limit cuts nothing. The worst batch decides the "
            "memory.",
        ),
    )


def size_table(found: Sequence[Point], options: Options, slot_bytes: float) -> Table:
    """Return the sweep over the batch size."""
    mark = OWN if options.batch_size_given else "← default"
    cut = f"rows cut to {options.max_length:,} tokens" if options.max_length else "no row cut"
    return without_empty(
        Table(
            name="batch_sizes",
            title=f"What the batch size costs, {cut}, in random order",
            columns=_heads("batch size|count", *_COSTS),
            rows=tuple((one.size, *_costs(one, slot_bytes, mark)) for one in found),
            caption=f"{mark}: the row of this command line; --batch-size sets another.",
        ),
    )


_COSTS = ("waste|1", "worst batch|tokens", "its loss at the peak|bytes", "|")


def _costs(one: Point, slot_bytes: float, mark: str) -> tuple[Cell, ...]:
    return one.waste, one.worst, one.worst * slot_bytes or None, mark if one.own else ""


def _heads(*heads: str) -> tuple[Column, ...]:
    parted = (head.partition("|") for head in heads)
    return tuple(Column(title=title, unit=unit) for title, _, unit in parted)


def charts(about: About, known: Counts, limits: Sequence[Point]) -> tuple[Chart, ...]:
    """Return the distribution of lengths by source, and the sweep over max_length."""
    sweep: list[dict[str, Cell]] = []
    for one in limits:
        sweep += [
            {"limit": one.limit, "share": 100 * one.lost, "what": "tokens lost"},
            {"limit": one.limit, "share": 100 * one.waste, "what": "slots wasted"},
        ]
    return (
        Chart(
            name="lengths",
            title="How long rows are",
            mark="line",
            x="length",
            y="share",
            x_title="tokens, log2",
            y_title="% of rows, up to",
            values=tuple(_curve(about, known)),
            color="source",
            caption="Cumulative; the largest sources.",
        ),
        Chart(
            name="limits",
            title="What max_length takes and saves",
            mark="line",
            x="limit",
            y="share",
            x_title="max_length, tokens",
            y_title="%",
            values=tuple(sweep),
            color="what",
        ),
    )


def _curve(about: About, known: Counts) -> Iterator[dict[str, Cell]]:
    import numpy as np

    by_rows = np.bincount(known.cells[:, 0], known.cells[:, 2], minlength=len(about.sources))
    for number in np.argsort(-by_rows, kind="stable")[:5]:
        cells = known.cells[(known.cells[:, 0] == number) & (known.cells[:, 1] > 0)]
        if not len(cells):
            continue
        reached = np.cumsum(cells[:, 2]) / cells[:, 2].sum()
        steps = np.unique(np.searchsorted(reached, np.linspace(0, 1, POINTS)).clip(0, len(cells) - 1))
        for place in steps:
            length = float(np.log2(cells[place, 1]))
            yield {"length": round(length, 4), "share": 100 * float(reached[place]), "source": about.sources[number]}


def notes(about: About, seen: Cut | None, known: Counts) -> Iterator[str]:
    """Say what was skipped, sampled, cut or assumed."""
    yield from about.notes
    if about.skipped_rows:
        yield f"{about.skipped_rows:,} broken rows were left out, among them: {'; '.join(about.skipped)}."
    if known.replicates:
        yield (
            f"{about.tokenised:,} of {about.rows:,} rows were tokenised ({known.sampled:,} at random, the others "
            "because they are the longest by characters); the lengths of the rest are estimated. --full tokenises all."
        )
    if seen is not None and seen.empty:
        yield f"{seen.empty:,} rows hold no token and are left out."
    if seen is not None and seen.cut_rows:
        lost = f"{seen.cut_tokens:,} tokens ({seen.truncated_share:.2%}) are lost"
        yield f"{seen.cut_rows:,} rows are cut to max_length; {lost}."
    if about.padded_rows:
        yield f"{about.padded_rows:,} rows already contain padding; it is not counted, but a collator pads it again."
    if about.unmasked_rows:
        yield f"The loss mask ({about.loss_mask}) marks no token in {about.unmasked_rows:,} rows: they teach nothing."


def nothing(evidence: Evidence, about: About | None, controls: tuple[Control, ...]) -> Report:
    """Return the report of a dataset without a token."""
    import numpy as np

    why = "the dataset was not read" if about is None else "no row holds a token"
    ended = "" if evidence.status == "finished" else f" ({evidence.status})"
    said = tuple(notes(about, None, Counts(np.zeros((0, 3), np.int64)))) if about else ()
    headline = f"not measured: {why}{ended}; name a dataset whose rows hold tokens"
    return unmeasured(evidence, headline, controls=controls, notes=said)
