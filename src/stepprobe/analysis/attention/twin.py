"""What the twin's influence says: which tokens moved logits that they should not, and did the controls fire?"""

from typing import TYPE_CHECKING

import msgspec

from stepprobe.analysis.attention.reference import document_bounds, expected, real_tokens
from stepprobe.model.attention import Batch, Capture, Influence, Layer
from stepprobe.model.finding import Control

if TYPE_CHECKING:
    import numpy as np

FUTURE = "twin.forced_bidirectional"
DOCUMENT = "twin.forced_causal"


class TwinLeak(msgspec.Struct, frozen=True, kw_only=True):
    """Pairs of tokens and logits that the twin joins and the reference keeps apart."""

    future: int = 0
    document: int = 0
    padding: int = 0
    reach: int = 0
    """Farther back than windows and chunks allow through all layers."""
    unheeded: int = 0
    """The same, where no window or chunk of the real model hides anything at the length of its batch: no leak there."""
    reached: int = 0
    """Greatest distance at which a token moved a later logit."""

    @property
    def total(self) -> int:
        """All of them."""
        return self.future + self.document + self.padding + self.reach


def matrix(influence: Influence) -> "np.ndarray":
    """Return which key (column) moved which query (row)."""
    import numpy as np

    return np.array([[mark == "1" for mark in row] for row in influence.rows], dtype=bool)


def leak(influence: Influence, model_type: str) -> TwinLeak:
    """Count the influence that no path through the layers allows."""
    import numpy as np

    moved = matrix(influence)
    batch, length = influence.batch, influence.batch.length
    real = real_tokens(batch, 0)
    index = np.arange(length)
    allowed = _paths(batch, influence.layers, model_type)
    wrong = moved & ~allowed & real[:, None]
    starts, _ = document_bounds(batch, 0, length)
    both_ways = all(layer.kind == "bidirectional" for layer in influence.layers if layer.attention)
    future = wrong & (index[None] > index[:, None]) & (not both_ways or not influence.layers)
    padding = wrong & ~future & ~real[None]
    document = wrong & ~future & ~padding & (starts[:, None] != starts[None])
    distance = np.where(moved & real[:, None], index[:, None] - index[None], 0)
    return TwinLeak(
        future=int(future.sum()),
        document=int(document.sum()),
        padding=int(padding.sum()),
        reach=int((wrong & ~future & ~padding & ~document).sum()),
        reached=int(distance.max()),
    )


def _paths(batch: Batch, layers: tuple[Layer, ...], model_type: str) -> "np.ndarray":
    """Return which key can reach which query through all layers."""
    import numpy as np

    length = batch.length
    reachable = np.eye(length, dtype=bool)
    for layer in layers or (Layer(index=0, kind="full"),):
        seen = _sees(batch, layer, model_type)
        reachable = (seen.astype(int) @ reachable.astype(int)) > 0
    return np.asarray(reachable | ~real_tokens(batch, 0)[:, None])


def _sees(batch: Batch, layer: Layer, model_type: str) -> "np.ndarray":
    """Return what one layer may see, its own token always; a layer without attention may see its document's past."""
    import numpy as np

    kind = layer if layer.attention else Layer(index=layer.index, kind="full")
    wanted = expected(batch, kind, 0, model_type)
    index = np.arange(batch.length)
    seen = (index[None] >= wanted.first[:, None]) & (index[None] < wanted.end[:, None]) & wanted.real[None]
    return np.asarray(seen | np.eye(batch.length, dtype=bool))


def controls(capture: Capture) -> tuple[Control, Control]:
    """Return the two controls: forced both ways the future must show, forced plainly causal documents must leak."""
    return (_control(capture, "bidirectional", FUTURE), _control(capture, "causal", DOCUMENT))


def _control(capture: Capture, name: str, figure: str) -> Control:
    import numpy as np

    asked = next((one for one in capture.twin if one.name == name), None)
    if asked is None or asked.failed or not asked.rows:
        return Control(name=figure, expected=1.0, recovered=0.0, ok=False)
    moved, index = matrix(asked), np.arange(asked.batch.length)
    if name == "bidirectional":
        want = index[None] > index[:, None]
    else:
        starts, _ = document_bounds(asked.batch, 0, asked.batch.length)
        want = (index[None] < index[:, None]) & (starts[:, None] != starts[None])
    wanted, recovered = int(want.sum()), int((moved & want).sum())
    return Control(name=figure, expected=float(wanted), recovered=float(recovered), ok=2 * recovered >= wanted > 0)
