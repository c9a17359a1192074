"""Where did the device's time go? From profiler traces to the report of ``stepprobe trace``."""

from stepprobe.model.evidence import Evidence
from stepprobe.model.harness import Subject
from stepprobe.model.report import Report

SUMMARY = "where the device's time in each step of a profiler trace goes, and why it stands still"


def measure(subject: Subject) -> Evidence:
    """Read the traces; interpret nothing."""
    return subject.observe()


def control() -> tuple[Evidence, dict[str, float]]:
    """Return a trace whose answer is known, and that answer by figure name."""
    from stepprobe.analysis.trace import control
    from stepprobe.instruments.trace.reader import read_bytes

    return control.control(read_bytes)


def derive(evidence: Evidence) -> Report:
    """Derive the report of traces, after recovering a known one.

    Raises:
        EvidenceError: The evidence is damaged.
    """
    from stepprobe.analysis.trace.control import recover
    from stepprobe.analysis.trace.report import trace_report
    from stepprobe.analysis.unmeasured import unmeasured
    from stepprobe.instruments.trace.reader import read_bytes

    controls = recover(read_bytes)
    report = trace_report(evidence, controls)
    if all(one.ok for one in controls):
        return report
    failed = ", ".join(one.name for one in controls if not one.ok)
    said = f"not measured: the known trace was not recovered ({failed}); please report this"
    return unmeasured(evidence, said, controls=controls)
