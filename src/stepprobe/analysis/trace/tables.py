"""Tables and charts of a trace report."""

from collections.abc import Iterator, Sequence
from itertools import islice

import msgspec

from stepprobe.analysis.trace import kernels
from stepprobe.analysis.trace.figures import NS_PER_MS, all_steps
from stepprobe.analysis.trace.kernels import Group
from stepprobe.analysis.trace.ledgers import DeviceStep, together
from stepprobe.analysis.trace.ranks import Ranks, label
from stepprobe.analysis.trace.steps import MARK
from stepprobe.analysis.trace.summary import TraceSummary
from stepprobe.model.device import DEVICE_ACCOUNTS, DEVICE_LABELS, IDLE
from stepprobe.model.report import Cell, Chart, Column, Table

TOP = 15
"""Rows of a kernel table unless another number is asked for."""
STEPS_MOST = 40
MS = "ms"

_GROUP_COLUMNS = (
    Column(title="rows", unit="count"),
    Column(title="sum", unit=MS),
    Column(title="of step", unit="1"),
    Column(title="once", unit="1"),
    Column(title="late", unit="count"),
    Column(title="cost", unit=MS),
)


def tables(summaries: Sequence[TraceSummary], ranks: Ranks | None, top: int = TOP) -> tuple[Table, ...]:
    """Return the tables that have rows."""
    found = [step_table(summaries), *kernel_tables(summaries, top), coverage(summaries), told(summaries)]
    if ranks is not None:
        found += [rank_table(summaries, ranks), meeting_table(ranks, top)]
    if not any(one.devices for one in summaries):
        found.append(host_table(summaries, top))
    return tuple(table for table in found if table.rows)


def step_table(summaries: Sequence[TraceSummary]) -> Table:
    """Return the device ledger step by step."""
    left_out = sum(len(device) for one in summaries for device in one.devices) - STEPS_MOST
    columns = [Column(title="step")]
    columns += [Column(title=title, unit=MS) for title in ("wall", "busy", "launched", "head", "tail")]
    return Table(
        name="steps",
        title="Device ledger by step",
        columns=(*columns, Column(title="overlap", unit="1")),
        rows=tuple(_step_row(name, step) for name, step in islice(step_names(summaries), STEPS_MOST)),
        caption="busy: device rows inside the step. launched: device rows that the step launched, whenever they ran; "
        "equal work shows there. A negative tail: the device ran past the host's end of the step. overlap: part of the "
        "communication that compute hides." + (f" {left_out} more steps are in the figures." if left_out > 0 else ""),
    )


def step_names(summaries: Sequence[TraceSummary]) -> Iterator[tuple[str, DeviceStep]]:
    """Yield every step with a name that tells it from the others: rank and device are said where they differ."""
    devices = {device.device for one in summaries for device in one.devices}
    for place, one in enumerate(summaries):
        rank = f"{label(one, place)} · " if len(summaries) > 1 else ""
        several = len(one.devices) > 1 if rank else len(devices) > 1
        for step in (step for device in one.devices for step in device.steps(one.step_names)):
            name = f"{rank}{step.step.removeprefix(MARK)}" if rank else step.step
            yield f"{name} · device {step.device}" if several else name, step


def _step_row(name: str, step: DeviceStep) -> tuple[Cell, ...]:
    busy = step.wall_ns - sum(step.accounts_ns[account] for account in IDLE)
    parts = (step.wall_ns, busy, step.launched_ns, step.head_ns, step.tail_ns)
    overlap = step.hidden_ns / step.communication_ns if step.communication_ns else None
    return (name, *(part / NS_PER_MS for part in parts), overlap)


def kernel_tables(summaries: Sequence[TraceSummary], top: int) -> list[Table]:
    """Return the device rows by name, family, phase, operation and module."""
    wall, steps = _walls(summaries)
    by_name = kernels.merge([one.by_name for one in summaries])
    modules = [one.by_module for one in summaries if one.by_module]
    once = (
        "of step: the sum over the steps' wall. once: the same with each microsecond of the device counted once. late: "
        "launch-bound rows, before which the device stood still because their launch came late; cost: for how long."
    )
    parts = (
        ("kernels", "Device rows by name", by_name, once),
        ("families", "Device rows by family", kernels.merge([one.by_family for one in summaries]), "By kernel name."),
        (
            "phases",
            "Device rows by pass",
            kernels.merge([one.by_phase for one in summaries]),
            "By the launching operation.",
        ),
        (
            "operations",
            "Device rows by operation",
            kernels.merge([one.by_op for one in summaries]),
            _conserved(summaries),
        ),
        ("modules", "Device rows by module", kernels.merge(modules), "Innermost module; backward by sequence number."),
    )
    return [
        _group_table(name, title, groups, (wall, steps, top), caption)
        for name, title, groups, caption in parts
        if groups
    ]


def _walls(summaries: Sequence[TraceSummary]) -> tuple[int, int]:
    """Return the wall time and the number of all steps that have a device ledger."""
    steps = all_steps(summaries)
    return int(steps.column("wall").sum()), len(steps)


def _conserved(summaries: Sequence[TraceSummary]) -> str:
    summed = sum(one.naive.device_ns for one in summaries)
    return f"Over all steps the sums make all {summed / NS_PER_MS:,.3f} ms of device rows, linked or not."


def _group_table(name: str, title: str, groups: tuple[Group, ...], sizes: tuple[int, int, int], caption: str) -> Table:
    wall, steps, top = sizes
    shown, rest = groups[:top], groups[top:]
    if rest:
        summed = kernels.merge([tuple(_relabelled(one, f"({len(rest)} more)") for one in rest)])
        shown = (*shown, *summed)
    rows: list[tuple[Cell, ...]] = []
    for one in shown:
        numbers = (one.count / max(1, steps), one.total_ns / NS_PER_MS / max(1, steps), one.total_ns / max(1, wall))
        late = (one.exclusive_ns / max(1, wall), one.late / max(1, steps), one.waited_ns / NS_PER_MS / max(1, steps))
        rows.append((readable(one.label), *numbers, *late))
    columns = (Column(title=_SINGULAR[name]), *_GROUP_COLUMNS)
    span = f"Rows and ms are per traced step and device, mean of {steps:,}."
    return Table(name=name, title=title, columns=columns, rows=tuple(rows), caption=f"{span} {caption}")


_SINGULAR = {
    "kernels": "kernel",
    "families": "family",
    "phases": "pass",
    "operations": "operation",
    "modules": "module",
}


def readable(name: str) -> str:
    """Return a kernel's name without what all C++ names share: its result, its parameters, its outer namespaces."""
    name = name.removeprefix("void ").replace("(anonymous namespace)::", "").replace("at::native::", "")
    depth = 0
    for place, character in enumerate(name):
        if character == "(" and depth == 0 and name[max(0, place - 1)] not in " (":
            return name[:place]
        depth += {"<": 1, "(": 1, ">": -1, ")": -1}.get(character, 0)
    return name


def _relabelled(one: Group, name: str) -> Group:
    return msgspec.structs.replace(one, label=name)


def coverage(summaries: Sequence[TraceSummary]) -> Table:
    """Return what came of the join, each outcome with its share; always printed when there are device rows."""
    total = sum(one.kernels + one.copies for one in summaries)
    summed = sum(one.naive.device_ns for one in summaries)
    if not total:
        return Table(name="coverage", title="", columns=(), rows=())
    rows: list[tuple[Cell, ...]] = []
    for outcome in summaries[0].outcomes:
        count = sum(one.outcomes[outcome][0] for one in summaries)
        spent = sum(one.outcomes[outcome][1] for one in summaries)
        rows.append((outcome, count, count / total, spent / NS_PER_MS, spent / max(1, summed)))
    agree, differ, equal = (
        sum(getattr(one.naive, name) for one in summaries) for name in ("agree", "differ", "equals_correlation")
    )
    said = f"External id names the same operation for {agree:,} rows and another for {differ:,}"
    if equal == total:
        said = "External id is the correlation in every row: another id space, of no use for a join"
    columns = (Column(title="device rows"), Column(title="rows", unit="count"), Column(title="of rows", unit="1"))
    return Table(
        name="coverage",
        title="How device rows were joined to the host",
        columns=(*columns, Column(title="sum", unit=MS), Column(title="of time", unit="1")),
        rows=tuple(rows),
        caption=f"Joined by correlation and by the operation that contains the launch. As a check, {said}.",
    )


def told(summaries: Sequence[TraceSummary]) -> Table:
    """Return the ways to add up the same device time, right and wrong."""
    summed = sum(one.naive.device_ns for one in summaries)
    again = sum(one.naive.again_ns for one in summaries)
    annotations = sum(one.naive.annotation_ns for one in summaries)
    union = sum(one.busy_ns for one in summaries)
    wall, _ = _walls(summaries)
    ways = [
        ("step wall", wall, "the denominator of every share here"),
        ("union of device rows", union, "busy time"),
        ("sum of device rows", summed, "the footer of key_averages(): counts overlapping streams twice"),
        ("key_averages(): operation rows alone", again, "misses what External id does not link"),
        ("key_averages(): operation and device rows", summed + again, "counts each linked row twice"),
        ("key_averages(): annotation rows, too", summed + again + annotations, "and annotations once more"),
    ]
    operations = any(one.naive.operations for one in summaries)
    rows = (
        tuple((way, spent / NS_PER_MS, spent / summed, why) for way, spent, why in ways)
        if summed and operations
        else ()
    )
    columns = (Column(title="sum"), Column(title="total", unit=MS), Column(title="× device rows", unit=""))
    return Table(
        name="naive",
        title="What key_averages() would have told you",
        columns=(*columns, Column(title="what it counts")),
        rows=rows,
        caption="Over the whole trace, all devices and ranks.",
    )


def rank_table(summaries: Sequence[TraceSummary], ranks: Ranks) -> Table:
    """Return the ranks side by side."""
    rows: list[tuple[Cell, ...]] = []
    for place, one in enumerate(summaries):
        ledger = together(one.devices)
        steps = max(1, len(ledger))
        wall, idle = int(ledger.column("wall").sum()), int(ledger.idle.sum())
        bare = int(ledger.column("communication").sum())
        waits = ranks.waited(place) / NS_PER_MS / steps if ranks.meetings else None
        numbers = (wall / NS_PER_MS / steps, (wall - idle) / max(1, wall), bare / NS_PER_MS / steps)
        meetings: tuple[Cell, ...] = (waits, ranks.last(place), ranks.offsets_ns[place] / NS_PER_MS)
        rows.append((ranks.labels[place], *numbers, *meetings))
    columns = [Column(title="rank"), Column(title="wall", unit=MS), Column(title="busy", unit="1")]
    columns += [Column(title=title, unit=MS) for title in ("bare", "waits")]
    columns += [Column(title="last", unit="count"), Column(title="clock", unit=MS)]
    return Table(
        name="ranks",
        title="Ranks",
        columns=tuple(columns),
        rows=tuple(rows),
        caption="ms per step. bare: communication that compute does not hide. waits: for the last rank, in collectives "
        "that all share; the straggler waits least. last: how often it came last. clock: against the first rank, from "
        "the ends of those collectives.",
    )


def meeting_table(ranks: Ranks, top: int) -> Table:
    """Return the collectives in which most time was waited."""
    dearest = sorted(ranks.meetings, key=lambda one: (-sum(one.waits_ns), one.name, one.number))[:top]
    rows = tuple(
        (
            readable(one.name),
            one.number + 1,
            ranks.labels[one.straggler],
            max(one.waits_ns) / NS_PER_MS,
            ranks.labels[one.waits_ns.index(max(one.waits_ns))],
            sum(one.waits_ns) / len(one.waits_ns) / NS_PER_MS,
            one.spread_ns / NS_PER_MS,
        )
        for one in dearest
    )
    columns = (Column(title="collective"), Column(title="no.", unit="count"), Column(title="last"))
    waits = (Column(title="longest", unit=MS), Column(title="waited"), Column(title="mean", unit=MS))
    return Table(
        name="collectives",
        title="Collectives by wait",
        columns=(*columns, *waits, Column(title="apart", unit=MS)),
        rows=rows,
        caption="Waits in ms. apart: latest minus earliest end after the clocks are aligned.",
    )


def host_table(summaries: Sequence[TraceSummary], top: int) -> Table:
    """Return the host's operations by their own time, for traces without a device."""
    found: dict[str, list[int]] = {}
    for row in (row for one in summaries for row in one.host):
        sums = found.setdefault(row.name, [0, 0])
        sums[0] += row.count
        sums[1] += row.own_ns
    wall = sum(wall for one in summaries for wall in one.step_walls_ns)
    steps = max(1, sum(len(one.step_walls_ns) for one in summaries))
    dearest = sorted(found.items(), key=lambda item: (-item[1][1], item[0]))[:top]
    rows = tuple((name, count / steps, own / NS_PER_MS / steps, own / max(1, wall)) for name, (count, own) in dearest)
    columns = (Column(title="operation"), Column(title="rows", unit="count"), Column(title="own", unit=MS))
    return Table(
        name="host",
        title="Operations of the host by their own time",
        columns=(*columns, Column(title="of step", unit="1")),
        rows=rows,
        caption=f"Rows and times are per traced step, mean of {steps:,}, which the profiler makes longer than others; "
        "times are without the operations inside them. Several threads may run beside each other.",
    )


def charts(summaries: Sequence[TraceSummary], ranks: Ranks | None) -> tuple[Chart, ...]:
    """Return the ledger step by step as a stacked chart, and the ranks' waits."""
    found = [_steps_chart(summaries)]
    if ranks is not None and ranks.meetings:
        found.append(_waits_chart(ranks))
    return tuple(chart for chart in found if chart.values)


def _steps_chart(summaries: Sequence[TraceSummary]) -> Chart:
    values: list[dict[str, Cell]] = []
    for name, step in islice(step_names(summaries), STEPS_MOST):
        for account in DEVICE_ACCOUNTS:
            if spent := step.accounts_ns[account]:
                values.append({"step": name, "account": DEVICE_LABELS[account], "ms": spent / NS_PER_MS})
    return Chart(
        name="device_steps",
        title="The device in each step",
        mark="stacked",
        x="step",
        y="ms",
        x_title="step",
        y_title="ms",
        values=tuple(values),
        color="account",
        caption="Every nanosecond of a step's wall time in exactly one account.",
    )


def _waits_chart(ranks: Ranks) -> Chart:
    waits: list[dict[str, Cell]] = [
        {"rank": name, "ms": ranks.waited(place) / NS_PER_MS} for place, name in enumerate(ranks.labels)
    ]
    return Chart(
        name="rank_waits",
        title="What each rank waits for the last one",
        mark="stacked",
        x="rank",
        y="ms",
        x_title="rank",
        y_title="ms in all collectives",
        values=tuple(waits),
        caption="The rank that waits least is the straggler.",
    )
