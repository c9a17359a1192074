"""The rows of a step at their own lengths: what it computes beside its padding."""

from dataclasses import dataclass

from stepprobe.analysis.ledger.process import Process
from stepprobe.analysis.ledger.tokens import observed
from stepprobe.model.experiments import Harness

HIDDEN = 0.1
"""Part by which the rows may hold more tokens than the steps were counted to hold; beyond it lengths are unknown."""
UNKNOWN = "mfu.real is not told: "


@dataclass(frozen=True)
class Rows:
    """Rows of the micro-batches that were seen."""

    tokens: tuple[int, ...]
    """Real tokens of each."""
    times: float
    """Work of an optimizer step over that of all these rows."""


def rows_of(harness: Harness | None, process: Process) -> tuple[Rows | None, str]:
    """Return the rows of an optimizer step, at the tokens that the steps were counted to hold; or why not."""
    seen = [one for one in harness.batches if sum(one)] if harness else []
    if harness is None or not seen:
        return None, f"{UNKNOWN}no row's length was seen"
    if process.unmasked or not observed(process, "real"):
        return None, f"{UNKNOWN}without an attention mask nobody knows which slots are padding"
    tokens = tuple(length for one in seen for length in one if length > 0)
    counted = process.counter("real").value
    held = sum(tokens) / len(seen) * max(1, harness.micro_steps)
    if not counted or held > (1 + HIDDEN) * counted:
        return None, (
            f"{UNKNOWN}the rows that the model was called with hold {held:,.0f} tokens a step, {counted:,.0f} of which "
            "were counted as real, so their lengths are not known"
        )
    return Rows(tokens, counted / sum(tokens)), ""
