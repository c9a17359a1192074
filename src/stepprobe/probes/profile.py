"""How the user's own step grows, and what each change would gain: from experiments to the report."""

import math
from collections.abc import Mapping

from stepprobe.analysis.profile.known import EXPECTED, known_experiments
from stepprobe.analysis.profile.report import profile_report
from stepprobe.instruments.trace.reader import read_bytes
from stepprobe.model.estimate import Estimate
from stepprobe.model.evidence import Evidence
from stepprobe.model.finding import Control
from stepprobe.model.harness import Subject
from stepprobe.model.report import Report

SUMMARY = "how the step grows with rows and length, what padding and the loss cost, and what each change would gain"

TOLERANCE = 1e-6
"""Relative error of a known answer."""


def measure(subject: Subject) -> Evidence:
    """Observe the subject; interpret nothing."""
    return subject.observe()


def control() -> tuple[Evidence, dict[str, float]]:
    """Return experiments whose answer is known, and that answer by figure name."""
    return known_experiments(), dict(EXPECTED)


def derive(evidence: Evidence) -> Report:
    """Derive the report of the experiments, after recovering planted ones.

    Raises:
        EvidenceError: The evidence is damaged.
    """
    known, expected = control()
    return profile_report(evidence, _recovered(profile_report(known, ()).figures, expected), read_bytes)


def _recovered(figures: Mapping[str, Estimate], expected: Mapping[str, float]) -> tuple[Control, ...]:
    found = {name: figures[name].value if name in figures else math.nan for name in expected}
    return tuple(
        Control(
            name=name,
            expected=value,
            recovered=found[name],
            ok=math.isclose(found[name], value, rel_tol=TOLERANCE, abs_tol=1e-9),
            tolerance=TOLERANCE,
        )
        for name, value in expected.items()
    )
