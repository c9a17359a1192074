"""A capture, judged once: layers, twin, card; what figures, findings, assertions and tables are drawn from."""

import math

import msgspec

from stepprobe.analysis.attention.kernels import DEFAULT, Card
from stepprobe.analysis.attention.reference import Difference, packed
from stepprobe.analysis.attention.twin import TwinLeak, controls, leak
from stepprobe.analysis.attention.views import SQUARE, Joined, View, cards, join
from stepprobe.model.attention import Capture
from stepprobe.model.finding import Control

LOOP = "a loop over experts"
"""How a capture names experts that are run one after the other."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What a capture says."""

    capture: Capture
    card: Card
    joined: Joined
    twin: TwinLeak | None
    """None when the twin could not be run."""
    twin_failed: str
    """Why it could not be run; empty when it was."""
    controls: tuple[Control, ...]

    @property
    def views(self) -> tuple[View, ...]:
        """The attention layers."""
        return self.joined.views

    @property
    def packed(self) -> bool:
        """Whether rows of the batch hold more than one document."""
        return packed(self.capture.batch)

    @property
    def worst(self) -> Difference:
        """The difference of the layer that leaks most."""
        told = [view.difference for view in self.views if view.difference is not None]
        return max(told, key=lambda one: (one.leaked, one.missing), default=Difference())

    @property
    def twin_clean(self) -> bool:
        """Whether the twin was run and leaks nothing."""
        return self.twin is not None and self.twin.total == 0

    def correct(self, view: View) -> bool:
        """Tell whether a layer's mask is right; where it cannot be read the twin decides."""
        return self.twin_clean if view.right is None else view.right

    def fast(self, view: View) -> bool:
        """Tell whether a layer keeps a fast kernel on the card."""
        return view.choice(self.card).fast

    @property
    def fallback_layers(self) -> int:
        """Layers on a slow path: hand-written or eager attention, kernels that make all scores, loops."""
        slow = {
            view.layer.index
            for view in self.views
            if view.call.api in SQUARE or view.choice(self.card).kernel == "math"
        }
        loops = sum(part.layers for part in self.capture.slow if part.missing or part.path == LOOP)
        return len(slow) + loops

    @property
    def unmeasured(self) -> str:
        """Why there is no verdict; empty when there is one."""
        if self.capture.failed:
            return f"the forward pass of {self.capture.model_class} did not end: {self.capture.failed}"
        if self.joined.reason:
            return self.joined.reason
        if not self.views and not self.capture.layers:
            return "the config declares no layer that this probe knows"
        if self.twin_failed:
            return f"the twin was not run: {self.twin_failed}"
        if silent := [one.name for one in self.controls if not one.ok]:
            return f"a control did not fire: {', '.join(silent)}"
        return ""


def answer(capture: Capture, card: str = "") -> Answer:
    """Judge a capture on a card.

    Args:
        capture: What was seen.
        card: Name of the card; the default one when empty.
    """
    asked = next((one for one in capture.twin if one.name == "batch"), None)
    failed = "nothing was kept of it" if asked is None else asked.failed
    told = leak(asked, capture.model_type) if asked is not None and not failed else None
    if told is not None and told.reach and not _cuts(capture):
        told = msgspec.structs.replace(told, reach=0, unheeded=told.reach)
    return Answer(
        capture=capture,
        card=cards(card or DEFAULT),
        joined=join(capture),
        twin=told,
        twin_failed=failed,
        controls=controls(capture),
    )


def _cuts(capture: Capture) -> bool:
    """Tell whether a window or chunk of the config hides anything at the length of the batch."""
    return any(layer.attention and (layer.size or math.inf) < capture.batch.length for layer in capture.layers)
