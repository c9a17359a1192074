"""Findings about what is computed: padding, rows without a label, shapes never seen before."""

from collections.abc import Iterator
from statistics import stdev

from stepprobe.analysis.attribution import Entry
from stepprobe.analysis.findings.view import Rule, View, scaled, up_to
from stepprobe.analysis.process import NS_PER_MS, Process
from stepprobe.analysis.shapes import first_seen
from stepprobe.analysis.statistics import Line, fit_line
from stepprobe.analysis.tokens import observed
from stepprobe.model.accounts import BACKWARD, FORWARD
from stepprobe.model.estimate import Estimate
from stepprobe.model.finding import Finding, Remedy

COMPUTE = (*FORWARD, "recompute", *BACKWARD)
HEAD = ("forward.lm_head", "forward.loss", "backward.lm_head", "backward.loss")

PADDING_SHARE = 0.05
"""Slots without a token below which grouping by length has little left to win."""
LEFT_PADDING = 0.1
"""Padding that grouping by length or packing may leave: what it really leaves depends on lengths that were not seen."""
SLOTS_VARY = 0.05
"""Coefficient of variation from which the steps themselves show how time grows with slots."""
LABELLED_SHARE = 0.5
"""Where more than half of the slots are learned from, leaving the others out of the head saves little."""
NEW_SHAPES_FEWEST = 2
"""One slow step with a new shape may be slow for another reason."""

LONGEST = ("padding.longest", "pad to the longest row of the batch, not to a fixed length")
GROUP = ("padding.group", "group rows by length")
PACK = ("padding.pack", "pack rows")


def padding_waste(view: View) -> Iterator[Finding]:
    """Slots that hold no token are computed like the others."""
    process = view.process
    if not (observed(process, "slots") and observed(process, "real")):
        return
    slots, real = process.counter("slots").value, process.counter("real").value
    share = 1 - real / slots
    if share < PADDING_SHARE:
        return
    line = _time_by_slots(view)
    compute = view.account(*COMPUTE)
    cost = _padding_cost(line, slots - real) if line else up_to(scaled(compute, share, ""), "slots do not vary")
    if not view.worth(cost):
        return
    fixed_shape = process.records.sites is not None and len(process.records.sites.shapes) == 1
    first = LONGEST if fixed_shape else GROUP
    yield Finding(
        kind="padding.waste",
        title=f"{share:.0%} of the slots are padding: {slots - real:,.0f} of {slots:,.0f} a step hold no token.",
        where=_padded_at(process) if fixed_shape else "",
        cost=cost,
        share=view.share(cost),
        accounts=COMPUTE,
        remedies=tuple(
            Remedy(name=name, action=action, predicted=_batched(line, slots, real) or cost, fixed=_fixed(line))
            for name, action in (first, PACK)
        ),
        cites=("tokens.padding_share", "tokens.slots_per_step", "tokens.real_per_step"),
    )


def _padded_at(process: Process) -> str:
    """Return where rows are made or put together: a line of the user's own, since a library pads as it is told."""
    return process.own_line(("data.fetch", "data.collate")) or process.hottest(("data.collate",))


def _time_by_slots(view: View) -> Line | None:
    """Fit ms of forward and backward by slots over steps in full; None where slots hardly vary."""
    steps = [entry for entry in view.process.entries if entry.weight == 1 and not entry.counters.get("new_shapes")]
    slots = [entry.counters.get("slots", 0) for entry in steps]
    if len(steps) < 2 or stdev(slots) < SLOTS_VARY * sum(slots) / len(slots):
        return None
    return fit_line(slots, [_compute_ms(entry) for entry in steps])


def _compute_ms(entry: Entry) -> float:
    return sum(entry.accounts.get(name, 0) for name in COMPUTE) / NS_PER_MS


def _padding_cost(line: Line, padding: float) -> Estimate:
    low, value, high = (max(0.0, line.slope + sign * line.half_width) * padding for sign in (-1, 0, 1))
    method = f"{line.slope * 1000:.3g} µs per slot (fit over {line.n} steps, R² {line.explained:.2f})"
    return Estimate(value=value, unit="ms", low=low, high=high, n=line.n, method=method)


def _batched(line: Line | None, slots: float, real: float) -> Estimate | None:
    """Predict what batches save that leave between no padding and ``LEFT_PADDING``; None where slots hardly vary."""
    if line is None:
        return None
    ends = _padding_cost(line, slots - real), _padding_cost(line, max(0.0, slots - real / (1 - LEFT_PADDING)))
    method = f"{ends[0].method}; grouping or packing may leave up to {LEFT_PADDING:.0%} padding"
    value = (ends[0].value + ends[1].value) / 2
    return Estimate(value=value, unit="ms", low=ends[1].low, high=ends[0].high, n=line.n, method=method)


def _fixed(line: Line | None) -> Estimate | None:
    if line is None or line.intercept <= 0:
        return None
    return Estimate(value=line.intercept, unit="ms", n=line.n, method="forward and backward at no slots")


def loss_unlabelled(view: View) -> Iterator[Finding]:
    """The head and the loss are computed for rows that have no label."""
    process = view.process
    if not (observed(process, "slots") and observed(process, "labelled")):
        return
    labelled = process.counter("labelled").value / process.counter("slots").value
    if labelled >= LABELLED_SHARE:
        return
    head = view.account(*HEAD)
    cost = scaled(head, 1 - labelled, "head and loss times the share of slots without a label")
    if not view.worth(cost):
        return
    yield Finding(
        kind="loss.unlabelled",
        title=f"Only {labelled:.0%} of the slots have a label, but head and loss are computed for all of them.",
        where=process.hottest(HEAD[:2]),
        cost=cost,
        share=view.share(cost),
        accounts=HEAD,
        remedies=(
            Remedy(
                name="loss.labelled_rows",
                action="compute the head and the loss on labelled rows only (select them before the head)",
                predicted=up_to(cost, "selecting the rows costs something, too"),
                fixed=scaled(head, labelled, "rows with a label"),
            ),
        ),
        cites=("tokens.labelled_per_step", "tokens.slots_per_step"),
    )


def shapes_first_seen(view: View) -> Iterator[Finding]:
    """Batches of a shape never seen before are compiled, tuned or allocated for."""
    found = first_seen(view.process)
    if found is None or found.steps < NEW_SHAPES_FEWEST:
        return
    steps = view.process.count - view.process.open_steps
    value = max(0.0, found.excess_ms) / steps
    cost = Estimate(value=value, unit="ms", n=found.steps, method="excess of steps with a new shape, over all steps")
    slower = sum(excess > 0 for excess in found.each_ms)
    if not view.worth(cost) or slower * 2 <= found.steps:
        return
    yield Finding(
        kind="shapes.first_seen",
        title=f"{found.steps} steps held a batch shape for the first time: {found.excess_ms:,.0f} ms more in all.",
        where="",
        cost=cost,
        share=view.share(cost),
        accounts=COMPUTE,
        remedies=(
            Remedy(
                name="shapes.few",
                action="pad lengths to a few sizes (pad_to_multiple_of), or run each size once before the start",
                predicted=up_to(cost, "fewer shapes mean more padding"),
            ),
        ),
        cites=("shapes.distinct", "shapes.first_seen_time_share"),
    )


RULES: tuple[Rule, ...] = (padding_waste, loss_unlabelled, shapes_first_seen)
