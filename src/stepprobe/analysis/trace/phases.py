"""In which pass, and in which module, an operation ran."""

import re
from typing import TYPE_CHECKING

from stepprobe.analysis.trace.cover import Cover, empty
from stepprobe.analysis.trace.joining import NOTHING, Join, nest
from stepprobe.model.trace import ANNOTATION, PYTHON, Columns

if TYPE_CHECKING:
    from stepprobe.model.trace import Ints, Mask

PHASES = ("forward", "backward", "recompute", "optimizer", "(not linked)")
FORWARD, BACKWARD, RECOMPUTE, OPTIMIZER, UNLINKED = range(5)

MODULE = "nn.Module: "
"""How the profiler names the Python row of a module's call."""
_NODE = re.compile(r"autograd::engine::evaluate_function|\w+Backward\d*$")
"""Names of autograd nodes; traces before torch 1.9 have the second form only."""
_CHECKPOINT = "CheckpointFunctionBackward"
_OPTIMIZER = "Optimizer.step#"
_RECOMPUTING = ("recompute_fn", "unpack_hook", "checkpoint_recompute")


def phases(columns: Columns, joined: Join, rows: "Mask") -> "tuple[Ints, Ints]":
    """Return the phase of each device row, and the place in ``joined.ops`` of the autograd node it ran under."""
    import numpy as np

    names = columns.header.names
    nodes = np.array([_NODE.match(name) is not None for name in names] or [False])
    checkpoints = np.array([_CHECKPOINT in name for name in names] or [False])
    root = _nearest(nodes[columns.name[joined.ops]], joined.parent)
    owner = joined.owner
    node = np.where(owner == NOTHING, NOTHING, root[owner] if len(root) else NOTHING)
    inside = node != NOTHING
    recomputed = np.zeros(len(owner), bool)
    recomputed[inside] = checkpoints[columns.name[joined.ops[node[inside]]]]
    launch = columns.start[joined.launch]
    recomputed |= inside & _python(columns, rows, _RECOMPUTING).holds(launch)
    optimizing = _annotated(columns, rows).holds(launch) & ~inside
    phase = np.select(
        [owner == NOTHING, recomputed, inside, optimizing], [UNLINKED, RECOMPUTE, BACKWARD, OPTIMIZER], FORWARD
    )
    return phase, node


def modules(
    columns: Columns, joined: Join, rows: "Mask", phase: "Ints", node: "Ints"
) -> "tuple[Ints, list[str]] | None":
    """Return the module of each device row as a place in a list of labels; None where the trace has no module rows.

    A backward row belongs to the module that called the forward operation of the same autograd node.
    """
    import numpy as np

    names = columns.header.names
    wanted = [number for number, name in enumerate(names) if name.startswith(MODULE)]
    calls = (
        np.flatnonzero(rows & (columns.kind == PYTHON) & np.isin(columns.name, wanted))
        if wanted
        else np.empty(0, "<i8")
    )
    if not len(calls):
        return None
    direct = _module_at(columns, calls, columns.thread[joined.launch], columns.start[joined.launch])
    direct[joined.owner == NOTHING] = NOTHING
    forward = _forward_of(columns, joined, phase, node)
    through = _module_at(columns, calls, columns.thread[forward], columns.start[forward])
    through[forward == NOTHING] = NOTHING
    module = np.where(direct == NOTHING, through, direct)
    labels = [*(name.removeprefix(MODULE) for name in names), "(no module)"]
    return np.where(module == NOTHING, len(names), columns.name[module]), labels


def _nearest(marked: "Mask", parent: "Ints") -> "Ints":
    """Return, for each operation, the nearest marked one among itself and those that contain it, or NOTHING."""
    import numpy as np

    own = np.arange(len(parent))
    pointer = np.where(marked | (parent == NOTHING), own, parent)
    while True:
        further = pointer[pointer]
        if np.array_equal(further, pointer):
            return np.where(marked[pointer], pointer, NOTHING) if len(pointer) else pointer
        pointer = further


def _forward_of(columns: Columns, joined: Join, phase: "Ints", node: "Ints") -> "Ints":
    """Return, for each device row under an autograd node, the forward operation with the node's sequence number."""
    import numpy as np

    ops = joined.ops
    backward = np.array([_NODE.match(name) is not None for name in columns.header.names] or [False])
    forward = ops[~backward[columns.name[ops]] & (columns.sequence[ops] > NOTHING)]
    numbers, first = np.unique(columns.sequence[forward], return_index=True)
    found = np.full(len(node), NOTHING)
    inside = np.flatnonzero((node != NOTHING) & (phase == BACKWARD))
    if not len(numbers) or not len(inside):
        return found
    sought = columns.sequence[ops[node[inside]]]
    place = np.minimum(np.searchsorted(numbers, sought), len(numbers) - 1)
    hit = numbers[place] == sought
    found[inside[hit]] = forward[first[place[hit]]]
    return found


def _module_at(columns: Columns, calls: "Ints", threads: "Ints", times: "Ints") -> "Ints":
    """Return the innermost module call on a thread at a time, for each pair, or NOTHING."""
    import numpy as np

    found = np.full(len(times), NOTHING)
    for thread in np.unique(columns.thread[calls]).tolist():
        mine = calls[columns.thread[calls] == thread]
        here = np.flatnonzero(threads == thread)
        here = here[np.argsort(times[here], kind="stable")]
        starts = columns.start[mine]
        _, place = nest(starts, starts + columns.duration[mine], times[here])
        found[here] = np.where(place == NOTHING, NOTHING, mine[place])
    return found


def _python(columns: Columns, rows: "Mask", words: tuple[str, ...]) -> Cover:
    import numpy as np

    named = [number for number, name in enumerate(columns.header.names) if any(word in name for word in words)]
    if not named:
        return empty()
    mine = rows & (columns.kind == PYTHON) & np.isin(columns.name, named)
    return Cover(columns.start[mine], columns.start[mine] + columns.duration[mine])


def _annotated(columns: Columns, rows: "Mask") -> Cover:
    import numpy as np

    named = [number for number, name in enumerate(columns.header.names) if name.startswith(_OPTIMIZER)]
    mine = rows & (columns.kind == ANNOTATION) & np.isin(columns.name, named)
    return Cover(columns.start[mine], columns.start[mine] + columns.duration[mine])
