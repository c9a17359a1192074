"""The figures of a trace report, and its ledger. Denominators are the steps' wall time, never a kernel window."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from stepprobe.analysis.ledger.process import estimate
from stepprobe.analysis.statistics import Blocks
from stepprobe.analysis.trace.ledgers import DeviceSteps, together
from stepprobe.analysis.trace.ranks import Ranks
from stepprobe.analysis.trace.summary import TraceSummary
from stepprobe.model.device import DEVICE_ACCOUNTS
from stepprobe.model.estimate import Estimate, exact
from stepprobe.model.ledger import LedgerRow

if TYPE_CHECKING:
    from stepprobe.model.trace import Ints

NS_PER_MS = 1e6
_CARRIED = "carried over"
_LINKED = "linked to an operation"

Figures = dict[str, Estimate]


def figures(summaries: Sequence[TraceSummary], ranks: Ranks | None) -> Figures:
    """Return every figure that these traces can give; what they cannot is absent."""
    walls = [wall for one in summaries for wall in one.step_walls_ns]
    blocks = Blocks([1] * len(walls))
    method = "mean of the steps that the host marked"
    if not all(one.marked for one in summaries):
        method = "the trace marks no step: its whole length"
    found = {
        "trace.step_wall": estimate(blocks.mean([wall / NS_PER_MS for wall in walls]), "ms", method),
        "trace.steps": exact(
            sum(len(one.step_walls_ns) for one in summaries if one.marked), "steps", len(walls), "marked"
        ),
        "trace.kernels": exact(
            sum(one.kernels for one in summaries), "count", 1, "kernel rows; copies are not among them"
        ),
        "trace.events": exact(sum(one.events for one in summaries), "count", 1, "events in the files"),
        "trace.ranks": exact(len(summaries), "count", 1, "processes in the files"),
    }
    if spent := sum(one.read_cpu_ns for one in summaries):
        speed = sum(one.text_bytes for one in summaries) * 1e3 / spent
        found["trace.read_mb_per_cpu_s"] = exact(speed, "MB/s", len(summaries), "JSON text by CPU second of reading")
    if any(one.data_rows for one in summaries):
        data = sum(one.data_ns for one in summaries)
        count = len(walls)
        found["trace.dataloader"] = exact(
            data / NS_PER_MS / count, "ms", count, "union of DataLoader rows in the steps"
        )
        found["trace.dataloader_share"] = exact(data / sum(walls), "1", count, "the same over the steps' wall")
    if any(one.devices for one in summaries):
        found |= _step_figures(all_steps(summaries)) | _row_figures(summaries)
    if ranks is not None and ranks.meetings:
        found |= _rank_figures(summaries, ranks)
    return found


def all_steps(summaries: Sequence[TraceSummary]) -> DeviceSteps:
    """Return every step of these traces, on every device."""
    return together(device for one in summaries for device in one.devices)


def _mean(blocks: Blocks, spent: "Ints", method: str) -> Estimate:
    """Return ms per step and device, with the interval that blocks of steps give."""
    return estimate(blocks.mean((spent / NS_PER_MS).tolist()), "ms", method, None)


def _step_figures(steps: DeviceSteps) -> Figures:
    blocks, wall, idle = Blocks([1] * len(steps)), steps.column("wall"), steps.idle
    shares = {
        "busy_share": (wall - idle, "union of device rows over step wall"),
        "idle_share": (idle, "step wall without device rows, over step wall"),
    }
    means = {
        "head": "from a step's start to the first device row in it",
        "tail": "from a step's last device row to its end; − : ran past it",
        "launched": "union of the device rows that a step launched",
    }
    walls = wall.tolist()
    found = {
        f"trace.{name}": estimate(blocks.ratio(spent.tolist(), walls), "1", method)
        for name, (spent, method) in shares.items()
    }
    found |= {f"trace.{name}": _mean(blocks, steps.column(name), method) for name, method in means.items()}
    for account in DEVICE_ACCOUNTS:
        found[f"trace.device.{account}"] = _mean(blocks, steps.column(account), "union in steps")
    if communicated := int(steps.column("communicated").sum()):
        method = "part of the communication's union beside which compute runs"
        hidden = int(steps.column("hidden").sum())
        found["trace.comm_overlap_share"] = exact(hidden / communicated, "1", len(steps), method)
    return found


def _row_figures(summaries: Sequence[TraceSummary]) -> Figures:
    rows = sum(one.kernels + one.copies for one in summaries)
    summed = sum(one.naive.device_ns for one in summaries) or 1
    again = sum(one.naive.again_ns for one in summaries)
    annotations = sum(one.naive.annotation_ns for one in summaries)
    found = {
        name: exact(
            sum(one.outcomes[outcome][1] for one in summaries) / summed, "1", rows, f"device rows {outcome}, by time"
        )
        for name, outcome in (("trace.linked_share", _LINKED), ("trace.carried_over_share", _CARRIED))
    }
    linked = sum(one.outcomes[_LINKED][0] for one in summaries)
    found["trace.linked_rows_share"] = exact(linked / rows, "1", rows, f"device rows {_LINKED}, by count")
    found["trace.sum_over_union"] = exact(
        summed / max(1, sum(one.busy_ns for one in summaries)), "1", rows, "sum of device rows over their union"
    )
    if any(one.naive.operations for one in summaries):
        method = "operation rows plus device rows over device rows, as key_averages() lists both"
        found["trace.double_count_factor"] = exact((summed + again) / summed, "1", rows, method)
        total = summed + again + annotations
        found["trace.naive_factor"] = exact(total / summed, "1", rows, "the same with annotation rows")
    return found


def _rank_figures(summaries: Sequence[TraceSummary], ranks: Ranks) -> Figures:
    waits = [ranks.waited(place) for place in range(len(summaries))]
    steps = sum(len(one.step_walls_ns) for one in summaries)
    communicated = sum(row.duration_ns for one in summaries for row in one.collectives) or 1
    straggler = min(range(len(waits)), key=lambda place: (waits[place], place))
    count = len(ranks.meetings)
    return {
        "trace.rank_wait": exact(sum(waits) / NS_PER_MS / steps, "ms", count, "wait for the last rank, mean of ranks"),
        "trace.rank_wait_share": exact(sum(waits) / communicated, "1", count, "the same over communication rows"),
        "trace.straggler": exact(float(straggler), "count", count, "place (from 0) of the rank that waits least"),
    }


def ledger(steps: DeviceSteps) -> tuple[LedgerRow, ...]:
    """Return the device ledger as ms per step and device; its rows sum to the step's wall time."""
    wall = int(steps.column("wall").sum())
    if not wall:
        return ()
    rows, blocks = [], Blocks([1] * len(steps))
    for account in DEVICE_ACCOUNTS:
        column = steps.column(account)
        if spent := int(column.sum()):
            time = _mean(blocks, column, "mean of steps, unions")
            rows.append(LedgerRow(account=account, time=time, share=spent / wall, off_cpu=None))
    return tuple(rows)
