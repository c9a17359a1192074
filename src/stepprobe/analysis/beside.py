"""What was kept of a job beside its steps: the masks of its first batches, and a few steps under the profiler."""

from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING

import msgspec

from stepprobe.analysis.attention.in_run import run_masks
from stepprobe.analysis.ledger.job import Job
from stepprobe.analysis.trace.window import Window, is_window, window
from stepprobe.errors import UsageError
from stepprobe.model.estimate import Estimate
from stepprobe.model.finding import Control, Finding
from stepprobe.model.report import Chart, Table

if TYPE_CHECKING:
    from stepprobe.analysis.trace.control import Reader


class Beside(msgspec.Struct, frozen=True, kw_only=True):
    """What that adds to a report."""

    wrong: tuple[Finding, ...] = ()
    """Findings about wrong results; they come before every cost."""
    slow: tuple[Finding, ...] = ()
    reason: str = ""
    """Why the job needs a look; empty where it does not."""
    figures: Mapping[str, Estimate] = {}
    ledger: tuple[Table, ...] = ()
    """The device ledger; it stands first."""
    tables: tuple[Table, ...] = ()
    charts: tuple[Chart, ...] = ()
    controls: tuple[Control, ...] = ()
    notes: tuple[str, ...] = ()


def beside(files: Mapping[str, bytes], job: Job, read: "Reader") -> Beside:
    """Derive what lies beside the steps of a job.

    Args:
        files: The evidence.
        job: Its processes; at least one made a step.
        read: The reader of traces, for the known trace that is recovered first.

    Raises:
        EvidenceError: A file is damaged.
        UsageError: There are traces, and numpy is missing.
    """
    traced, recovered = _traced(files, job, read)
    masks = run_masks(files, job.main, traced.attended)
    return Beside(
        wrong=masks.wrong,
        slow=masks.slow,
        reason=masks.reason,
        figures={**masks.figures, **traced.figures},
        ledger=traced.ledger,
        tables=(*masks.tables, *traced.tables),
        charts=traced.charts,
        controls=recovered,
        notes=(*masks.notes, *traced.notes),
    )


def _traced(files: Mapping[str, bytes], job: Job, read: "Reader") -> tuple[Window, tuple[Control, ...]]:
    """Return what the traced steps show, and the known trace that was recovered first."""
    if not is_window(files):
        return window(files, job.ranks), ()
    if find_spec("numpy") is None:
        raise UsageError("the traced steps of this run need numpy; pip install numpy, then: stepprobe report RUN")
    from stepprobe.analysis.trace import control

    recovered = control.recover(read)
    if failed := ", ".join(one.name for one in recovered if not one.ok):
        note = f"trace: not measured, the known trace was not recovered ({failed}); please report this"
        return Window(notes=(note,)), recovered
    return window(files, job.ranks), recovered
