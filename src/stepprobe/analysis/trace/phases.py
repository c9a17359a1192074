"""In which pass, and in which module, an operation ran."""

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from stepprobe.analysis.trace.cover import Cover
from stepprobe.analysis.trace.joining import NOTHING, PLACE, Join, chosen, nest
from stepprobe.analysis.trace.names import named, names_with
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
_RECOMPUTING = re.compile("recompute_fn|unpack_hook|checkpoint_recompute")


def phases(columns: Columns, joined: Join, rows: "Mask") -> "tuple[Ints, Ints]":
    """Return the phase of each device row, and the place in ``joined.ops`` of the autograd node it ran under."""
    import numpy as np

    nodes = names_with(columns, joined.ops, _NODE.match)
    checkpoints = names_with(columns, joined.ops, lambda name: _CHECKPOINT in name)
    root = _nearest(nodes[columns.name[joined.ops]], joined.parent)
    owner = joined.owner
    node = chosen(root, owner)
    inside = node != NOTHING
    recomputed = np.zeros(len(owner), bool)
    recomputed[inside] = checkpoints[columns.name[joined.ops[node[inside]]]]
    launch = columns.start[joined.launch]
    recomputed |= inside & _cover(columns, rows & (columns.kind == PYTHON), _RECOMPUTING.search).holds(launch)
    annotated = rows & (columns.kind == ANNOTATION)
    optimizing = _cover(columns, annotated, lambda name: name.startswith(_OPTIMIZER)).holds(launch) & ~inside
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
    python = rows & (columns.kind == PYTHON)
    calls = np.flatnonzero(named(columns, python, lambda name: name.startswith(MODULE)))
    if not len(calls):
        return None
    direct = _module_at(columns, calls, columns.thread[joined.launch], columns.start[joined.launch])
    direct[joined.owner == NOTHING] = NOTHING
    forward = _forward_of(columns, joined, phase, node)
    through = _module_at(columns, calls, columns.thread[forward], columns.start[forward])
    through[forward == NOTHING] = NOTHING
    module = np.where(direct == NOTHING, through, direct)
    labels = [*(name.removeprefix(MODULE) for name in names), "(no module)"]
    return np.where(module == NOTHING, np.int32(len(names)), columns.name[module]), labels


def _nearest(marked: "Mask", parent: "Ints") -> "Ints":
    """Return, for each operation, the nearest marked one among itself and those that contain it, or NOTHING."""
    import numpy as np

    own = np.arange(len(parent), dtype=PLACE)
    pointer = np.where(marked | (parent == NOTHING), own, parent)
    while True:
        further = pointer[pointer]
        if np.array_equal(further, pointer):
            return np.where(marked[pointer], pointer, NOTHING).astype(PLACE)
        pointer = further


def _forward_of(columns: Columns, joined: Join, phase: "Ints", node: "Ints") -> "Ints":
    """Return, for each device row under an autograd node, the forward operation with the node's sequence number."""
    import numpy as np

    ops = joined.ops
    backward = names_with(columns, ops, _NODE.match)
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
        found[here] = chosen(mine, place)
    return found


def _cover(columns: Columns, rows: "Mask", wanted: Callable[[str], object]) -> Cover:
    """Return when a row with a wanted name ran."""
    mine = named(columns, rows, wanted)
    starts = columns.start[mine]
    return Cover(starts, starts + columns.duration[mine])
