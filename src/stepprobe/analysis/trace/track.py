"""Our accounts as a track: every instant of every step, on each device, in exactly one segment."""

from collections.abc import Iterator

import msgspec

from stepprobe.analysis.trace.causes import observe_host
from stepprobe.analysis.trace.cover import Cover
from stepprobe.analysis.trace.device import devices, layers
from stepprobe.analysis.trace.families import communicate
from stepprobe.analysis.trace.joining import join
from stepprobe.analysis.trace.processes import processes
from stepprobe.analysis.trace.steps import Steps, find_steps
from stepprobe.analysis.trace.validity import believe, is_device
from stepprobe.model.trace import Columns

_REST = "idle.python"


class Segment(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch of one step on one device that one account holds."""

    process: str
    device: str
    step: str
    account: str
    start_ns: int
    """After the trace's origin."""
    end_ns: int


def segments(columns: Columns) -> Iterator[Segment]:
    """Yield the segments of every process, device and step, in order of time."""
    believed = believe(columns)
    for process, rows in processes(columns, believed.rows):
        steps = find_steps(columns, rows)
        joined = join(columns, rows, rows & is_device(columns.kind))
        communicates = communicate(columns, joined.device)
        host = observe_host(columns, rows)
        for device in devices(columns, joined, steps, communicates):
            for account, step, start, end in _stretches(layers(device, host), steps):
                yield Segment(
                    process=process,
                    device=device.name,
                    step=steps.names[step],
                    account=account,
                    start_ns=start,
                    end_ns=end,
                )


def _stretches(layers: list[tuple[str, Cover]], steps: Steps) -> Iterator[tuple[str, int, int, int]]:
    import numpy as np

    edges = np.unique(
        np.concatenate([steps.starts, steps.ends, *(edge for _, one in layers for edge in (one.starts, one.ends))])
    )
    if len(edges) < 2:
        return
    starts, ends = edges[:-1], edges[1:]
    step = steps.at(starts)
    names = [*(account for account, _ in layers), _REST]
    held = np.select([cover.holds(starts) for _, cover in layers], list(range(len(layers))), len(layers))
    starts, ends, step, held = (one[step >= 0] for one in (starts, ends, step, held))
    first = np.ones(len(starts), bool)
    first[1:] = (held[1:] != held[:-1]) | (step[1:] != step[:-1]) | (starts[1:] != ends[:-1])
    last = np.append(first[1:], True)[: len(first)]
    columns = (held[first], step[first], starts[first], ends[last])
    for account, number, start, end in zip(*(one.tolist() for one in columns), strict=True):
        yield names[account], number, start, end
