"""The tables of the mask probe: layers, kernels by card, assertions."""

from collections import Counter

from stepprobe.analysis.attention.answer import Answer
from stepprobe.analysis.attention.assertions import Assertion
from stepprobe.analysis.attention.findings import places
from stepprobe.analysis.attention.kernels import CARDS, CONFIRMED, RULES, SHOWN
from stepprobe.analysis.attention.views import View
from stepprobe.model.attention import ONE_SHORT
from stepprobe.model.report import Cell, Column, Table


def groups(told: Answer) -> list[list[View]]:
    """Return like layers together, in order of the first of each kind."""
    found: dict[tuple[object, ...], list[View]] = {}
    for view in told.views:
        call = view.call
        key = (call.module, call.api, call.query, call.key, call.value, call.mask, call.is_causal, call.gqa,
               view.layer.kind, view.layer.size)  # fmt: skip
        found.setdefault(key, []).append(view)
    return list(found.values())


def layer_table(told: Answer) -> Table:
    """Return one line for each group of like layers."""
    rows = [_layer_row(told, views) for views in groups(told)]
    others = Counter(layer.kind for layer in told.capture.layers if not layer.attention)
    rows += [(count, kind, "", "no mask", "–", "twin", "–") for kind, count in others.items()]
    columns = ("layers", "attention", "query", "sees", "should see", "right", f"kernel on {told.card.name}")
    return Table(
        name="layers",
        title="Attention, one line for each group of like layers",
        columns=tuple(Column(title=title, unit="" if place else "count") for place, title in enumerate(columns)),
        rows=tuple(rows),
        caption=f"Batch: {_batch(told)}. “twin” in the column right: the mask cannot be read, the small model decides.",
    )


def _layer_row(told: Answer, views: list[View]) -> tuple[Cell, ...]:
    view, call = views[0], views[0].call
    choice = view.choice(told.card)
    right = {True: "yes", False: "NO", None: "twin"}[view.right]
    mask = f"{call.mask_dtype} mask" if call.mask else "is_causal" if call.is_causal else "no mask"
    shape = f"{call.query[1]}x{call.query[3]}" + (f" kv {call.kv_heads}" if call.kv_heads != call.query[1] else "")
    why = f" ({choice.why})" if choice.why and not choice.fast else ""
    return (len(views), f"{call.api}, {mask}", shape, view.found, view.wanted, right, f"{choice.kernel}{why}")


def kernel_table(told: Answer) -> Table:
    """Return the kernel of each group of layers on every card."""
    rows = []
    for views in groups(told):
        kernels = [views[0].choice(CARDS[name]).kernel for name in SHOWN]
        rows.append((places(views).partition(" (")[0].removeprefix("layers "), *kernels))
    confirmed = f"confirmed for {', '.join(CONFIRMED)}" if CONFIRMED else "predicted; no GPU has confirmed them yet"
    return Table(
        name="kernels",
        title="Kernel on each card",
        columns=(Column(title="layers"), *(Column(title=name) for name in SHOWN)),
        rows=tuple(rows),
        caption=f"Rules of {RULES}, {confirmed} (bench/gpu/sdpa_grid.py). t4, v100: float16 (no bfloat16).",
    )


def assertion_table(asked: tuple[Assertion, ...]) -> Table:
    """Return the fourteen assertions."""
    words = {True: "yes", False: "NO", None: "not asked"}
    return Table(
        name="assertions",
        title="Asserted",
        columns=(Column(title="", unit="count"), Column(title="claim"), Column(title="holds"), Column(title="seen")),
        rows=tuple((one.number, one.claim, words[one.holds], one.seen) for one in asked),
        caption="9, and 12 for a learned mask, cost time only; every other NO makes the command fail.",
    )


def _batch(told: Answer) -> str:
    batch = told.capture.batch
    cache = {None: "use_cache not passed", True: "use_cache=True", False: "use_cache=False"}[batch.use_cache]
    made = " (made to ask: one row a quarter short)" if batch.kind in ONE_SHORT else ""
    return f"{batch.size} x {batch.length:,} tokens, padding {batch.kind}{made}, {cache}"
