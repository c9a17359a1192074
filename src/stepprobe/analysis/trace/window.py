"""The few steps of a run that were traced: the device's ledger, or the host's operations where there is no device.

Everything here is about steps under the profiler, which are slower than the others and in no mean of the run. So it
stands in tables and figures of its own.
"""

from collections.abc import Mapping, Sequence

import msgspec

from stepprobe.analysis.ledger.process import Process
from stepprobe.analysis.statistics import Blocks
from stepprobe.analysis.trace import tables
from stepprobe.analysis.trace.attended import attended
from stepprobe.analysis.trace.figures import all_steps, figures, ledger
from stepprobe.analysis.trace.ranks import Ranks, compare, ordered
from stepprobe.analysis.trace.report import unread
from stepprobe.analysis.trace.reservations import notes
from stepprobe.analysis.trace.steps import MARK
from stepprobe.analysis.trace.summary import TraceSummary, summarise
from stepprobe.model.device import DEVICE_LABELS
from stepprobe.model.estimate import Estimate
from stepprobe.model.report import Chart, Column, Table
from stepprobe.model.trace import SUFFIX, decode_columns

ROWS = 10
"""Rows of a table; ``stepprobe trace`` on the same file shows more."""
MORE = "stepprobe trace on the trace in the run folder tells more."


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """What the traced steps add to the report of a run."""

    attended: Estimate | None = None
    """ms per step that attention itself takes at most, on the host of the first process; None where that is hidden."""
    figures: dict[str, Estimate] = {}
    ledger: tuple[Table, ...] = ()
    """The device ledger, where there is a device: it stands first, beside that of the host."""
    tables: tuple[Table, ...] = ()
    charts: tuple[Chart, ...] = ()
    notes: tuple[str, ...] = ()


def is_window(files: Mapping[str, bytes]) -> bool:
    """Return whether evidence of a run holds columns of a trace."""
    return any(name.endswith(SUFFIX) for name in files)


def window(files: Mapping[str, bytes], ranks: Sequence[Process]) -> Window:
    """Derive what the traces of a run's processes show.

    Args:
        files: The evidence.
        ranks: One process per rank; the first is the one whose ledger is shown.

    Raises:
        EvidenceError: A file is damaged.
    """
    of_ranks = [_summaries(files, process) for process in ranks]
    summaries = ordered([one for found in of_ranks for one in found])
    if not summaries:
        return Window(notes=(*unread(files), *_unfinished(files, ranks)))
    between = compare(summaries) if len(summaries) > 1 else None
    on_device = any(one.kernels or one.copies for one in summaries)
    said = notes(summaries, between, foreign=False)
    return Window(
        attended=attended(of_ranks[0], ranks[0].wall.value) if of_ranks[0] else None,
        figures=figures(summaries, between) | _event_figures(ranks),
        ledger=(_ledger_table(summaries),) if on_device else (),
        tables=_device_tables(summaries, between) if on_device else _host_tables(summaries),
        charts=tables.charts(summaries, between) if on_device else (),
        notes=(
            *unread(files),
            _slower(summaries, ranks[0]),
            *(f"trace: {note}" for note in said),
            *([] if on_device else _unseen(ranks)),
        ),
    )


def _summaries(files: Mapping[str, bytes], process: Process) -> list[TraceSummary]:
    name = f"{_stem(process)}{SUFFIX}"
    return summarise(decode_columns(name, files[name])) if name in files else []


def _stem(process: Process) -> str:
    return f"trace-rank{process.rank}-pid{process.records.header.pid}"


def _unfinished(files: Mapping[str, bytes], ranks: Sequence[Process]) -> list[str]:
    """Say why there is no trace, where the process could not say it itself."""
    wanted = [one for one in ranks if "window.first" in one.facts]
    if not wanted or any(name.startswith(_stem(one)) for one in wanted for name in files):
        return []
    if any("no trace" in note for one in wanted for note in one.records.notes):
        return []
    if any(step.aside == "profiler" for one in wanted for step in one.aside):
        return ["no trace: one was begun, but the process ended before it was written"]
    return [f"no trace: the training ended before step {wanted[0].facts['window.first']}, where one was to begin"]


def _slower(summaries: Sequence[TraceSummary], process: Process) -> str:
    walls = [wall / 1e6 for one in summaries for wall in one.step_walls_ns]
    under = sum(walls) / len(walls)
    numbers = ", ".join(name.removeprefix(f"{MARK}#") for name in summaries[0].step_names)
    steady = process.wall.value
    return (
        f"trace: {len(summaries[0].step_names)} steps ({numbers}) ran under torch.profiler, {under:,.3g} ms each, "
        f"{under / steady:.0%} of a steady step ({steady:,.3g} ms). The figures trace.* and the tables made of them "
        "are about those steps alone"
    )


def _event_figures(ranks: Sequence[Process]) -> dict[str, Estimate]:
    """Return the time between the marks that were put on the device's own clock between the steps."""
    words = " ".join(str(process.facts.get("window.event_ms", "")) for process in ranks).split()
    if not words:
        return {}
    mean = Blocks([1] * len(words)).mean([float(word) for word in words])
    method = "CUDA events between traced steps: the device's own clock, idle time included"
    return {"trace.event_step": Estimate(value=mean.value, unit="ms", n=len(words), method=method)}


def _unseen(ranks: Sequence[Process]) -> list[str]:
    """Say that the profiler saw nothing of a device on which a kernel was run for it."""
    if not any(process.facts.get("window.known_kernel") for process in ranks):
        return []
    return [
        "trace: the profiler did not see the device: not even the kernel that was launched to test it is in the trace "
        "(CUPTI needs permission, and no other tool that holds it). So there is no device ledger; trace.event_step is "
        "a step on the device's own clock"
    ]


def _device_tables(summaries: Sequence[TraceSummary], ranks: Ranks | None) -> tuple[Table, ...]:
    named = {table.name: table for table in tables.tables(summaries, ranks, ROWS)}
    wanted = ("steps", "families", "kernels", "operations", "ranks", "collectives", "coverage")
    return tuple(_renamed(named[name]) for name in wanted if name in named)


def _renamed(table: Table) -> Table:
    """Return a table under a name and a title that no table of the host has."""
    title = f"Ranks in the trace, {MORE}" if table.name == "ranks" else table.title
    return msgspec.structs.replace(table, name=f"trace_{table.name}", title=title)


def _ledger_table(summaries: Sequence[TraceSummary]) -> Table:
    steps = all_steps(summaries)
    rows = tuple((DEVICE_LABELS[row.account], row.time.value, row.share) for row in ledger(steps))
    columns = (Column(title="account"), Column(title="time", unit="ms"), Column(title="of step", unit="1"))
    return Table(
        name="device_ledger",
        title="Device ledger",
        columns=columns,
        rows=rows,
        caption=f"ms per traced step and device, mean of {len(steps)}; the rows sum to the step. The host is slower "
        f"under the profiler, so idle times in which the device waits for it are upper ends. {MORE}",
    )


def _host_tables(summaries: Sequence[TraceSummary]) -> tuple[Table, ...]:
    table = tables.host_table(summaries, ROWS)
    if not table.rows:
        return ()
    title = "Operations on the host, under the profiler"
    return (msgspec.structs.replace(table, name="trace_host", title=title, caption=f"{table.caption} {MORE}"),)
