"""FLOPs of the user's own model: by arithmetic where the counter agrees, else by what the counter saw."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from stepprobe.analysis.limits.decoder import Decoder, read_decoder
from stepprobe.analysis.limits.flops import Convention, Product, hardware, micro_step, total
from stepprobe.errors import EvidenceError
from stepprobe.model.experiments import Counted, Structure

EAGER = ("eager", "softmax", "")
"""Attention implementations that compute the full square, and its scores once."""


@dataclass(frozen=True)
class ModelFlops:
    """FLOPs of a micro-step of the user's model at any shape."""

    decoder: Decoder | None
    """None where arithmetic is not to be believed."""
    structure: Structure | None
    counts: tuple[Counted, ...]
    agrees: bool | None
    """Arithmetic is the counter to the last digit, at every shape that was counted; None where nothing was."""
    terms: tuple[Fraction, Fraction] | None
    """FLOPs of a row: a token, and a token times the row's length, as the counter saw them."""
    notes: tuple[str, ...]

    @property
    def source(self) -> str:
        """Where the figures come from, for a person."""
        if self.decoder is None:
            return "as counted on tensors without storage"
        return "arithmetic of the config" + (", equal to the counter to the last digit" if self.agrees else "")

    def products(self, rows: int, length: int, convention: Convention) -> tuple[Product, ...] | None:
        """Return the products of a micro-step; None where only the counter is believed."""
        if self.decoder is None or self.structure is None:
            return None
        return micro_step(self.decoder, rows, length, convention)

    def model(self, rows: int, length: int, convention: Convention) -> int | None:
        """Return forward and backward of a micro-step; None where it is not known at this shape or convention."""
        products = self.products(rows, length, convention)
        if products is not None:
            return total(products)
        if convention == "real":
            return None
        for one in self.counts:  # the same length: rows are alike
            if one.length == length and sum(one.flops.values()) * rows % one.rows == 0:
                return sum(one.flops.values()) * rows // one.rows
        if self.terms is None:
            return None
        linear, square = self.terms
        return int(rows * (linear * length + square * length * length))

    def of_rows(self, tokens: Sequence[int]) -> int | None:
        """Return forward and backward of rows at their own lengths, attention within each; None where not known.

        Where only the counter is believed, each row counts every query with every key.
        """
        if self.decoder is not None and self.structure is not None:
            return total(micro_step(self.decoder, 1, sum(tokens), "real", documents=tokens))
        if self.terms is None:
            return None
        linear, square = self.terms
        return int(sum(linear * one + square * one * one for one in tokens))

    def executed(self, rows: int, length: int) -> int | None:
        """Return what the hardware does: kernels that compute scores again, and layers that run twice."""
        if self.structure is None:
            return None
        flash = self.structure.attention not in EAGER
        products = self.products(rows, length, "real" if flash else "square")
        return None if products is None else hardware(products, flash, self.structure.checkpointing)


def model_flops(structure: Structure | None, counts: Sequence[Counted]) -> ModelFlops:
    """Hold arithmetic against the counter."""
    notes = [f"FLOPs at {one.rows} × {one.length} were not counted: {one.failure}" for one in counts if one.failure]
    notes += [f"PyTorch's counter misses {text}: counted here" for text in {one.corrected for one in counts} if text]
    seen = tuple(one for one in counts if not one.failure and one.flops)
    decoder = _decoder(structure, notes)
    agrees = None
    if decoder is not None and structure is not None and seen:
        agrees = True
        for one in seen:
            told = total(micro_step(decoder, one.rows, one.length, "square"))
            if agrees and told != sum(one.flops.values()):
                agrees = False
                notes.append(
                    f"FLOPs of {one.rows} × {one.length}: {told:,} by arithmetic, {sum(one.flops.values()):,} counted; "
                    "they should be equal to the last digit, so the counter's are used, which count the full square"
                )
    elif decoder is not None:
        notes.append("FLOPs are arithmetic of the config alone: nothing was counted to hold them against")
    return ModelFlops(
        decoder=None if agrees is False else decoder,
        structure=structure,
        counts=seen,
        agrees=agrees,
        terms=_terms(seen),
        notes=tuple(notes),
    )


def _decoder(structure: Structure | None, notes: list[str]) -> Decoder | None:
    if structure is None or not structure.config:
        notes.append("the model has no config: its FLOPs are what the counter saw, if it saw any")
        return None
    try:
        decoder = read_decoder(structure.config, structure.weights, structure.embedding_gradient)
    except EvidenceError as error:
        notes.append(f"FLOPs by arithmetic: {error}; the counter stands alone")
        return None
    if decoder.not_read:
        notes.append(
            f"FLOPs by arithmetic: not written down for {'; '.join(decoder.not_read)}; the counter stands alone"
        )
        return None
    return decoder


def _terms(seen: Sequence[Counted]) -> tuple[Fraction, Fraction] | None:
    """Return FLOPs of a row a token, and a token times length, from counts at two lengths; None if they do not fit."""
    rows = {one.length: Fraction(sum(one.flops.values()), one.rows) for one in seen}
    if len(rows) < 2:
        return None
    short, long = min(rows), max(rows)
    square = (rows[long] / long - rows[short] / short) / (long - short)
    linear = rows[short] / short - square * short
    fits = all(flops == linear * length + square * length * length for length, flops in rows.items())
    return (linear, square) if fits else None
