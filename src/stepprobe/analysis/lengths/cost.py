"""What a batch costs: a + b·slots + c·slots·length, from a measured fit, the model's arithmetic, or tokens alone."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stepprobe.analysis.limits.decoder import Decoder, read_decoder
from stepprobe.analysis.limits.flops import micro_step, total
from stepprobe.errors import EvidenceError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

FIT, MODEL = "fit.json", "model.json"
"""Evidence files: a fit of the three terms, and a model's ``config.json``."""


@dataclass(frozen=True)
class Cost:
    """Cost of a batch of B rows padded to L slots: ``fixed + linear·B·L + square·B·L²``."""

    fixed: float
    linear: float
    square: float
    source: str
    """Where the terms come from, for a person."""
    timed: bool
    """Whether costs are milliseconds; else only their ratios mean anything."""
    seen: tuple[int, int] | None = None
    """Longest row, and most slots of a batch, that a fit was made from; None where nobody says."""

    def beyond(self, longest: int, slots: int) -> str:
        """Say so where costs are asked that a fit saw nothing like; else empty."""
        if self.seen is None or (longest <= self.seen[0] and slots <= self.seen[1]):
            return ""
        return (
            f"the fit saw rows of at most {self.seen[0]:,} slots and batches of at most {self.seen[1]:,}; rows of up "
            f"to {longest:,} and batches of up to {slots:,} slots are beyond that: take times and order with care"
        )

    def total(self, batches: float, slots: float, squares: float) -> float:
        """Return the cost of many batches from their number, their slots and the squares of their rows' slots."""
        return self.fixed * batches + self.linear * slots + self.square * squares

    def batch(self, rows: float, length: "Floats") -> "Floats":
        """Return the cost of batches of some rows, by their length in slots."""
        return self.fixed + self.linear * rows * length + self.square * rows * length**2


TOKENS = Cost(0.0, 1.0, 0.0, "tokens alone (name a model's config with --model, or a fit with --fit)", False)


def choose(files: Mapping[str, bytes]) -> Cost:
    """Return the best model of cost that the evidence allows.

    Raises:
        EvidenceError: The fit or the config makes no sense.
    """
    if FIT in files:
        return _from_fit(_object(files[FIT], FIT))
    if MODEL in files:
        return _from_config(model_sizes(files)) or TOKENS
    return TOKENS


def _from_fit(fit: Mapping[str, Any]) -> Cost:
    try:
        terms = [float(fit[name]) for name in ("a", "b", "c")]
    except (KeyError, TypeError, ValueError) as error:
        raise EvidenceError(f"{FIT} must hold a, b and c: ms a batch, a slot, and a slot times its length") from error
    if not all(map(math.isfinite, terms)):
        raise EvidenceError(f"{FIT} holds a term that is no finite number: fit it again over more lengths")
    if min(terms) < 0 or terms[1] == 0:
        raise EvidenceError(f"{FIT} holds a negative term, or none for slots: fit it again over more lengths")
    reach = [fit.get(name) for name in ("longest", "slots")]
    seen = (reach[0], reach[1]) if isinstance(reach[0], int) and isinstance(reach[1], int) else None
    return Cost(terms[0], terms[1], terms[2], "a measured fit of a + b·slots + c·slots·length, in ms", True, seen)


def model_sizes(files: Mapping[str, bytes]) -> Decoder | None:
    """Return what a ``config.json`` says of a model; None where there is none.

    Raises:
        EvidenceError: It lacks a size.
    """
    if MODEL not in files:
        return None
    try:
        return read_decoder(_object(files[MODEL], MODEL))
    except EvidenceError as error:
        raise EvidenceError(f"{MODEL}: {error}") from error


def _from_config(decoder: Decoder | None) -> Cost | None:
    """Return the arithmetic of forward and backward: so much for a slot, and for a slot times its row's length.

    Of the pairs only the causal half is counted, in windows too; a kernel that computes all of them costs up to twice
    the square term.
    """
    if decoder is None:
        return None
    one = micro_step(decoder, 1, 1, "square")
    square = total(product for product in one if product.pairwise) / 2
    linear = total(product for product in one if not product.pairwise)
    source = "the FLOPs of the model's config (no fixed cost a batch is known)"
    if decoder.not_read:
        source += f"; not exact: {'; '.join(decoder.not_read)}"
    return Cost(0.0, float(linear), square, source, False)


def _object(content: bytes, name: str) -> Mapping[str, Any]:
    try:
        held = json.loads(content)
    except ValueError as error:
        raise EvidenceError(f"{name} is no JSON: {error}") from error
    if not isinstance(held, dict):
        raise EvidenceError(f"{name} is no JSON object")
    return held
