"""The forecasts for a person: the headline, figures, a ranked table, and bars."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from stepprobe.analysis.profile.forecast import Forecast, Step
from stepprobe.analysis.profile.growth import columns
from stepprobe.analysis.profile.loss import loss_cost
from stepprobe.analysis.profile.remedies import forecasts
from stepprobe.analysis.profile.situation import Situation, situation
from stepprobe.analysis.profile.view import Found, Seen
from stepprobe.analysis.wording import ends, signed
from stepprobe.model.estimate import Estimate
from stepprobe.model.report import Cell, Chart, Table

MS_PER_HOUR = 3_600_000
WORTH_SHARE = 0.02
"""Part of the step below which a ceiling is not worth a word in the headline."""
NEXT_TO_NOTHING = 0.05
"""Low end over high end of a ceiling up to which it is said as "up to"."""
NARROW = 0.01
"""Width of an interval over its value below which more digits would be shown than anybody reads."""
OFF = 0.2
"""Relative difference between the fit and the ledger, about the same work, from which a note says so."""


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
    figures |= {f"saved.{one.remedy}": one.saved for one in made}
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


def headline(ahead: Outlook) -> str:
    """Return the step's time and the change with the most to gain: ``step 54.2 ms · most to gain: bucketing, …``."""
    wall = ahead.now.step.wall.value
    step = f"step {_ms(wall)} ms{'' if ahead.now.view else ' by the fit, without optimizer and data'}"
    sure = [one for one in ahead.made if one.saved.value > 0 and not _may_be_nothing(one.saved)]
    best = max(sure, key=lambda one: one.saved.value, default=None)
    said = f"most to gain: {_name(best)}, {gain_in_words(best.saved)}" if best else "nothing promises a gain"
    least = max(WORTH_SHARE * wall, (best.saved.high or best.saved.value) if best else 0.0)
    ceilings = [one for one in ahead.made if one.saved.bound and _may_be_nothing(one.saved)]
    most = max(ceilings, key=lambda one: one.saved.high or 0.0, default=None)
    if most is None or (most.saved.high or 0.0) <= least:
        return f"{step} · {said}"
    return f"{step} · {said}; {_name(most)} may bring {gain_in_words(most.saved)}"


def gain_in_words(saved: Estimate) -> str:
    """Return ``13.0 ms (4.5 to 21.5)``; ``up to 16.0 ms`` or ``4.5 to 16.0 ms`` where only the ends are known."""
    if saved.bound and saved.low is not None and saved.high is not None:
        return f"up to {_ms(saved.high)} ms" if _may_be_nothing(saved) else f"{_range(saved)} ms"
    return f"{_ms(saved.value)} ms" + (f" ({_range(saved)})" if _range(saved) else "")


def _may_be_nothing(saved: Estimate) -> bool:
    """Return whether the low end is no saving; a ceiling's has to be a fair part of it to be one."""
    least = NEXT_TO_NOTHING * (saved.high or 0.0) if saved.bound else 0.0
    return saved.low is not None and saved.low <= least


def _ms(value: float) -> str:
    return format(value, ",.1f" if abs(value) >= 0.95 else ".2g").replace("-", "−")


def _name(one: Forecast) -> str:
    return one.remedy.replace("_", " ")


def _table(now: Situation, made: Sequence[Forecast]) -> Table:
    total = now.seen.total_steps
    tried = any(one.tried is not None for one in made)
    wall = now.step.wall.value
    rows: list[tuple[Cell, ...]] = [_row(("as it is now", None, "", wall, ""), wall, total, "" if tried else None)]
    for one in made:
        step = one.step(now.step)
        saves, after = (None, None) if step.bound else (one.saved.value, step.value)
        said = (_name(one), saves, _range(one.saved), after, _change(one, now.step))
        rows.append(_row(said, step.value, total, ("" if one.tried is None else "yes") if tried else None))
    heads = ["change", "saves|ms", "95 %", "step|ms", "would gain", *(("tried",) if tried else ())]
    heads += ["hours"] if total else []
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


def _row(said: tuple[Cell, ...], ms: float, total: int | None, tried: str | None) -> tuple[Cell, ...]:
    """Return a row with the columns that not every run has."""
    hours = (ms * total / MS_PER_HOUR,) if total else ()
    return (*said, *(() if tried is None else (tried,)), *hours)


def _actions(made: Sequence[Forecast]) -> Table:
    return Table(
        name="changes",
        title="How each change is made",
        columns=columns(("change", "what to do")),
        rows=tuple((_name(one), one.action) for one in made),
    )


def _range(saved: Estimate) -> str:
    """Return ``72.1 to 75.3``; only what is lost has a sign."""
    if saved.low is not None and saved.high is not None and saved.high - saved.low < NARROW * abs(saved.value):
        return f"{_ms(saved.low)} to {_ms(saved.high)}"
    return ends(saved.low, saved.high).replace("+", "")


def _change(one: Forecast, now: Step) -> str:
    """Return the gain in words: a share of the step, a ceiling, or undecided."""
    saved, wall = one.saved, now.wall.value
    if saved.bound:
        return f"up to {signed(-(saved.high or 0.0) / wall, '.0%')}"
    if _is_open(saved):
        return "undecided"
    return signed(-saved.value / wall, ".1%")


def _is_open(saved: Estimate) -> bool:
    """Return whether it may as well cost."""
    return saved.low is not None and saved.high is not None and saved.low < 0 < saved.high


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
        compute = now.step.compute.value
        if on_thread and compute - booked > OFF * compute:
            yield (
                "the tables of the experiments are in CPU time of the thread, the ledger and what changes save in wall "
                f"time: of {compute:,.3g} ms of forward and backward a step the thread was off the CPU for "
                f"{compute - booked:,.3g} ms"
            )
    if now.seen.job and len(now.seen.job.ranks) > 1:
        yield "forecasts are those of one rank; which rank of a step is the slowest after a change is not forecast"


def charts(ahead: Outlook | None) -> Iterator[Chart]:
    """Yield the step of now and after each change, as bars."""
    if ahead is None or not ahead.made:
        return
    now, made = ahead.now, ahead.made
    wall = now.step.wall.value
    values: list[dict[str, Cell]] = [
        {"change": "as it is now", "ms": wall, "what": "the step", "says": f"{_ms(wall)} ms"}
    ]
    for one in made:
        step = one.step(now.step)
        least = step.value if not step.bound else (step.low or 0.0)
        values.append({"change": _name(one), "ms": least, "what": "the step", "says": _says(one)})
        rest = wall - least
        if rest > 0:
            what = "may be saved" if step.bound or _is_open(one.saved) else "saved"
            values.append({"change": _name(one), "ms": rest, "what": what, "says": ""})
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
        label="says",
        caption="By the fit and the ledger. In brackets: 95 % interval of what is saved.",
    )


def _says(one: Forecast) -> str:
    """Return what a change saves, for its bar: ``saves 13.0 ms (4.5 to 21.5)``."""
    saved = one.saved
    if saved.bound:
        return f"saves {gain_in_words(saved)}"
    if _is_open(saved):
        return f"undecided: {gain_in_words(saved)}"
    if saved.value < 0:
        low, high = (None if end is None else -end for end in (saved.high, saved.low))
        return f"costs {gain_in_words(msgspec.structs.replace(saved, value=-saved.value, low=low, high=high))}"
    return f"saves {gain_in_words(saved)}"
