"""The known trace, read as any other: what reader and derivation must recover before they are believed."""

from collections.abc import Callable

from stepprobe.analysis import controls
from stepprobe.analysis.trace.known import EXPECTED, known_trace
from stepprobe.analysis.trace.report import trace_report
from stepprobe.model.evidence import Evidence
from stepprobe.model.finding import Control
from stepprobe.model.trace import Columns, encode_columns

Reader = Callable[[str, bytes], Columns]
"""Reads the bytes of a trace, given its name."""


def control(read: Reader) -> tuple[Evidence, dict[str, float]]:
    """Return a trace whose answer is known, and that answer by figure name."""
    files = {"known.columns": b"".join(encode_columns(read("known.json", known_trace())))}
    return Evidence(probe="trace", command="trace", subject="known.json", environment={}, files=files), dict(EXPECTED)


def recover(read: Reader) -> tuple[Control, ...]:
    """Derive the known trace and compare each figure with its answer."""
    known, expected = control(read)
    return controls.recover(trace_report(known).figures, expected)
