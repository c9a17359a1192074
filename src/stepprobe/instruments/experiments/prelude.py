"""What is written before the first measurement: the ceilings of the machine, and the arithmetic of the model."""

from collections.abc import Iterable, Iterator
from typing import Any

from stepprobe.instruments.experiments.flop_counter import count_flops, structure
from stepprobe.instruments.experiments.limits import measure_limits


def prelude(
    torch: Any, root: Any, shapes: "Iterable[tuple[int, int]]", attention: "str | None" = None, autocast: str = ""
) -> "Iterator[tuple[str, dict[str, Any]]]":
    """Yield kind and fields of the lines ``limit``, ``structure`` and, for each shape, ``counted``.

    Args:
        torch: The user's torch.
        root: The module that the step calls.
        shapes: (Rows, slots) of the micro-steps whose FLOPs are counted; two lengths at least, so that a model whose
            arithmetic is not known can be told at any shape.
        attention: Attention implementation of the step; None for what the config says.
        autocast: Element type of autocast in the step, if there is any.
    """
    weight = next(iter(root.parameters()), None)
    device = "cpu" if weight is None else weight.device
    dtype = "float32" if weight is None else str(weight.dtype).rpartition(".")[2]
    for line in measure_limits(torch, device, dtype, (autocast,) if autocast else ()):
        yield "limit", line
    yield "structure", structure(torch, root, attention, autocast)
    for rows, length in dict.fromkeys(shapes):
        yield "counted", count_flops(torch, root, rows, length)
