"""The least time of each account of the ledger on this machine, and what is left above it."""

from collections import Counter
from collections.abc import Mapping, Sequence
from math import prod

from stepprobe.analysis.ledger.process import Process
from stepprobe.analysis.limits.ceilings import Ceiling, Floor, Work, floor
from stepprobe.analysis.limits.model_flops import ModelFlops
from stepprobe.model.accounts import ACCOUNTS, LABELS
from stepprobe.model.estimate import Estimate
from stepprobe.model.report import Cell, Column, Table

BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}
MOMENTS = {"Adam": 7, "AdamW": 7, "SGD": 3}
"""Optimizer → times that an element is read or written for each weight: weight, gradient, state."""
WAITING = ("data.wait", "data.fetch", "data.collate", "data.start", "sync", "logging", "callbacks", "gc")
"""Accounts that another set-up can take out of the step altogether: their floor is zero."""
UNKNOWN = "work not known"
"""Said of an account of which only the calls were counted: its floor is no measure of what it must take."""
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
    rows, below = list[tuple[Cell, ...]](), []
    least = above = 0.0
    known = False
    for account in ACCOUNTS:
        spent = process.account(account).value
        work = works.get(account, Work())
        found = Floor(0.0, "none needed") if account in WAITING else floor(work, ceilings)
        if not spent or not found.bound:
            continue
        if account not in WAITING and not (work.flops or work.bytes):
            rows.append((LABELS[account], spent, found.ms, UNKNOWN, None))
            continue
        known = known or account not in WAITING
        recoverable = max(0.0, spent - found.ms)
        if found.ms > spent:
            below.append(f"{LABELS[account]} ({spent:.3g} ms, floor {found.ms:.3g} ms)")
        least += min(found.ms, spent)
        above += recoverable
        rows.append((LABELS[account], spent, found.ms, found.bound, recoverable))
    unknown = [str(row[0]) for row in rows if row[-1] is None]
    figures = _sums(least, above, len(rows) - len(unknown)) if known else {}
    titles = (("account", ""), ("ledger", "ms"), ("floor", "ms"), ("bound by", ""), ("recoverable", "ms"))
    table = Table(
        name="floors",
        title="Each account against what this machine needs for it",
        columns=tuple(Column(title=title, unit=unit) for title, unit in titles),
        rows=tuple(rows),
        caption="Floor: the longest of FLOPs over the product ceiling, bytes over the copy ceiling, operators times "
        "the dispatch floor. Recoverable is a ceiling, not a promise. Accounts without a known floor are left out. "
        "Time that others take from the thread lies above the floors, too." + _unknown_words(unknown),
    )
    notes = [f"faster than their floor, so the floor is not one there (caches): {', '.join(below)}"] if below else []
    if unknown and not known:
        notes.append("recoverable.step is not told: the work of no account of forward and backward is known")
    return figures, table, tuple(notes)


def _sums(least: float, above: float, accounts: int) -> dict[str, Estimate]:
    method = "sum over accounts whose work is known; each at most its own time"
    return {
        "floor.step": Estimate(value=least, unit="ms", n=accounts, method=method),
        "recoverable.step": Estimate(value=above, unit="ms", n=accounts, method=f"time above the floor, {method}"),
    }


def _unknown_words(accounts: Sequence[str]) -> str:
    if not accounts:
        return ""
    return (
        f" {UNKNOWN.capitalize()} (FLOPs and bytes of {', '.join(accounts)}): their floor is that of calling their "
        "operators alone, and says nothing about what could be recovered."
    )
