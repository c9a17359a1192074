"""What can be said before a job: are its masks right, its kernels there, its loss small enough, its batches full?"""

import msgspec

from stepprobe.analysis.attention.known import EXPECTED, known_capture
from stepprobe.analysis.check_report import check_report
from stepprobe.analysis.lengths.known import PADDING_EXPECTED, two_lengths
from stepprobe.model.evidence import Evidence
from stepprobe.model.harness import Subject
from stepprobe.model.report import Report

SUMMARY = "masks, missing kernels, bytes of the loss, padding and cut rows, before the job"


def measure(subject: Subject) -> Evidence:
    """Observe the subject; interpret nothing."""
    return subject.observe()


def control() -> tuple[Evidence, dict[str, float]]:
    """Return a capture and a dataset whose answers are known, and those answers by figure name."""
    capture, lengths = known_capture(), two_lengths("check")
    evidence = msgspec.structs.replace(lengths, files={**capture.files, **lengths.files})
    return evidence, {**EXPECTED, **PADDING_EXPECTED}


def derive(evidence: Evidence) -> Report:
    """Derive the joined report, after recovering known ones.

    Raises:
        EvidenceError: The evidence is damaged.
        UsageError: An option makes no sense.
    """
    return check_report(evidence)
