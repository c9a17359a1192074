"""What a reader of ``key_averages()`` would have added up, and how far ``External id`` can be trusted."""

from typing import TYPE_CHECKING

import msgspec

from stepprobe.analysis.trace.joining import NOTHING, Join
from stepprobe.model.trace import ANNOTATION, DEVICE_ANNOTATION, OP, Columns

if TYPE_CHECKING:
    from stepprobe.model.trace import Mask


class Naive(msgspec.Struct, frozen=True, kw_only=True):
    """Sums in ns, and counts of rows."""

    device_ns: int
    """Sum of the device rows: what is right to add up."""
    again_ns: int
    """The part of it that the profiler also writes on operations, found by ``External id``."""
    annotation_ns: int
    """Sum of the annotations' device rows, which are no device time."""
    operations: int
    """Operation rows in the trace; without them there is nothing to count twice."""
    agree: int
    """Device rows for which ``External id`` names the operation that contains the launch."""
    differ: int
    """Device rows for which it names another one."""
    equals_correlation: int
    """Device rows whose ``External id`` is just their correlation: another id space."""


def naive_sums(columns: Columns, joined: Join, rows: "Mask") -> Naive:
    """Return them for one process."""
    import numpy as np

    noted = np.flatnonzero(rows & ((columns.kind == OP) | (columns.kind == ANNOTATION)) & (columns.external > 0))
    ids, first = np.unique(columns.external[noted], return_index=True)
    device, external = joined.device, columns.external[joined.device]
    duration = columns.duration[device]
    op = np.full(len(device), NOTHING)
    if len(ids):
        place = np.minimum(np.searchsorted(ids, external), len(ids) - 1)
        op = np.where((ids[place] == external) & (external > 0), noted[first[place]], NOTHING)
    both = (op != NOTHING) & (joined.op != NOTHING)
    same = both & ((op == joined.op) | (columns.name[op] == columns.name[joined.op]))
    annotations = rows & (columns.kind == DEVICE_ANNOTATION)
    return Naive(
        device_ns=int(duration.sum()),
        again_ns=int(duration[op != NOTHING].sum()),
        annotation_ns=int(columns.duration[annotations].sum()),
        operations=len(joined.ops),
        agree=int(same.sum()),
        differ=int((both & ~same).sum()),
        equals_correlation=int(((external > 0) & (external == columns.correlation[device])).sum()),
    )
