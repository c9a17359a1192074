"""Which layers keep attention's fast path, and is every mask right? From a capture to the report."""

from collections.abc import Mapping

from stepprobe.analysis.attention.derive import mask_answer
from stepprobe.analysis.attention.known import EXPECTED, known_capture
from stepprobe.errors import AssertionFailed, NotObserved
from stepprobe.model.evidence import Evidence
from stepprobe.model.harness import Subject
from stepprobe.model.report import Report

SUMMARY = "which layers keep attention's fast path, and whether every mask is right"


def measure(subject: Subject) -> Evidence:
    """Observe the subject; interpret nothing."""
    return subject.observe()


def control() -> tuple[Evidence, dict[str, float]]:
    """Return a capture whose answer is known, and that answer by figure name."""
    return known_capture(), dict(EXPECTED)


def derive(evidence: Evidence) -> Report:
    """Derive the report of a capture, after recovering a known one.

    Raises:
        EvidenceError: The capture is damaged.
        UsageError: The card is not known.
    """
    return mask_answer(evidence)


def assert_masks(model_or_config: object, batch: Mapping[str, object], *, card: str = "") -> Report:
    """Assert that every mask of a model is right under a batch; return the report.

    Args:
        model_or_config: A model, a config of transformers, or the path or cached hub id of one. Weights are not read.
        batch: What the training loop passes to the model, unchanged. Without ``use_cache`` the config decides, as it
            does in the loop.
        card: Card for which kernels are predicted.

    Raises:
        AssertionFailed: A mask is wrong; the message says which and how.
        NotObserved: There is no verdict: a control did not fire, or calls and layers do not fit together.
        UsageError: There is no such model or card.
    """
    from stepprobe.instruments.attention.given import observe_given

    report = derive(observe_given(model_or_config, batch, card))
    if report.verdict == "not measured":
        raise NotObserved(report.headline)
    if report.verdict == "fail":
        wrong = [finding.title for finding in report.findings if finding.kind.startswith("mask.")]
        raise AssertionFailed("; ".join([report.headline, *wrong[:3]]))
    return report
