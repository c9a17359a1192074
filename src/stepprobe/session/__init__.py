"""Measure, keep, derive, report: the only place where instruments, evidence and renderers meet."""

from stepprobe.session.again import fit, recorded, report, trace_track
from stepprobe.session.kept import Result
from stepprobe.session.observing import ask, profile, run
from stepprobe.session.pairs import calibration, compare
from stepprobe.session.verifying import verify

__all__ = [
    "Result",
    "ask",
    "calibration",
    "compare",
    "fit",
    "profile",
    "recorded",
    "report",
    "run",
    "trace_track",
    "verify",
]
