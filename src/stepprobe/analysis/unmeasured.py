"""The one report of a probe that has nothing to show: why, and the known answers that it asked for first."""

from collections.abc import Mapping

from stepprobe.model.estimate import Estimate
from stepprobe.model.evidence import Evidence
from stepprobe.model.finding import Control
from stepprobe.model.report import Report

_NONE: Mapping[str, Estimate] = {}


def unmeasured(
    evidence: Evidence,
    headline: str,
    *,
    controls: tuple[Control, ...] = (),
    figures: Mapping[str, Estimate] = _NONE,
    notes: tuple[str, ...] = (),
) -> Report:
    """Return the report of evidence from which nothing can be derived.

    Args:
        evidence: What was kept.
        headline: Why, with the next step.
        controls: The known answers that were asked for.
        figures: What is known all the same.
        notes: What else has to be said.
    """
    return Report(
        command=evidence.command,
        verdict="not measured",
        title=evidence.subject,
        headline=headline,
        figures=dict(figures),
        controls=controls,
        notes=notes,
        environment=dict(evidence.environment),
    )
