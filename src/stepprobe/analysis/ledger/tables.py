"""Tables and charts of a run's report."""

import math
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from stepprobe.analysis.ledger.attribution import PARTS
from stepprobe.analysis.ledger.process import NS_PER_MS, Process
from stepprobe.analysis.ledger.tokens import TokenRate, framework_rates, token_rates
from stepprobe.model.accounts import BACKWARD, LABELS
from stepprobe.model.report import Cell, Chart, Column, Table

ALIKE = 1e-4
"""Relative difference below which two rates read the same."""
ROWS_MOST = 25
"""Rows of a table; a caption says what was left out."""
SAMPLED_LINES = 12
"""Rows of the table of samples: below, single samples by the dozen."""
POINTS_MOST = 1500
"""Points of the chart; above, neighbours are drawn as their mean and their slowest."""

WAITING = (*BACKWARD, "sync")
"""Accounts in which a rank waits for the others: gradients are exchanged inside the backward pass."""
NOT_OWN = (*WAITING, "unattributed")


def run_tables(process: Process, ranks: Sequence[Process]) -> tuple[Table, ...]:
    """Return the tables that have rows."""
    found = token_rates(process, ranks)
    tables = (
        rates(found),
        framework(process, found),
        syncs(process),
        samples(process),
        shapes(process),
        compare_ranks(process, ranks),
    )
    return tuple(table for table in tables if table.rows)


def _table(name: str, title: str, columns: Sequence[str], rows: Sequence[Sequence[Cell]], caption: str = "") -> Table:
    """Columns are given as ``title`` or ``title|unit``; rows come most expensive first."""
    shown = tuple(tuple(row) for row in rows[:ROWS_MOST])
    if len(rows) > ROWS_MOST:
        caption = f"{caption} {len(rows) - ROWS_MOST} more rows are left out.".strip()
    parted = (column.partition("|") for column in columns)
    return Table(
        name=name,
        title=title,
        columns=tuple(Column(title=head, unit=unit) for head, _, unit in parted),
        rows=shown,
        caption=caption,
    )


def rates(found: Sequence[TokenRate]) -> Table:
    """Return the three token rates; a rate that is the one before it, to the digit that is read, is left out."""
    known = [rate for rate in found if rate.per_step and rate.per_second]
    columns: list[tuple[str, list[float]]] = [
        ("per second", [rate.per_second.value for rate in known if rate.per_second]),
        ("training only", [rate.training_per_second for rate in known]),
        ("over the whole run", [rate.run_per_second for rate in known]),
    ]
    kept = [columns[0]]
    kept += [column for before, column in pairwise(columns) if not _alike(before[1], column[1])]
    per_step = [rate.per_step.value for rate in known if rate.per_step]
    rows = list(zip([rate.kind for rate in known], per_step, *(values for _, values in kept), strict=True))
    caption = "; ".join(f"{rate.kind}: {rate.method}" for rate in found if not rate.missing)
    if any(title == "training only" for title, _ in kept):
        caption += "; training only: without evaluation and saving"
    titles = ("kind", "per step|tokens", *(f"{title}|tokens" for title, _ in kept))
    return _table("rates", "Token rates", titles, rows, caption)


def _alike(before: Sequence[float], after: Sequence[float]) -> bool:
    return all(math.isclose(one, other, rel_tol=ALIKE) for one, other in zip(before, after, strict=True))


def framework(process: Process, found: Sequence[TokenRate]) -> Table:
    """Return what the framework logged about speed, beside our own."""
    rows = [(one.name, one.theirs, one.ours, one.ratio, one.meaning) for one in framework_rates(process, found)]
    columns = ("logged as", "theirs", "ours", "ratio", "what ours is")
    return _table("framework", "The framework's own numbers", columns, rows, "Ratio: theirs over ours.")


def syncs(process: Process) -> Table:
    """Return the lines that make the host wait for results."""
    sites = process.records.sites.syncs if process.records.sites else []
    found: dict[tuple[str, str], tuple[float, float]] = {}  # a line may make a call at several places
    for place, operation, calls, timed, spent in sites:
        known = found.get((place, operation), (0.0, 0.0))
        found[place, operation] = known[0] + calls, known[1] + sync_ns(calls, timed, spent)
    rows = [(*where, calls / process.sited, ns / NS_PER_MS / process.sited) for where, (calls, ns) in found.items()]
    rows.sort(key=lambda row: (-row[3], row[0]))
    caption = "Over all steps, warm-up included; where only some calls were timed, the rest are taken to cost the same."
    return _table(
        "syncs", "Synchronising calls", ("where", "operation", "calls per step|count", "time|ms"), rows, caption
    )


def sync_ns(calls: int, timed: int, spent_ns: int) -> float:
    """Return the time of all calls of a site, from those that were timed."""
    return spent_ns / timed * calls if timed else 0.0


def samples(process: Process) -> Table:
    """Return the sampled lines by account: the user's own where one was on the stack, else the innermost.

    Steps without detail book a pass whole, so a line may have been sampled in a pass and in its parts: those are one.
    """
    sites = process.records.sites
    fell: Counter[tuple[str, str]] = Counter()
    for account, user, inner, count in sites.samples if sites else ():
        fell[account, process.place(user, inner) or inner] += count
    for account, line in list(fell):
        whole = next((whole for whole, parts in PARTS.items() if account in parts), "")
        if (whole, line) in fell:
            fell[whole, line] += fell.pop((account, line))
    taken = fell.total()
    rows = [
        (LABELS.get(account, account), line, count, count / taken)
        for (account, line), count in fell.most_common(SAMPLED_LINES)
    ]
    caption = f"{taken} samples of the training thread, in {len(fell)} places."
    return _table("samples", "Where the samples fell", ("account", "line", "samples|count", "share|1"), rows, caption)


def shapes(process: Process) -> Table:
    """Return the batch shapes."""
    rows = sorted(process.records.sites.shapes, key=lambda one: -one[1]) if process.records.sites else []
    return _table("shapes", "Batch shapes", ("shape", "micro-batches|count"), rows)


def compare_ranks(process: Process, ranks: Sequence[Process]) -> Table:
    """Return all ranks side by side, over the same steps."""
    if len(ranks) < 2:
        return _table("ranks", "Ranks", (), ())
    rows = [
        (
            rank.rank,
            rank.wall.value,
            rank.wall.value - rank.account(*NOT_OWN).value,
            rank.account(*BACKWARD).value,
            rank.account("sync").value,
            rank.account("unattributed").value,
            rank.counter("slots").value,
            rank.counter("real").value,
        )
        for rank in sorted(ranks, key=lambda rank: rank.rank)
    ]
    columns = (
        "rank",
        "wall|ms",
        "own work|ms",
        "backward, waiting included|ms",
        "sync|ms",
        "unattributed|ms",
        "slots|tokens",
        "real|tokens",
    )
    return _table("ranks", "Ranks", columns, rows, "The rank that holds the others up is the one that waits least.")


def run_charts(process: Process) -> tuple[Chart, ...]:
    """Return the wall time over the steps."""
    steps = process.finished
    width = -(-len(steps) // POINTS_MOST)
    values: list[dict[str, Cell]] = []
    for start in range(0, len(steps), max(1, width)):
        group = steps[start : start + width]
        walls = [step.wall_ns / NS_PER_MS for step in group]
        phase = "warm-up" if start < process.warmup else "steady"
        values.append({"step": group[0].index, "wall": sum(walls) / len(walls), "phase": phase})
        if width > 1:
            values.append({"step": group[walls.index(max(walls))].index, "wall": max(walls), "phase": "slowest"})
    caption = f"Each point is the mean of {width} steps; the slowest of them beside it." if width > 1 else ""
    if not values:
        return ()
    return (
        Chart(
            name="steps",
            title="Wall time of each step",
            mark="line",
            x="step",
            y="wall",
            x_title="step",
            y_title="ms",
            values=tuple(values),
            color="phase",
            caption=caption,
        ),
    )
