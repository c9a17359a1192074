"""How the step grows, for a person: the figures of the fit, its shapes in a table, and the two curves."""

import json
from collections.abc import Sequence

from stepprobe.analysis.profile.answers import Answers, read_answers
from stepprobe.analysis.profile.scaling import Fit, Refusal, Work, fit, per_row, witnessed
from stepprobe.analysis.statistics import median
from stepprobe.analysis.wording import signed
from stepprobe.errors import UsageError
from stepprobe.model.estimate import Estimate, Unit, exact
from stepprobe.model.evidence import Evidence
from stepprobe.model.report import Cell, Chart, Column, Table

MS_US, MS_NS = 1e3, 1e6
"""Of a millisecond."""
PLACES = 40
"""Places at which a curve is drawn."""
TERMS: tuple[tuple[str, Unit, float], ...] = (
    ("fit.fixed", "ms", 1.0),
    ("fit.per_token", "µs/token", MS_US),
    ("fit.per_token_length", "ns/token/slot", MS_NS),
)
"""Figure, unit, and how many of it a ms is."""


def fitted(answers: Answers) -> Fit | Refusal:
    """Fit the experiments of one process, and let those that are not about the fit say how far off it is.

    Where shapes are missing for it, the refusal says what kept them from being measured.
    """
    found = fit(answers.samples)
    if isinstance(found, Fit):
        return witnessed(found, answers.witnesses)
    shapes = {one.shape for one in answers.samples if not one.heldout}
    if len(shapes) < len(TERMS) and (why := _missing(answers)):
        return Refusal(f"{len(shapes)} shapes were measured, and three terms need three shapes: {why}")
    return found


def _missing(answers: Answers) -> str:
    """Return what kept shapes of the fit from being measured, with the next step; empty where nobody knows."""
    if answers.done and answers.done.reason != "finished":
        return f"the experiments were stopped: {answers.done.reason}"
    dropped = [one for one in answers.dropped if one.experiment == "scaling"]
    late = next((one for one in reversed(dropped) if one.reason == "time"), None)
    if late:
        return f"{late.rows}×{late.length} was dropped, the time was up; give the experiments more seconds with --time"
    return f"{dropped[-1].rows}×{dropped[-1].length} was dropped: {dropped[-1].text}" if dropped else ""


def fit_figures(found: Fit, answers: Answers) -> dict[str, Estimate]:
    """Return the terms, how well the shapes tell them apart, and the error where the fit did not look."""
    method = f"of a micro-step, slots are tokens; medians of {found.blocks} blocks; {answers.method}"
    figures = {
        name: Estimate(
            value=value * factor,
            unit=unit,
            low=max(0.0, value - half) * factor,
            high=(value + half) * factor,
            n=found.blocks,
            method=f"{method}; the three intervals hold together",
        )
        for (name, unit, factor), value, half in zip(TERMS, found.terms, found.halves, strict=True)
    }
    shapes = sum(not one.heldout for one in found.shapes)
    figures["fit.condition"] = exact(found.condition, "1", shapes, "condition number of the scaled relative system")
    if found.heldout_error is not None:
        figures["fit.heldout_error"] = Estimate(
            value=found.heldout_error, unit="1", n=found.blocks, method=f"predicted over measured, less one; {method}"
        )
    return figures


def terms_in_words(found: Fit) -> str:
    """Return the three terms and the error in one line."""
    fixed, token, square = (value * factor for value, (_, _, factor) in zip(found.terms, TERMS, strict=True))
    said = f"fixed {fixed:.3g} ms · {token:.3g} µs a token · {square:.3g} ns a token·length"
    if found.heldout_error is None:
        return f"{said}; no shape was held out"
    return f"{said}; held-out error {signed(found.heldout_error, '.1%')}"


def shape_table(found: Fit) -> Table:
    """Return each shape with what was measured and what the fit says."""
    rows = tuple(
        (
            f"{one.rows} × {one.length:,}{' (held out)' if one.heldout else ''}",
            one.rows * one.length,
            one.measured,
            one.predicted,
            one.low,
            one.high,
            signed(one.error, ".1%"),
            one.repetitions,
        )
        for one in found.shapes
    )
    heads = ("rows × slots", "slots|tokens", "measured|ms", "fit|ms", "from|ms", "to|ms", "error", "n|count")
    return Table(
        name="scaling",
        title="How the micro-step grows: t = a + b·rows·length + c·rows·length²",
        columns=columns(heads),
        rows=rows,
        caption=(
            f"{terms_in_words(found)}. "
            "Forward, loss and backward of the user's own step. The fit passes through the shapes that it was made of; "
            "the one that was held out says what it is worth, and no interval is narrower than its error"
            f"{_by_witnesses(found)}."
        ),
    )


def _by_witnesses(found: Fit) -> str:
    if not found.elsewhere:
        return ""
    return f", nor than ±{found.elsewhere:.1%}, by what it misses the shapes of the other experiments"


def columns(heads: Sequence[str]) -> tuple[Column, ...]:
    """Return columns given as ``title`` or ``title|unit``."""
    parted = (head.partition("|") for head in heads)
    return tuple(Column(title=title, unit=unit) for title, _, unit in parted)


def shape_chart(found: Fit) -> Chart:
    """Return the fit as a curve for each number of rows, with what was measured as dots on it."""
    values: list[dict[str, Cell]] = []
    longest, most = max(one.length for one in found.shapes), 1.1 * max(one.measured for one in found.shapes)
    for rows in sorted({one.rows for one in found.shapes}):
        reach = _reach(found, rows, longest, most)
        for length in (reach * place / PLACES for place in range(PLACES + 1)):
            values.append({"length": length, "ms": _at(found, rows, length), "rows": _rows(rows), "dot": None})
    for one in sorted(found.shapes, key=lambda one: one.heldout):
        dot = "held out" if one.heldout else "measured"
        values.append({"length": one.length, "ms": one.measured, "rows": _rows(one.rows), "dot": dot})
    unseen = "It has not seen the diamond, so that one says how far off it is elsewhere."
    return Chart(
        name="scaling",
        title="The fit, and what was measured",
        mark="line",
        x="length",
        y="ms",
        x_title="length of a row, slots",
        y_title="micro-step, ms",
        values=tuple(values),
        color="rows",
        dots="dot",
        caption="Lines: the fit, for micro-batches of so many rows, made of what the circles say. "
        + (unseen if any(one.heldout for one in found.shapes) else "No shape was held out."),
    )


def _at(found: Fit, rows: int, length: float) -> float:
    return found.time(Work(1, rows * length, rows * length**2))[0]


def _reach(found: Fit, rows: int, longest: float, most: float) -> float:
    """Return the length at which a curve leaves the picture: ms above ``most``, or the ``longest`` row."""
    low, high = 0.0, float(longest)
    if _at(found, rows, high) <= most:
        return high
    for _ in range(PLACES):
        middle = (low + high) / 2
        low, high = (middle, high) if _at(found, rows, middle) <= most else (low, middle)
    return low


def _rows(count: int) -> str:
    return f"{count} row{'s' * (count > 1)}"


def fixed_tokens(answers: Answers) -> tuple[Table, ...]:
    """Return the micro-step of as many tokens in more and more rows: what a row costs beside its tokens."""
    held: dict[tuple[int, int], list[float]] = {}
    for one in answers.of("fixed_tokens"):
        held.setdefault((one.rows, one.length), []).append(answers.ms(one))
    if len(held) < 2:
        return ()
    middles = {shape: median(values) for shape, values in sorted(held.items())}
    rows = tuple((shape[0], shape[1], ms, ms / shape[0], len(held[shape])) for shape, ms in middles.items())
    line = per_row([(shape[0], ms) for shape, ms in middles.items()])
    caption = "The same number of tokens in more and shorter rows."
    if line:
        caption += f" A line through them: {line[0]:.3g} ms, and {signed(line[1], '.3g')} ms for each further row."
    heads = ("rows|count", "slots a row|tokens", "micro-step|ms", "a row|ms", "n|count")
    return (
        Table(
            name="rows", title="Rows at a fixed number of tokens", columns=columns(heads), rows=rows, caption=caption
        ),
    )


def fit_of(evidence: Evidence) -> bytes:
    """Return the fit as ``padding --fit`` and ``bucket --fit`` read it: ms a batch, a slot, a slot times its length.

    Raises:
        EvidenceError: The evidence is damaged.
        UsageError: It holds no experiments, or they give no fit.
    """
    answers, _ = read_answers(evidence)
    found = fitted(answers) if answers else Refusal("it holds no experiments: name the run folder of a profile")
    if isinstance(found, Refusal):
        raise UsageError(f"no fit in that run: {found.reason}")
    longest = max(one.length for one in found.shapes)
    reach = {"longest": longest, "slots": max(one.rows * one.length for one in found.shapes)}
    return json.dumps({**dict(zip("abc", found.terms, strict=True)), **reach}, indent=1).encode() + b"\n"
