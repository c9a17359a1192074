"""How far from the limits of its machine a step runs: model FLOPs, MFU and HFU, ceilings, and what is recoverable.

MFU: model FLOPs (forward and twice that for the backward, nothing twice) over time and the measured ceiling. HFU: the
FLOPs that are executed, with scores that a kernel computes again and layers that checkpointing runs twice. The headline
counts the pairs that the mask lets through; the full square, which counters report, stands beside it. All of these take
every slot as work, padding among them; ``mfu.real`` counts the tokens alone.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from stepprobe.analysis.ledger.job import Job
from stepprobe.analysis.ledger.process import NS_PER_MS, Process
from stepprobe.analysis.ledger.shapes import rectangles
from stepprobe.analysis.limits.ceilings import (
    CLOCKS,
    Ceiling,
    Clock,
    ceiling,
    ceiling_table,
    clock_of,
    limit_figures,
)
from stepprobe.analysis.limits.floors import Shapes, floor_table, works
from stepprobe.analysis.limits.flops import total
from stepprobe.analysis.limits.model_flops import ModelFlops, model_flops
from stepprobe.analysis.limits.real_tokens import Rows, rows_of
from stepprobe.analysis.statistics import Blocks, Mean
from stepprobe.model.estimate import Estimate, exact
from stepprobe.model.experiments import Counted, ExperimentRecord, Harness, Limit, Measured, Structure
from stepprobe.model.report import Column, Table

Found = tuple[dict[str, Estimate], tuple[Table, ...], tuple[str, ...]]
CONVENTIONS = {
    "mfu": (
        "model FLOPs of all slots, padding among them; pairs the mask lets through",
        "all slots, padding among them",
    ),
    "mfu.real": ("model FLOPs of the real tokens counted a step, in rows like those seen", "real tokens alone"),
    "mfu.square": (
        "model FLOPs of all slots, padding among them; every query with every key",
        "all slots, full square",
    ),
    "hfu": ("executed FLOPs of all slots: what is computed again counts again", "all slots, as executed"),
}
"""Figure → the words for what it counts, in full and for a table; the first one is the headline."""


@dataclass(frozen=True)
class _Read:
    """The lines that matter here."""

    harness: Harness | None
    model: ModelFlops
    limits: tuple[Limit, ...]
    measured: tuple[Measured, ...]
    clock: Clock
    dtype: str
    """Element type that matrix products are computed in."""


def efficiency(records: Sequence[ExperimentRecord], job: Job | None, settings: Mapping[str, str]) -> Found:
    """Return figures, tables (the ceilings first) and notes.

    Args:
        records: Lines of the experiments of one process.
        job: The same job's own steps; None where none was observed, then there is no figure per step.
        settings: The report's environment, as ``analysis.ledger.settings.settings`` gives it.
    """
    read = _read(records, settings)
    ceilings = {kind: ceiling(read.limits, kind, read.clock) for kind in ("copy", "dispatch")}
    ceilings["matmul"] = ceiling(read.limits, "matmul", read.clock, read.dtype)
    figures, remarks = limit_figures(ceilings)
    notes = [*remarks, *read.model.notes]
    tables = [ceiling_table(read.limits, read.clock)] if read.limits else []
    figures |= _micro_step(read, notes)
    process = job.main if job is not None and job.ranks else None
    shapes = step_shapes(process) if process is not None else {}
    if process is None or not shapes:
        notes.append("no micro-batch of a step was seen: FLOPs and MFU of a step are not told")
        return figures, (*tables, *_layer_tables(read, {})), tuple(notes)
    rows, why = rows_of(read.harness, process)
    notes += [why] if why else []
    counted = _per_step(read.model, shapes, rows)
    if rows is not None and counted["mfu.real"] is None:
        notes.append("mfu.real is not told: the FLOPs of rows of other lengths than those counted are not known")
    told, table = _utilisation(read, process, counted, ceilings["matmul"], notes)
    figures |= told
    tables += [table, *_layer_tables(read, shapes)]
    if read.clock == "device":
        notes.append("floors stand against time on the card, which the host's ledger does not hold: see the trace")
        return figures, tuple(tables), tuple(notes)
    floors, table, remarks = floor_table(process, works(read.model, shapes, process, read.dtype), ceilings)
    return figures | floors, (*tables, table), (*notes, *remarks)


def step_shapes(process: Process) -> Shapes:
    """Return how many micro-batches of each shape an optimizer step has, on average over the run."""
    counts: dict[tuple[int, int], float] = {}
    for rows, slots, count in rectangles(process):
        counts[rows, slots] = counts.get((rows, slots), 0) + count
    micro_steps = process.counter("micro_steps").value or process.counter("backwards").value
    whole = sum(counts.values())
    return {shape: count / whole * micro_steps for shape, count in counts.items()} if whole and micro_steps else {}


def _read(records: Sequence[ExperimentRecord], settings: Mapping[str, str]) -> _Read:
    harness = next((record for record in records if isinstance(record, Harness)), None)
    structure = next((record for record in records if isinstance(record, Structure)), None)
    limits = tuple(record for record in records if isinstance(record, Limit))
    dtype = (structure.autocast if structure else "") or (harness.dtype if harness else "")
    measured = {limit.dtype for limit in limits if limit.kind == "matmul"}
    return _Read(
        harness=harness,
        model=model_flops(structure, [record for record in records if isinstance(record, Counted)]),
        limits=limits,
        measured=tuple(record for record in records if isinstance(record, Measured)),
        clock=clock_of(harness.device.partition(":")[0], harness.threads) if harness else "wall",
        dtype=dtype.removeprefix("torch.")
        if dtype.removeprefix("torch.") in measured or not measured
        else min(measured),
    )


def _per_step(model: ModelFlops, shapes: Shapes, seen: Rows | None) -> dict[str, float | None]:
    """Return FLOPs of an optimizer step by convention."""
    real = None if seen is None else model.of_rows(seen.tokens)
    return {
        "mfu": _summed(shapes, lambda rows, length: model.model(rows, length, "real")),
        "mfu.real": None if seen is None or real is None else real * seen.times,
        "mfu.square": _summed(shapes, lambda rows, length: model.model(rows, length, "square")),
        "hfu": _summed(shapes, model.executed),
    }


def _summed(shapes: Shapes, flops: Callable[[int, int], int | None]) -> float | None:
    """Return the FLOPs of all shapes; None where those of one are not known."""
    parts = [(count, flops(*shape)) for shape, count in shapes.items()]
    known = [count * part for count, part in parts if part is not None]
    return sum(known) if len(known) == len(parts) else None


def _utilisation(
    read: _Read, process: Process, counted: Mapping[str, float | None], peak: Ceiling | None, notes: list[str]
) -> tuple[dict[str, Estimate], Table]:
    """Return FLOPs, MFU and HFU of an optimizer step."""
    figures: dict[str, Estimate] = {}
    headline = "mfu" if counted["mfu"] is not None else "mfu.square"
    if (flops := counted[headline]) is not None:
        words = f"{CONVENTIONS[headline][0]}; {read.model.source}"
        figures["flops.per_step"] = exact(flops, "FLOP", process.measured, words)
    mean = process.cpu if read.clock == "thread" else process.wall
    within = "attention within each row" if read.model.decoder else "every query with every key of its row"
    rows = []
    for name, (words, short) in CONVENTIONS.items():
        words = f"{words}; {within}" if name == "mfu.real" else words
        amount = counted[name]
        share = amount / (mean.value / 1e3 * peak.rate) if amount and peak and mean.value else None
        refused = share is not None and share > 1
        if share is not None and not refused:
            figures[name] = _share(share, mean, f"{words}; over {_step_clock(read.clock)} and limit.matmul_flops")
        if refused:
            notes.append(_refusal(name, share or 0.0, counted))
        marked = " (headline)" if name == headline else ""
        rows.append((name + marked, short, None if amount is None else amount / 1e9, None if refused else share))
    table = Table(
        name="flops",
        title="FLOPs of an optimizer step, by convention",
        columns=(
            Column(title="figure"),
            Column(title="counts"),
            Column(title="GFLOP"),
            Column(title="of the ceiling", unit="1"),
        ),
        rows=tuple(rows),
        caption=f"FLOPs: {read.model.source}. {_base(read.clock, mean, peak)}A share above 100 % is not shown: it "
        "cannot be.",
    )
    return figures, table


def _base(clock: Clock, mean: Mean, peak: Ceiling | None) -> str:
    """Say over which time, which need not be the step's wall time, the shares of the ceiling are taken."""
    if peak is None:
        return ""
    return f"Of the ceiling: over {mean.value:,.4g} ms ({_step_clock(clock)}) × {peak.rate / 1e9:,.4g} GFLOP/s. "


def _share(share: float, mean: Mean, method: str) -> Estimate:
    """Return a share of the ceiling; it is as sure as the time of the step."""
    low, high = (mean.value / end if end else None for end in (mean.high, mean.low))
    return Estimate(
        value=share,
        unit="1",
        low=None if low is None else share * low,
        high=None if high is None else min(1.0, share * high),
        n=mean.n,
        method=method,
    )


def _step_clock(clock: Clock) -> str:
    """Return what of a step counts as its time: a card's work is over when the step is."""
    return f"{CLOCKS['thread'] if clock == 'thread' else CLOCKS['wall']} of the step"


def _refusal(name: str, share: float, counted: Mapping[str, float | None]) -> str:
    """Say why a share above 100 % is not told, and which mistake of convention it looks like."""
    real, square = counted["mfu"], counted["mfu.square"]
    text = f"{name} would be {share:.0%} and is refused: no step computes faster than the ceiling. "
    if name == "mfu.square" and real and square:
        return text + (
            f"The full square counts {square / real:.2f} times the FLOPs that the mask needs, and the kernel skips the "
            "rest: quote mfu"
        )
    if name == "hfu":
        return text + "The attention kernel or checkpointing computes less again than the convention says"
    return text + (
        "Either the ceiling was measured on a busy machine or in another element type (see the spread of the "
        "ceilings), or the step does less than is counted: rows of the head without a label that the loss skips, "
        "documents that do not see each other"
    )


def _micro_step(read: _Read, notes: list[str]) -> dict[str, Estimate]:
    """Return MFU of micro-steps against bursts of the same block: what it is worth on a machine that others use."""
    bursts = [one for one in read.limits if one.block is not None and one.dtype == read.dtype]
    peak = ceiling(bursts, "matmul", read.clock)
    beside = {one.block for one in bursts}
    shares = []
    for one in (one for one in read.measured if one.experiment == "scaling" and one.block in beside):
        flops = read.model.model(one.rows, one.length, "real") or read.model.model(one.rows, one.length, "square")
        spent = {"device": one.device_ns or one.wall_ns, "thread": one.thread_ns, "wall": one.wall_ns}[read.clock]
        if flops and spent and peak:
            shares.append(flops / (spent / NS_PER_MS / 1e3) / peak.rate)
    if not shares:
        return {}
    found = Blocks([1] * len(shares)).median(shares)
    if found.value > 1:
        notes.append(f"mfu.micro_step would be {found.value:.0%} and is refused: see the spread of the ceilings")
        return {}
    words = f"median of micro-steps at the points of the fit against the best burst beside them, {CLOCKS[read.clock]}"
    return {
        "mfu.micro_step": Estimate(
            value=found.value, unit="1", low=found.low, high=found.high, n=len(shares), method=words
        )
    }


def _layer_tables(read: _Read, shapes: Shapes) -> tuple[Table, ...]:
    """Return FLOPs by like layers, at the most frequent shape."""
    if read.model.decoder is None or not (shapes or read.model.counts):
        return ()
    rows, length = max(shapes, key=lambda shape: shapes[shape]) if shapes else _counted_shape(read.model)
    groups: dict[tuple[str | float, ...], list[int]] = {}
    products = {name: read.model.products(rows, length, name) or () for name in ("real", "square")}
    for place, layer in enumerate([*read.model.decoder.layers, None], 0):
        number = -1 if layer is None else place
        parts = {name: [one for one in made if one.layer == number] for name, made in products.items()}
        scores = [total(one for one in parts[name] if one.pairwise) / 1e9 for name in ("real", "square")]
        matrices = total(one for one in parts["real"] if not one.pairwise) / 1e9
        kind = "output layer" if layer is None else layer.kind + (f" {layer.size}" if layer.size else "")
        mixed = ", experts" if layer is not None and layer.experts else ""
        groups.setdefault((kind + mixed, *scores, matrices), []).append(number)
    titles = ("layers", "kind", "attention", "attention, full square", "matrices")
    return (
        Table(
            name="flops_layers",
            title=f"Model GFLOPs of one layer at {rows} × {length}, forward and backward",
            columns=tuple(Column(title=title) for title in titles),
            rows=tuple((len(places), *key) for key, places in groups.items()),
            caption="Attention: its scores and values, for the pairs that the mask lets through and for all of them.",
        ),
    )


def _counted_shape(model: ModelFlops) -> tuple[int, int]:
    return model.counts[0].rows, model.counts[0].length
