"""How the user's own step grows, and what each change would gain: from experiments to the report."""

from stepprobe.analysis.controls import recover
from stepprobe.analysis.profile.known import EXPECTED, known_experiments
from stepprobe.analysis.profile.report import profile_report
from stepprobe.instruments.trace.reader import read_bytes
from stepprobe.model.evidence import Evidence
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
    return profile_report(evidence, recover(profile_report(known, ()).figures, expected, usual=TOLERANCE), read_bytes)
