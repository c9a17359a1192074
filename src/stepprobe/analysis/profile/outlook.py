"""The forecasts for a person: figures, a ranked table, bars, and the findings that they belong to."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from stepprobe.analysis.beside import Beside
from stepprobe.analysis.findings import arranged, find
from stepprobe.analysis.profile.forecast import Forecast, Step
from stepprobe.analysis.profile.growth import columns
from stepprobe.analysis.profile.loss import loss_cost
from stepprobe.analysis.profile.remedies import forecasts
from stepprobe.analysis.profile.situation import COMPUTE, Situation, situation
from stepprobe.analysis.profile.view import Found, Seen
from stepprobe.analysis.wording import ends, signed
from stepprobe.model.estimate import Estimate
from stepprobe.model.finding import Finding, Remedy
from stepprobe.model.report import Cell, Chart, Table

MS_PER_HOUR = 3_600_000
OFF = 0.2
"""Relative difference between the fit and the ledger, about the same work, from which a note says so."""
WORTH_SHARE = 0.02
"""Part of the step below which a finding is not made of a forecast."""
BELONGS = {
    "padding.waste": ("longest", "bucketing", "packing", "padding_free"),
    "loss.unlabelled": ("labelled_rows",),
    "loss.share": ("labelled_rows", "chunked_loss"),
    "step.fixed": ("batch_size", "packing"),
}
"""Kind of finding -> the forecasts that are its remedies."""


@dataclass(frozen=True)
class Outlook:
    """The step of now, and what can be forecast of it."""

    now: Situation
    made: tuple[Forecast, ...]
    """The shortest step first."""
    missing: tuple[str, ...]
    """What cannot be forecast, and why."""


def look_ahead(seen: Seen) -> Outlook | None:
    """Forecast every change; None without a fit."""
    now = situation(seen, loss_cost(seen))
    if now is None:
        return None
    made, missing = forecasts(now)
    return Outlook(now, tuple(made), tuple(missing))


def outlook(seen: Seen, ahead: Outlook | None) -> Found:
    """Return what each change would gain."""
    if ahead is None:
        return {}, (), ("no forecast: it needs the fit",)
    now, made, missing = ahead.now, ahead.made, ahead.missing
    figures = {f"forecast.{one.remedy}": one.step(now.step) for one in made}
    if seen.total_steps:
        figures["projected.hours"] = _hours(now.step, seen.total_steps)
    notes = list(_notes(now, missing))
    return figures, (_table(now, made), _actions(made)) if made else (), tuple(notes)


def _hours(step: Step, total: int) -> Estimate:
    wall = step.wall
    low, high = (None, None) if wall.half is None else (wall.value - wall.half, wall.value + wall.half)
    value, low, high = (None if one is None else one * total / MS_PER_HOUR for one in (wall.value, low, high))
    return Estimate(
        value=value or 0.0, unit="h", low=low, high=high, n=step.n, method=f"{total:,} steps as they are now"
    )


def _table(now: Situation, made: Sequence[Forecast]) -> Table:
    total = now.seen.total_steps
    tried = any(one.tried is not None for one in made)
    rows: list[tuple[Cell, ...]] = [_now_row(now, total, tried=tried)]
    for one in made:
        step = one.step(now.step)
        hours = (step.value * total / MS_PER_HOUR,) if total else ()
        rows.append(
            (
                one.remedy.replace("_", " "),
                None if step.bound else step.value,
                _span(step),
                _change(one, now.step),
                *((_tried(one, now.step),) if tried else ()),
                *hours,
            )
        )
    heads = ["change", "step|ms", "95 %", "would gain", *(("tried",) if tried else ())]
    heads += ["all steps, hours"] if total else []
    caption = (
        "Time of the rows of one step of now: where a change puts more rows into a step (packing, batch size), the "
        "steps become fewer. Every gain leaves the fixed part of the fit and the other accounts of the ledger alone. "
        "Gains do not add up."
    )
    if tried:
        caption += " Tried: the micro-step was measured with and without the change, in turn."
    if total:
        caption += f" Hours: {total:,} steps of now."
    return Table(
        name="forecast", title="What each change would gain", columns=columns(heads), rows=tuple(rows), caption=caption
    )


def _actions(made: Sequence[Forecast]) -> Table:
    return Table(
        name="changes",
        title="How each change is made",
        columns=columns(("change", "what to do")),
        rows=tuple((one.remedy.replace("_", " "), one.action) for one in made),
    )


def _now_row(now: Situation, total: int | None, *, tried: bool) -> tuple[Cell, ...]:
    wall = now.step.wall
    span = ends_of(wall.value - wall.known, wall.value + wall.known) if wall.half else ""
    hours: tuple[Cell, ...] = (wall.value * total / MS_PER_HOUR,) if total else ()
    return ("as it is now", wall.value, span, "", *(("",) if tried else ()), *hours)


def ends_of(low: float, high: float) -> str:
    """Return ``72.1 to 75.3``, without signs: times are never negative."""
    return ends(low, high).replace("+", "")


def _span(step: Estimate) -> str:
    return "" if step.low is None or step.high is None else ends_of(step.low, step.high)


def _change(one: Forecast, now: Step) -> str:
    """Return the gain in words: a share of the step, a ceiling, or undecided."""
    saved, wall = one.saved, now.wall.value
    if saved.bound:
        return f"up to {signed(-(saved.high or 0.0) / wall, '.0%')}"
    if saved.low is not None and saved.high is not None and saved.low < 0 < saved.high:
        return "undecided"
    return signed(-saved.value / wall, ".1%")


def _tried(one: Forecast, now: Step) -> str:
    if one.tried is None:
        return ""
    return signed((one.tried - 1) * now.compute.value / now.wall.value, ".1%")


def _notes(now: Situation, missing: Sequence[str]) -> Iterator[str]:
    if missing:
        yield f"no forecast of {'; '.join(missing)}"
    if now.batches is None:
        yield "the lengths of the rows were not seen: nothing is forecast that hangs on them"
        return
    seen = len(now.batches.rows)
    yield f"forecasts about padding stand on the {seen:,} rows of {len(now.batches.real):,} micro-batches seen"
    if now.view is None:
        yield "no step was observed: a step of now is taken as its micro-steps, without optimizer and data"
        return
    if now.by_fit_and_booked:
        said, booked = now.by_fit_and_booked
        on_thread = now.seen.answers.clock == "thread"
        if booked > 0 and abs(said / booked - 1) > OFF:
            yield (
                f"the fit gives {said:,.3g} ms of forward and backward a step, the ledger booked {booked:,.3g} ms"
                f"{' of CPU time' if on_thread else ''}: forecasts take the ratio from the fit and the ms from the "
                "ledger, and one of the two saw another step"
            )
    if now.seen.job and len(now.seen.job.ranks) > 1:
        yield "forecasts are those of one rank; which rank of a step is the slowest after a change is not forecast"


def findings(seen: Seen, ahead: Outlook | None, other: Beside) -> tuple[Finding, ...]:
    """Return the findings of the ledger with what the fit knows better, and those that only the experiments show."""
    if seen.job is None:
        return ()
    base = find(seen.job.main, seen.job.ranks, wrong=other.wrong, more=other.slow)
    if ahead is None:
        return base
    made = {one.remedy: one for one in ahead.made}
    kept = [_with_forecasts(one, made) for one in base[len(other.wrong) :]]
    return arranged([*kept, *_own(ahead.now, made)], seen.job.main, first=other.wrong)


def _with_forecasts(finding: Finding, made: dict[str, Forecast]) -> Finding:
    own = _remedies(finding.kind, made)
    if not own:
        return finding
    if finding.kind == "loss.unlabelled":  # the loss was measured alone, so its cost is known better than by module
        cost = made["labelled_rows"].saved
        return msgspec.structs.replace(
            finding, remedies=own, cost=cost, share=finding.share * cost.value / finding.cost.value
        )
    return msgspec.structs.replace(finding, remedies=own)


def _remedies(kind: str, made: dict[str, Forecast]) -> tuple[Remedy, ...]:
    found = [made[name] for name in BELONGS.get(kind, ()) if name in made and (made[name].saved.high or 1.0) > 0]
    found.sort(key=lambda one: -one.saved.value)
    return tuple(Remedy(name=f"forecast.{one.remedy}", action=one.action, predicted=one.saved) for one in found)


def _own(now: Situation, made: dict[str, Forecast]) -> Iterator[Finding]:
    """Yield what the experiments show and no account of the ledger does."""
    share, wall = now.loss_share, now.step.wall.value
    cost = Estimate(
        value=now.step.compute.value * share.value,
        unit="ms",
        low=max(0.0, now.step.compute.value * (share.value - share.known)) if share.half is not None else None,
        high=now.step.compute.value * (share.value + share.known) if share.half is not None else None,
        n=now.n,
        method="share of the loss in the micro-step, times forward and backward",
    )
    if share.value and cost.value > 0.1 * wall:
        ceiling = 1 / (1 - min(0.999, cost.value / wall))
        yield Finding(
            kind="loss.share",
            title=f"Output layer and loss take {cost.value / wall:.0%} of the step: no change to them gains more than "
            f"{ceiling:.2f}×.",
            where="",
            cost=cost,
            share=cost.value / wall,
            accounts=tuple(name for name in COMPUTE if name.endswith(("lm_head", "loss"))),
            remedies=_remedies("loss.share", made),
            cites=("ce.share", "ce.best_chunk_rows"),
        )
    yield from _fixed(now, made)


def _fixed(now: Situation, made: dict[str, Forecast]) -> Iterator[Finding]:
    if now.batches is None:
        return
    total = now.fit.time(now.batches.work)[0]
    part = now.fit.part(now.batches.work, 0) / total
    half = now.fit.halves[0] * now.batches.work.batches / total
    compute, wall = now.step.compute.value, now.step.wall.value
    if compute * part < 0.2 * wall:
        return
    cost = Estimate(
        value=compute * part,
        unit="ms",
        low=max(0.0, compute * (part - half)),
        high=compute * (part + half),
        n=now.n,
        method="fixed part of the fit, times forward and backward",
    )
    yield Finding(
        kind="step.fixed",
        title=f"{part:.0%} of forward and backward does not hang on how many tokens there are: no change to padding "
        "touches it.",
        where="",
        cost=cost,
        share=cost.value / wall,
        accounts=COMPUTE,
        remedies=_remedies("step.fixed", made),
        cites=("fit.fixed", "scaling"),
    )


def charts(ahead: Outlook | None) -> Iterator[Chart]:
    """Yield the step of now and after each change, as bars."""
    if ahead is None or not ahead.made:
        return
    now, made = ahead.now, ahead.made
    values: list[dict[str, Cell]] = [{"change": "now", "ms": now.step.wall.value, "what": "step"}]
    for one in made:
        step = one.step(now.step)
        least = step.value if not step.bound else (step.low or 0.0)
        name = one.remedy.replace("_", " ")
        values.append({"change": name, "ms": least, "what": "step"})
        rest = now.step.wall.value - least
        if rest > 0:
            values.append({"change": name, "ms": rest, "what": "at most saved" if step.bound else "saved"})
    yield Chart(
        name="forecast",
        title="The step after each change",
        mark="stacked",
        x="change",
        y="ms",
        x_title="",
        y_title="ms for the rows of one step",
        values=tuple(values),
        color="what",
        caption="By the fit and the ledger; intervals stand in the table.",
    )
