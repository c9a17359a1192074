"""What the machine can do at most and what the model has to compute, written before and between the measurements."""

from collections.abc import Callable, Sequence
from typing import Any

from stepprobe.instruments.experiments.bench import Bench
from stepprobe.instruments.experiments.limits import burst
from stepprobe.instruments.experiments.loss import autocast_of
from stepprobe.instruments.experiments.plan import Point
from stepprobe.instruments.experiments.prelude import prelude


def write_first(bench: Bench, shapes: Sequence[Point]) -> None:
    """Write the ceilings of the machine, the structure of the model, and its FLOPs at some shapes."""
    rows, length = shapes[0]
    try:
        root = bench.harness.root()
        cast = str(_autocast(bench, root, shapes[0]) or "").rpartition(".")[2]
        for kind, line in prelude(bench.torch, root, shapes, autocast=cast):
            bench.journal.write(kind, {name: value for name, value in line.items() if name != "type"})
    except (
        Exception
    ) as error:  # a model or a device of a kind that is not known here; the step can be timed all the same
        text = f"{type(error).__name__}: {error}"[:300]
        bench.journal.write("counted", {"rows": rows, "length": length, "flops": {}, "failure": text})
    bench.release()


def bursts(bench: Bench) -> Callable[[int], None]:
    """Return what times one burst of matrix products at the end of a block, where the machine can."""
    try:
        weight = next(iter(bench.harness.root().parameters()))
        timed = burst(bench.torch, weight.device, str(weight.dtype).rpartition(".")[2])
    except Exception:  # the first look at the ceilings has said why
        return lambda _: None

    def write(block: int) -> None:
        bench.journal.write("limit", {name: value for name, value in timed(block).items() if name != "type"})

    return write


def _autocast(bench: Bench, root: Any, shape: Point) -> Any:
    """Run one step, and return the element type of autocast in it."""
    found: list[Any] = []
    handle = root.register_forward_pre_hook(lambda *_: found.append(autocast_of(bench.torch, bench.machine.kind)))
    try:
        bench.harness.step(bench.harness.batch(*shape))
    finally:
        handle.remove()
    return found[0] if found else None
