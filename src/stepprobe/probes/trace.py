"""Where did the device's time go? From profiler traces to the report of ``stepprobe trace``."""

import math
from collections.abc import Mapping

from stepprobe.model.estimate import Estimate
from stepprobe.model.evidence import Evidence
from stepprobe.model.finding import Control
from stepprobe.model.harness import Subject
from stepprobe.model.report import Report

SUMMARY = "where the device's time in each step of a profiler trace goes, and why it stands still"

EXACT = 1e-9
"""Relative error that floating point may add to a known answer."""


def measure(subject: Subject) -> Evidence:
    """Read the traces; interpret nothing."""
    return subject.observe()


def control() -> tuple[Evidence, dict[str, float]]:
    """Return a trace whose answer is known, and that answer by figure name."""
    from stepprobe.analysis.trace.known import EXPECTED, known_trace
    from stepprobe.instruments.trace.reader import read_bytes
    from stepprobe.model.trace import encode_columns

    columns = read_bytes("known.json", known_trace())
    files = {"known.columns": b"".join(encode_columns(columns))}
    return Evidence(probe="trace", command="trace", subject="known.json", environment={}, files=files), dict(EXPECTED)


def derive(evidence: Evidence) -> Report:
    """Derive the report of traces, after recovering a known one.

    Raises:
        EvidenceError: The evidence is damaged.
    """
    from stepprobe.analysis.trace.report import trace_report

    known, expected = control()
    controls = _recover(trace_report(known).figures, expected)
    report = trace_report(evidence, controls)
    if all(one.ok for one in controls):
        return report
    failed = ", ".join(one.name for one in controls if not one.ok)
    return Report(
        command=evidence.command,
        verdict="not measured",
        title=evidence.subject,
        headline=f"not measured: the known trace was not recovered ({failed}); please report this",
        figures={},
        controls=controls,
        environment=dict(evidence.environment),
    )


def _recover(figures: Mapping[str, Estimate], expected: Mapping[str, float]) -> tuple[Control, ...]:
    found = {name: figures[name].value if name in figures else math.nan for name in expected}
    return tuple(
        Control(name=name, expected=value, recovered=found[name], ok=math.isclose(found[name], value, rel_tol=EXACT))
        for name, value in expected.items()
    )
