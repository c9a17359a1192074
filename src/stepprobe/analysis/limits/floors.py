"""The least time of each account of the ledger on this machine, and what is left above it."""

from collections import Counter
from collections.abc import Mapping
from math import prod

from stepprobe.analysis.ledger.process import Process
from stepprobe.analysis.limits.ceilings import Ceiling, Floor, Work, floor
from stepprobe.analysis.limits.model_flops import ModelFlops
from stepprobe.model.accounts import ACCOUNTS, LABELS
from stepprobe.model.estimate import Estimate
from stepprobe.model.report import Column, Table

BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}
MOMENTS = {"Adam": 7, "AdamW": 7, "SGD": 3}
"""Optimizer → times that an element is read or written for each weight: weight, gradient, state."""
WAITING = ("data.wait", "data.fetch", "data.collate", "data.start", "sync", "logging", "callbacks", "gc")
"""Accounts that another set-up can take out of the step altogether: their floor is zero."""
Shapes = Mapping[tuple[int, int], float]
"""(Rows, slots) of a micro-batch → how many of them an optimizer step has."""


def works(model: ModelFlops, shapes: Shapes, process: Process, dtype: str) -> dict[str, Work]:
    """Return what each account has to do in an optimizer step, at least."""
    flops: Counter[str] = Counter()
    for (rows, length), count in shapes.items():
        for product in model.products(rows, length, "real") or ():
            flops[f"forward.{product.part}"] += round(count * product.forward)
            flops[f"backward.{product.part}"] += round(count * product.backward)
            if model.structure is not None and model.structure.checkpointing and product.layer >= 0:
                flops["recompute"] += round(count * product.forward)
    moved = _bytes(model, shapes, process, BYTES.get(dtype, 2))
    operators = _operators(model, sum(shapes.values()))
    names = {*flops, *moved, *operators}
    return {name: Work(flops[name], moved.get(name, 0.0), operators.get(name, 0.0)) for name in names}


def _bytes(model: ModelFlops, shapes: Shapes, process: Process, width: int) -> dict[str, float]:
    """Return bytes that have to move: embeddings, norms and logits once each way, and the optimizer's state."""
    decoder, structure = model.decoder, model.structure
    if decoder is None or structure is None:
        return {}
    tokens = sum(rows * length * count for (rows, length), count in shapes.items())
    stream = tokens * decoder.hidden * width
    norms = 2 * len(decoder.layers) + 1
    trained = sum(prod(weight.shape) * len(weight.trained) for weight in structure.weights)
    logits = tokens * decoder.vocabulary * width
    return {
        "forward.embed": 2.0 * stream,
        "forward.norm": 2.0 * norms * stream,
        "backward.norm": 3.0 * norms * stream,
        "forward.loss": logits,
        "backward.loss": logits,
        "clip": trained * width,
        "optimizer": trained * width * MOMENTS.get(str(process.facts.get("optimizer", "")), 3),
    }


def _operators(model: ModelFlops, micro_steps: float) -> dict[str, float]:
    """Return operators by account; not attention's, which was counted in an implementation of more operators."""
    counts = model.counts[0].operators if model.counts else {}
    return {
        f"forward.{part}": count * micro_steps for part, count in counts.items() if part not in ("attention", "other")
    }


def floor_table(
    process: Process, works: Mapping[str, Work], ceilings: Mapping[str, Ceiling | None]
) -> tuple[dict[str, Estimate], Table, tuple[str, ...]]:
    """Return the accounts against their floors: each nanosecond of the ledger stands in one account, so in one line."""
    rows, below = [], []
    least = above = 0.0
    for account in ACCOUNTS:
        spent = process.account(account).value
        found = Floor(0.0, "none needed") if account in WAITING else floor(works.get(account, Work()), ceilings)
        if not spent or not found.bound:
            continue
        recoverable = max(0.0, spent - found.ms)
        if found.ms > spent:
            below.append(f"{LABELS[account]} ({spent:.3g} ms, floor {found.ms:.3g} ms)")
        least += min(found.ms, spent)
        above += recoverable
        rows.append((LABELS[account], spent, found.ms, found.bound, recoverable))
    method = "sum over accounts with a known floor; each at most its own time"
    figures = {
        "floor.step": Estimate(value=least, unit="ms", n=len(rows), method=method),
        "recoverable.step": Estimate(value=above, unit="ms", n=len(rows), method=f"time above the floor, {method}"),
    }
    titles = (("account", ""), ("ledger", "ms"), ("floor", "ms"), ("bound by", ""), ("recoverable", "ms"))
    table = Table(
        name="floors",
        title="Each account against what this machine needs for it",
        columns=tuple(Column(title=title, unit=unit) for title, unit in titles),
        rows=tuple(rows),
        caption="Floor: the longest of FLOPs over the product ceiling, bytes over the copy ceiling, operators times "
        "the dispatch floor. Recoverable is a ceiling, not a promise. Accounts without a known floor are left out. "
        "Time that others take from the thread lies above the floors, too.",
    )
    notes = (f"faster than their floor, so the floor is not one there (caches): {', '.join(below)}",) if below else ()
    return figures, table, notes
