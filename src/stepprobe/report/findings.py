"""The sentences about a finding that every renderer says in the same words."""

import shlex
from collections.abc import Sequence
from math import isfinite

from stepprobe.model.estimate import Estimate
from stepprobe.model.finding import Control, Finding, Remedy
from stepprobe.model.promise import judge
from stepprobe.model.report import Report
from stepprobe.report.numbers import MISSING, NBSP, amount, gain, has_interval, interval, percent, spans_zero
from stepprobe.report.text import visible

NOTHING_MS = 0.005
"""A fixed cost below this is not worth a word."""


def order(report: Report) -> str:
    """Return the title of the findings: by what they are ranked."""
    forecast = any(one.name.startswith("forecast.") for finding in report.findings for one in finding.remedies)
    if not any(finding.cost.unit == "ms" for finding in report.findings):
        return "Findings"
    return f"Findings, most {'to gain' if forecast and report.command == 'profile' else 'expensive'} first"


def base(report: Report) -> str:
    """Return of what the percentages of a comparison are: ``… of 93.2 ms: a step of the run before``; else nothing."""
    wall = report.figures.get("step.wall")
    if report.command != "compare" or wall is None or not report.findings:
        return ""
    return f"Percentages are of {amount(wall.value, 'ms')}: {visible(wall.method)}."


def cost(finding: Finding) -> str:
    """Return ``costs 129.4 ms per step, 29.3 % of it (95 %: 127 to 132 ms)``; of a bound the ends, and no middle.

    What costs no time says what it concerns: ``28 layers, 100 % of all``.
    """
    if finding.cost.unit == "count":
        return f"{amount(finding.cost.value, finding.cost.unit)} {finding.cost.method}"
    if finding.cost.unit != "ms":
        size = "" if finding.cost.unit == "1" else f"{amount(finding.cost.value, finding.cost.unit)}, "
        return f"concerns {size}{percent(finding.share)}{NBSP}% of all"
    if finding.cost.bound and has_interval(finding.cost):
        between = interval(finding.cost).replace(" to ", " and ")
        return f"costs between {between}{NBSP}ms per step (how much of it, this run cannot tell)"
    said = f"costs {amount(finding.cost.value, finding.cost.unit)} per step, {percent(finding.share)}{NBSP}% of it"
    ends = interval(finding.cost)
    return f"{said} (95{NBSP}%: {ends}{NBSP}{finding.cost.unit})" if ends else said


def prediction(finding: Finding, remedy: Remedy, wall: Estimate | None) -> str:
    """Return what the remedy should save, how sure that is, and what it cannot touch; empty where no time is meant."""
    if remedy.predicted is None:
        if finding.cost.unit != "ms":
            return ""
        return "what it would save cannot be predicted from this run: try it, and compare"
    if remedy.predicted.unit != "ms":
        return f"predicted to help {amount(remedy.predicted.value, remedy.predicted.unit)}"
    ends = interval(remedy.predicted)
    between = f"95{NBSP}%: {ends}{NBSP}ms" if ends else ""
    if spans_zero(remedy.predicted):
        said = f"undecided: {amount(remedy.predicted.value, 'ms')} per step ({between}, spans zero)"
    elif remedy.predicted.bound:
        said = f"would save at most {amount(remedy.predicted.high, 'ms')} per step, {gain(remedy.predicted, wall)}"
    else:
        said = f"would save {amount(remedy.predicted.value, 'ms')} per step, {gain(remedy.predicted, wall)}"
        said += f" ({between})" if between else ""
    stays = remedy.fixed.value if remedy.fixed is not None else 0.0
    return said + (f"; {amount(stays, 'ms')} stay either way" if stays >= NOTHING_MS else "")


def outcome(remedy: Remedy, wall: Estimate | None) -> str:
    """Return what the remedy did save; empty until it has been measured."""
    if remedy.outcome is None:
        return ""
    ends = interval(remedy.outcome)
    between = f" (95{NBSP}%: {ends}{NBSP}ms)" if ends else ""
    held = f"; the prediction: {judge(remedy.predicted, remedy.outcome)}"
    if spans_zero(remedy.outcome):
        return f"measured: undecided, {amount(remedy.outcome.value, 'ms')} saved{between}{held}"
    return f"measured: saved {amount(remedy.outcome.value, 'ms')} per step, {gain(remedy.outcome, wall)}{between}{held}"


def overlap(finding: Finding) -> str:
    """Return what of a finding must not be added up: its own changes, and other findings; empty where all may be."""
    several = len([one for one in finding.remedies if _gains(one)]) > 1
    if not finding.overlaps:
        return "its changes may save the same time: do not add up what they save" if several else ""
    also = ", and its changes may save the same time" if several else ""
    return f"may hold the same time as {_numbered(finding.overlaps)}{also}: do not add up what they cost or save"


def apart(report: Report) -> str:
    """Return which of the gains beside the ledger must not be added up; empty where none may be of the same time."""
    groups = [_numbered(group) for group in _groups(report.findings)] if report.ledger else []
    if not groups:
        return ""
    first, *others = groups
    also = "".join(f", and so may {one}" for one in others)
    return f"Gains do not add up: {first} may save the same time{also}."


def _groups(findings: Sequence[Finding]) -> list[list[int]]:
    """Return the numbers of findings that gain and that overlaps, one leading to the next, bring together."""
    gaining = {number for number, finding in enumerate(findings, 1) if any(map(_gains, finding.remedies))}
    groups = []
    while gaining:
        group, waiting = set[int](), {min(gaining)}
        while waiting:
            group |= waiting
            waiting = {near for number in waiting for near in findings[number - 1].overlaps} & gaining - group
        gaining -= group
        groups.append(sorted(group))
    return [group for group in groups if len(group) > 1]


def _gains(remedy: Remedy) -> bool:
    """Return whether a change is told to save time, or may."""
    predicted = remedy.predicted
    if predicted is None or predicted.unit != "ms":
        return False
    return (predicted.value if predicted.high is None else predicted.high) > 0


def _numbered(numbers: Sequence[int]) -> str:
    *first, last = map(str, numbers)
    return f"findings {', '.join(first)} and {last}" if first else f"finding {last}"


def control(asked: Control) -> str:
    """Return what a control expected and what it recovered; where the two differ, also how far they may."""
    expected, recovered = (
        f"{value:,.6g}" if isfinite(value) else MISSING for value in (asked.expected, asked.recovered)
    )
    may = f" (±{100 * asked.tolerance:.2g}{NBSP}% allowed)" if expected != recovered and asked.tolerance else ""
    return f"{asked.name}: expected {expected}, recovered {recovered}{may}"


def controls(report: Report) -> str:
    """Return how many known answers were recovered."""
    return f"{sum(one.ok for one in report.controls)} of {len(report.controls)} recovered"


def verdict(report: Report) -> str:
    """Return the verdict with its reason beside it; a comparison that fails is ``slower``. Empty when all is well."""
    if report.verdict == "ok":
        return ""
    word = "slower" if report.command == "compare" and report.verdict == "fail" else report.verdict
    return f"{word}: {visible(report.reason)}" if report.reason else word


def next_steps(report: Report) -> tuple[tuple[str, str], ...]:
    """Return the commands that carry on from here, each with what it does; none where there is no run folder."""
    if report.run is None or report.command in ("verify", "compare"):
        return ()
    run = shlex.quote(report.run)
    verify = (f"stepprobe verify {run}", "derives every figure again from the raw evidence")
    compare = (f"stepprobe compare {run} AFTER", "after a change: what it gained, by account")
    return (verify, compare) if report.ledger and report.command != "trace" else (verify,)
