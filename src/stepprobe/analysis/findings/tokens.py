"""Findings about what is computed: padding, rows without a label, shapes never seen before."""

from collections.abc import Iterator, Sequence
from math import exp, log
from statistics import fmean, stdev

import msgspec

from stepprobe.analysis.findings.view import Rule, View, most_of, scaled, up_to
from stepprobe.analysis.ledger.attribution import Entry
from stepprobe.analysis.ledger.process import NS_PER_MS, Process
from stepprobe.analysis.ledger.rows import rows_of
from stepprobe.analysis.ledger.shapes import first_seen, mean_rows
from stepprobe.analysis.ledger.tokens import observed
from stepprobe.analysis.statistics import Line, fit_line
from stepprobe.model.accounts import BACKWARD, FORWARD
from stepprobe.model.estimate import Estimate
from stepprobe.model.finding import Finding, Remedy

COMPUTE = (*FORWARD, "recompute", *BACKWARD)
HEAD = ("forward.lm_head", "forward.loss", "backward.lm_head", "backward.loss")
ATTENTION = ("forward.attention", "backward.attention")

PADDING_SHARE = 0.05
"""Slots without a token below which grouping by length has little left to win."""
LEFT_PADDING = 0.1
"""Padding that grouping by length or packing may leave: what it really leaves depends on lengths that were not seen."""
SLOTS_VARY = 0.05
"""Coefficient of variation from which the steps themselves show how time grows with slots."""
STEEPEST = 2.0
"""Attention grows with the square of the length; nothing in a step grows faster."""
LABELLED_SHARE = 0.5
"""Where more than half of the slots are learned from, leaving the others out of the head saves little."""
NEW_SHAPES_FEWEST = 2
"""One slow step with a new shape may be slow for another reason."""

LONGEST = ("padding.longest", "pad to the longest row of the batch, not to a fixed length")
GROUP = ("padding.group", "group rows by length")
GROUP_TOO = ("padding.group", "group rows by length once each batch is padded to its longest row: what that leaves")
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
    growth = _time_by_slots(view, slots)
    # attention takes the square of a length, and the squares of uneven lengths are at least that of their mean
    cost = growth.saved(real) if growth else up_to(_part(view, share, 1 - (1 - share) ** 2), "slots do not vary")
    batched = _batched(growth, real) if growth else cost
    if not view.worth(cost):
        return
    fixed_shape = process.records.sites is not None and len(process.records.sites.shapes) == 1
    packed = (PACK, _packed(view, batched, real / slots) if growth else cost)
    changes = [*(_from_fixed(view, cost) if fixed_shape else ((GROUP, batched),)), packed]
    if all(predicted.bound for _, predicted in changes):  # best first: what may save most
        changes.sort(key=lambda change: -most_of(change[1]))
    yield Finding(
        kind="padding.waste",
        title=f"{share:.0%} of the slots are padding: {slots - real:,.0f} of {slots:,.0f} a step hold no token.",
        where=_padded_at(process) if fixed_shape else "",
        cost=cost,
        share=view.share(cost),
        accounts=COMPUTE,
        remedies=tuple(
            Remedy(name=name, action=action, predicted=predicted, fixed=growth.fixed if growth else None)
            for (name, action), predicted in changes
        ),
        cites=("tokens.padding_share", "tokens.slots_per_step", "tokens.real_per_step"),
    )


def _from_fixed(view: View, cost: Estimate) -> Iterator[tuple[tuple[str, str], Estimate]]:
    """Yield what padding to the longest row saves where all is padded to one length, and what grouping adds to it.

    Where the lengths of the rows were not counted, each of the two may be all of it.
    """
    rows = rows_of(view.process)
    if rows is None:
        yield from ((LONGEST, cost), (GROUP_TOO, cost))
        return
    stays, full = 1 - rows.beyond, 1 - rows.beyond - rows.uneven
    # attention takes the square of a length: at most this part of it lies between two means of the same lengths
    longest = _part(view, rows.beyond, 1 - stays**2), f"{rows.beyond:.0%} of the slots lie beyond the longest row"
    group = _part(view, rows.uneven, stays - full**2), f"then {rows.uneven:.0%} of the slots still hold no token"
    for change, (saved, why) in ((LONGEST, longest), (GROUP_TOO, group)):
        if view.worth(saved):
            yield change, up_to(saved, why)


def _part(view: View, slots: float, squares: float) -> Estimate:
    """Return a part of forward and backward, of attention another: between the part of the slots and of the squares."""
    attention = view.account(*ATTENTION)
    rest = view.account(*(name for name in COMPUTE if name not in ATTENTION))
    value, high = slots * (rest.value + attention.value), slots * rest.value + squares * attention.value
    return Estimate(value=value, unit="ms", low=value, high=max(value, high), n=rest.n, method="", bound=True)


def _padded_at(process: Process) -> str:
    """Return where rows are made or put together: a line of the user's own, since a library pads as it is told."""
    return process.own_line(("data.fetch", "data.collate")) or process.hottest(("data.collate",))


class Growth(msgspec.Struct, frozen=True, kw_only=True):
    """How the time of forward and backward grows with slots, from the steps themselves."""

    line: Line
    """ms by slots."""
    power: Line
    """Logarithm of ms by logarithm of slots: its slope is 1 where time is proportional to slots, 2 to their square."""
    squares: Line
    """ms by the square of slots."""
    square: float
    """Mean square of the slots of a step."""
    compute: float
    """ms per step."""
    slots: float
    """Slots per step."""
    heldout: float = 0.0
    """Relative error for the third of the steps with the fewest slots, told from the others: what is asked for lies
    where few steps were seen, and the form may be wrong there."""

    @property
    def straight(self) -> bool:
        """Whether a line with a fixed part describes it; else time grows faster than slots, and a power does."""
        return self.line.intercept >= 0

    @property
    def fixed(self) -> Estimate | None:
        """The part that fewer slots leave as it is."""
        if not self.straight or not self.line.intercept:
            return None
        method = "forward and backward at no slots"
        return Estimate(value=self.line.intercept, unit="ms", n=self.line.n, method=method)

    def saved(self, slots: float) -> Estimate:
        """Return the ms that steps of so many slots save."""
        line, power, fewer = self.line, self.power, max(0.0, self.slots - slots)
        if self.straight:
            low, value, high = (max(0.0, line.slope + sign * line.half_width) * fewer for sign in (-1, 0, 1))
            method = f"{line.slope * 1000:.3g} µs per slot (fit over {line.n} steps, R² {line.explained:.2f})"
        else:
            low, value, high = self._curved(slots / self.slots)
            method = f"between time as slots to the power {power.slope:.2f} and as their square plus a fixed part"
            method += f" (fits over {power.n} steps)"
        off = self.heldout * max(0.0, self.compute - value)
        method += f", off by {self.heldout:.0%} at the fewest slots when told from the others" if self.heldout else ""
        low, high = max(0.0, low - off), min(high + off, max(high, self.compute))
        return Estimate(value=value, unit="ms", low=low, high=high, n=line.n, method=method)

    def _curved(self, left: float) -> tuple[float, float, float]:
        """Return the ms saved where time grows faster than slots, low, value and high, when ``left`` of them remain.

        A power leaves nothing fixed, a square plus a fixed part leaves most: what comes lies between them.
        """
        found = []
        for sign in (-1, 0, 1):
            power = min(STEEPEST, max(0.0, self.power.slope + sign * self.power.half_width))
            square = max(0.0, self.squares.slope + sign * self.squares.half_width) * self.square * (1 - left**2)
            found.append((self.compute * (1 - min(1.0, left) ** power), min(square, self.compute)))
        return min(found[0]), sum(found[1]) / 2, max(found[2])

    def time(self, slots: float) -> float:
        """Return ms of forward and backward at so many slots."""
        if self.straight:
            return self.line.intercept + self.line.slope * slots
        return exp(self.power.intercept + self.power.slope * log(slots))


def _time_by_slots(view: View, mean_slots: float) -> Growth | None:
    """Fit ms of forward and backward by slots over steps in full; None where slots hardly vary."""
    steps = [entry for entry in view.process.entries if entry.weight == 1 and not entry.counters.get("new_shapes")]
    steps = [entry for entry in steps if entry.counters.get("slots") and _compute_ms(entry) > 0]
    points = sorted((entry.counters["slots"], _compute_ms(entry)) for entry in steps)
    slots = [point[0] for point in points]
    if len(points) < 2 or stdev(slots) < SLOTS_VARY * sum(slots) / len(slots):
        return None
    compute = view.account(*COMPUTE).value
    growth, told = _grown(points, compute, mean_slots), _grown(points[len(points) // 3 :], compute, mean_slots)
    if growth is None or told is None:
        return growth
    fewest = points[: len(points) // 3]
    true = sum(ms for _, ms in fewest)
    error = abs(sum(told.time(count) for count, _ in fewest) / true - 1) if true else 0.0
    return msgspec.structs.replace(growth, heldout=error)


def _grown(points: Sequence[tuple[int, float]], compute: float, mean_slots: float) -> Growth | None:
    slots, times = [point[0] for point in points], [point[1] for point in points]
    line, power = fit_line(slots, times), fit_line([log(one) for one in slots], [log(one) for one in times])
    squares = fit_line([float(one * one) for one in slots], times)
    if line is None or power is None or squares is None:
        return None
    square = mean_slots**2 * fmean(one * one for one in slots) / fmean(slots) ** 2
    return Growth(line=line, power=power, squares=squares, square=square, compute=compute, slots=mean_slots)


def _compute_ms(entry: Entry) -> float:
    return sum(entry.accounts.get(name, 0) for name in COMPUTE) / NS_PER_MS


def _batched(growth: Growth, real: float) -> Estimate:
    """Predict what batches save that leave between no padding and ``LEFT_PADDING``."""
    ends = growth.saved(real), growth.saved(real / (1 - LEFT_PADDING))
    method = f"{ends[0].method}; grouping or packing may leave up to {LEFT_PADDING:.0%} padding"
    value = (ends[0].value + ends[1].value) / 2
    return Estimate(value=value, unit="ms", low=ends[1].low, high=ends[0].high, n=ends[0].n, method=method)


def _packed(view: View, batched: Estimate, full: float) -> Estimate:
    """Predict what packing saves: at most what grouping does, and less where rows of a pack still meet in attention.

    Without a variable-length kernel a batch whose rows are joined in one computes the square of all their tokens.
    """
    compute, attention = view.account(*COMPUTE).value, view.account(*ATTENTION).value
    rest = 1 - attention / compute if compute else 1.0
    grown = max(1.0, (mean_rows(view.process) or 1.0) * full**2)
    low = None if batched.low is None else batched.low * rest - attention * (grown - 1)
    method = f"{batched.method}; at worst attention over a whole pack, {grown:.2g} times what it is now"
    value = batched.value if low is None else (low + batched.value) / 2
    return Estimate(value=value, unit="ms", low=low, high=batched.high, n=batched.n, method=method)


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
