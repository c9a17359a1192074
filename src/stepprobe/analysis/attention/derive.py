"""From the evidence of a capture to its report, after a known one was recovered."""

from stepprobe.analysis.attention.answer import Answer, answer
from stepprobe.analysis.attention.figures import mask_figures
from stepprobe.analysis.attention.kernels import CARDS, card_of
from stepprobe.analysis.attention.known import EXPECTED, known_capture
from stepprobe.analysis.attention.report import mask_report, nothing
from stepprobe.analysis.attention.twin import DOCUMENT, FUTURE
from stepprobe.analysis.controls import recover
from stepprobe.errors import UsageError
from stepprobe.model.attention import CAPTURE, read_capture
from stepprobe.model.evidence import Evidence
from stepprobe.model.report import Report

_TWIN = (FUTURE, DOCUMENT)
"""The twin's own controls, which are asked on each run."""


def mask_answer(evidence: Evidence) -> Report:
    """Return the report of a capture.

    Raises:
        EvidenceError: The capture is damaged.
        UsageError: The card is not known.
    """
    known = {name: value for name, value in EXPECTED.items() if name not in _TWIN}
    controls = recover(mask_figures(_answer(known_capture())), known)
    if CAPTURE not in evidence.files:
        return nothing(evidence, controls)
    return mask_report(evidence, _answer(evidence), controls)


def _answer(evidence: Evidence) -> Answer:
    card = evidence.options.get("card") or card_of(evidence.options.get("device", ""))
    try:
        return answer(read_capture(evidence.files[CAPTURE]), card)
    except KeyError as error:
        raise UsageError(f"unknown card {card!r}; there are: {', '.join(CARDS)}") from error
