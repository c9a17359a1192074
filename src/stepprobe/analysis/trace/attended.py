"""The most that attention itself takes of a step that the host computes: what a change to its mask can save."""

from collections.abc import Sequence

from stepprobe.analysis.trace.figures import NS_PER_MS
from stepprobe.analysis.trace.summary import TraceSummary
from stepprobe.model.estimate import Estimate

KERNEL = "scaleddotproduct"
"""In the name of every operation of PyTorch's attention, forward and backward, without its underscores."""
HIDING = ("scaleddotproductattentionmath", "compiled")
"""In the names of operations that hide attention: its products one by one, or what a compiler put together."""
BESIDE = ("copy_", "clone", "expand", "fill_", "masked_fill", "masked_fill_", "sum", "where")
"""Operations that spread heads and masks before the kernel and gather gradients behind it, and others of the kind."""


def attended(summaries: Sequence[TraceSummary], steady_ms: float) -> Estimate | None:
    """Return ms per step that attention's kernels take, with all that may belong to them; None where a trace hides it.

    It is a ceiling: operations in other places are counted that only may be attention's, and the profiler makes each
    longer. Where the traced steps were the faster ones all the same, it grows with the others.

    Args:
        summaries: The trace of one process.
        steady_ms: Wall time of its steps without the profiler.
    """
    rows = [row for one in summaries for row in one.host]
    walls = [wall for one in summaries for wall in one.step_walls_ns]
    plain = {row.name: row.name.lower().replace("_", "") for row in rows}
    hidden = any(part in name for name in plain.values() for part in HIDING)
    if hidden or any(one.kernels for one in summaries) or not any(KERNEL in name for name in plain.values()):
        return None
    spent = sum(row.own_ns for row in rows if KERNEL in plain[row.name] or row.name.removeprefix("aten::") in BESIDE)
    steps, under = len(walls), sum(walls) / NS_PER_MS
    if not under:
        return None
    return Estimate(
        value=spent / NS_PER_MS / steps * max(1.0, steady_ms * steps / under),
        unit="ms",
        n=steps,
        method="attention's kernels in the traced steps, with every copy, sum and fill that may belong to them",
    )
