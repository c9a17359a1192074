"""The sentences about a finding that every renderer says in the same words."""

import shlex
from math import isfinite

from stepprobe.model.estimate import Estimate
from stepprobe.model.finding import Control, Finding, Remedy
from stepprobe.model.report import Report
from stepprobe.report.numbers import MISSING, NBSP, amount, gain, interval, is_ceiling, percent, spans_zero


def cost(finding: Finding) -> str:
    """Return ``129.4 ms per step, 29.3 % of it (95 %: 127 to 132 ms)``."""
    said = f"{amount(finding.cost.value, finding.cost.unit)} per step, {percent(finding.share)}{NBSP}% of it"
    ends = interval(finding.cost)
    return f"{said} (95{NBSP}%: {ends}{NBSP}{finding.cost.unit})" if ends else said


def prediction(remedy: Remedy, wall: Estimate | None) -> str:
    """Return what the remedy should save, how sure that is, and what it cannot touch."""
    ends = interval(remedy.predicted)
    between = f"95{NBSP}%: {ends}{NBSP}ms" if ends else ""
    if spans_zero(remedy.predicted):
        said = f"undecided: {amount(remedy.predicted.value, 'ms')} per step ({between}, spans zero)"
    elif is_ceiling(remedy.predicted):
        said = f"would save at most {amount(remedy.predicted.high, 'ms')} per step, {gain(remedy.predicted, wall)}"
    else:
        said = f"would save {amount(remedy.predicted.value, 'ms')} per step, {gain(remedy.predicted, wall)}"
        said += f" ({between})" if between else ""
    return said + (f"; {amount(remedy.fixed.value, 'ms')} stay either way" if remedy.fixed is not None else "")


def outcome(remedy: Remedy, wall: Estimate | None) -> str:
    """Return what the remedy did save; empty until it has been measured."""
    if remedy.outcome is None:
        return ""
    ends = interval(remedy.outcome)
    between = f" (95{NBSP}%: {ends}{NBSP}ms)" if ends else ""
    if spans_zero(remedy.outcome):
        return f"measured: undecided, {amount(remedy.outcome.value, 'ms')} saved{between}"
    return f"measured: saved {amount(remedy.outcome.value, 'ms')} per step, {gain(remedy.outcome, wall)}{between}"


def control(asked: Control) -> str:
    """Return what a control expected and what it recovered."""
    expected, recovered = (
        f"{value:,.6g}" if isfinite(value) else MISSING for value in (asked.expected, asked.recovered)
    )
    return f"{asked.name}: expected {expected}, recovered {recovered}"


def next_steps(report: Report) -> tuple[tuple[str, str], ...]:
    """Return the commands that carry on from here, each with what it does; none where there is no run folder."""
    if report.run is None or report.command in ("verify", "compare"):
        return ()
    run = shlex.quote(report.run)
    verify = (f"stepprobe verify {run}", "derives every figure again from the raw evidence")
    compare = (f"stepprobe compare {run} AFTER", "after a change: what it gained, by account")
    return (verify, compare) if report.ledger and report.command != "trace" else (verify,)
