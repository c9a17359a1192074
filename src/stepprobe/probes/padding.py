"""How much of each batch is padding, what cutting rows costs, and what the loss needs: from lengths alone."""

from stepprobe.analysis.lengths.known import PADDING_EXPECTED, two_lengths
from stepprobe.analysis.lengths.padding_answer import padding_answer
from stepprobe.model.evidence import Evidence
from stepprobe.model.harness import Subject
from stepprobe.model.report import Report

SUMMARY = "how much of each batch is padding, what max_length costs, and what the loss needs in memory"


def measure(subject: Subject) -> Evidence:
    """Observe the subject; interpret nothing."""
    return subject.observe()


def control() -> tuple[Evidence, dict[str, float]]:
    """Return a dataset whose padding is known, and the answer by figure name."""
    return two_lengths("padding"), dict(PADDING_EXPECTED)


def derive(evidence: Evidence) -> Report:
    """Derive the report of a dataset, after recovering a known one.

    Raises:
        EvidenceError: The evidence is damaged.
        UsageError: An option makes no sense.
    """
    return padding_answer(evidence)
