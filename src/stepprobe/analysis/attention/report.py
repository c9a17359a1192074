"""From a capture to the report of ``stepprobe mask``."""

from stepprobe.analysis.attention.answer import Answer
from stepprobe.analysis.attention.assertions import Assertion, assertions
from stepprobe.analysis.attention.figures import mask_figures
from stepprobe.analysis.attention.findings import mask_findings
from stepprobe.analysis.attention.kernels import Card
from stepprobe.analysis.attention.pictures import pictures
from stepprobe.analysis.attention.tables import assertion_table, kernel_table, layer_table
from stepprobe.analysis.attention.views import View
from stepprobe.analysis.unmeasured import unmeasured
from stepprobe.model.attention import Capture
from stepprobe.model.evidence import Evidence
from stepprobe.model.finding import Control
from stepprobe.model.report import Report, Verdict


def mask_report(evidence: Evidence, told: Answer, controls: tuple[Control, ...]) -> Report:
    """Return the report of a capture; ``controls`` are those of the derivation, beside the twin's own."""
    broken = [one.name for one in controls if not one.ok]
    reason = told.unmeasured or (f"the known capture was not recovered: {', '.join(broken)}" if broken else "")
    asked = assertions(told)
    tables, charts = pictures(told)
    verdict = "not measured" if reason else _verdict(told, asked)
    return Report(
        command=evidence.command,
        verdict=verdict,
        title=evidence.subject,
        headline=f"not measured: {reason}" if reason else headline(told, asked),
        figures=mask_figures(told),
        findings=mask_findings(told),
        controls=(*controls, *told.controls),
        tables=(layer_table(told), kernel_table(told), assertion_table(asked), *tables),
        charts=charts,
        notes=(*told.capture.notes, *_notes(told, evidence.options.get("dtype_from", ""))),
        environment=dict(evidence.environment),
    )


def _verdict(told: Answer, asked: tuple[Assertion, ...]) -> Verdict:
    if any(one.holds is False and not one.warns for one in asked) or (told.twin is not None and told.twin.total):
        return "fail"
    return "warn" if mask_findings(told) else "ok"


def headline(told: Answer, asked: tuple[Assertion, ...]) -> str:
    """Return the verdict in one line."""
    layers = len(told.views)
    if not layers:
        clean = (
            "nothing leaks in the small model"
            if told.twin_clean
            else f"{_twin_total(told):,} pairs leak in the small model"
        )
        return f"no attention layer; {clean}"
    fast, right = sum(map(told.fast, told.views)), sum(map(told.correct, told.views))
    masked = sum(view.mask is not None and view.call.api == "sdpa" and told.fast(view) for view in told.views)
    kernel = f"fast kernel on {fast}/{layers} layers ({told.card.name}, predicted)"
    kernel += f", for a mask computing all pairs on {masked}" if masked else ""
    parts = [kernel, f"mask right on {right}/{layers}"]
    if failed := [one for one in asked if one.holds is False and not one.warns]:
        parts.append("; ".join(f"not so: {one.claim}" for one in failed[:2]))
    return " · ".join(parts)


def _twin_total(told: Answer) -> int:
    return told.twin.total if told.twin is not None else 0


def _notes(told: Answer, dtype_from: str) -> tuple[str, ...]:
    capture = told.capture
    dtype = ", ".join(dict.fromkeys(_dtype(view, told.card) for view in told.views)) or told.card.dtype
    dtype += f" ({dtype_from})" if dtype_from else ""
    notes = [f"Kernels: {told.card.name}, {dtype}, training; predicted from rules, no GPU was asked."]
    unread = {mask.name: mask.opaque for mask in capture.masks if mask.opaque}
    notes += [f"{name} could not be read ({why}); the twin decides on it." for name, why in unread.items()]
    notes += [
        f"{mask.name}: {mask.rows_read:,} of {mask.queries:,} query rows were read, the others follow from them; "
        f"{mask.rows_checked} drawn at random were as deduced."
        for mask in capture.masks
        if not mask.opaque and mask.rows_read < mask.queries
    ]
    sizes = {(layer.kind, layer.size) for one in capture.twin for layer in one.layers if layer.size}
    small = ", ".join(f"{kind} {size}" for kind, size in sorted(sizes, key=str))
    length = next((one.batch.length for one in capture.twin), 0)
    notes.append(
        f"The twin is a random model of the same class at {length} tokens" + (f" ({small})." if small else ".")
    )
    if told.twin is not None and told.twin.unheeded:
        notes.append(
            "The small model sees beyond its window: this class does not heed the window of its config. At this length "
            "the real one hides nothing, so nothing is wrong here; longer rows would be."
        )
    if capture.compiled:
        notes.append("Masks are made as under torch.compile of the installed torch.")
    return tuple(notes)


def _dtype(view: View, card: Card) -> str:
    """Return the element type of a call on a card, which may have no bfloat16."""
    return card.dtype if view.call.dtype == "bfloat16" else view.call.dtype


def nothing(evidence: Evidence, controls: tuple[Control, ...]) -> Report:
    """Return the report of evidence that holds no capture."""
    said = f"not measured: no capture was kept (the probe: {evidence.status}); run stepprobe mask again"
    return unmeasured(evidence, said, controls=controls)


def empty_capture(capture: Capture) -> bool:
    """Tell whether a capture saw nothing at all."""
    return not capture.calls and not capture.layers
