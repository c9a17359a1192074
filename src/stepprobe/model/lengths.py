"""The lengths of a dataset as evidence: ``lengths.npz`` holds histograms, ``lengths.json`` says of what.

The histograms do not depend on the number of rows, and two of them merge by adding. All arrays are integers of 64 bits
with one record in each row, sorted, so that the same dataset gives the same bytes whatever it was read from.
"""

import hashlib
import io
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from stepprobe.errors import EvidenceError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Table = NDArray[np.int64]

ARRAYS = "lengths.npz"
ABOUT = "lengths.json"
LENGTHS_SCHEMA = 1
IGNORED = -100
"""The label of a token without loss, for PyTorch's cross entropy and for transformers."""

COLUMNS = {
    "cells": ("source", "length", "rows"),
    "labelled": ("length", "labelled", "rows"),
    "chars": ("source", "chars", "rows"),
    "sample": ("source", "chars", "length", "labelled"),
    "longest": ("source", "chars", "length", "labelled"),
}
"""The arrays and their columns. ``cells`` and ``labelled`` hold rows whose length in tokens is known. Where only a part
was tokenised, ``sample`` holds a random sample, ``longest`` the longest rows, ``chars`` all others."""


class About(msgspec.Struct, frozen=True, kw_only=True):
    """What the histograms were counted from."""

    schema: int = LENGTHS_SCHEMA
    sources: tuple[str, ...] = ()
    """Names of the sources, by number, in alphabetical order."""
    rows: int = 0
    """Rows that are counted."""
    tokenised: int = 0
    """Rows whose length in tokens was counted by the tokenizer here; 0 where the data already held lengths."""
    kind: str = "lengths"
    """What each row held: ``lengths``, ``input_ids``, ``text``, ``messages``, ``prompt+completion``."""
    tokenizer: str = ""
    """Name and content hash of the tokenizer."""
    vocabulary: int = 0
    """Entries of the tokenizer's vocabulary; 0 where none was loaded."""
    loss_mask: str = "all"
    """Which tokens bear loss: ``all``, ``assistant``, ``completion``."""
    unmasked_rows: int = 0
    """Rows in which the loss mask marks no token."""
    padded_rows: int = 0
    """Rows that already contained padding (it is not counted as length)."""
    skipped_rows: int = 0
    """Rows that could not be read and were left out because that was asked for."""
    skipped: tuple[str, ...] = ()
    """The first of them, each with file, line and reason."""
    notes: tuple[str, ...] = ()
    """What else was left out or assumed while reading."""
    largest_id: int = -1
    """Largest token id in the rows that were looked at, the tokenizer's padding included; -1 where none was seen."""
    smallest_id: int = 0
    """Smallest token id in those rows where one is negative, else 0."""
    largest_label: int = -1
    """Largest label in those rows, those of tokens without loss (-100) left out; -1 where none was seen."""
    smallest_label: int = 0
    """Smallest of these labels where one is negative, else 0."""
    tokenizer_top: int = -1
    """Largest id that the tokenizer can give; -1 where none was loaded."""
    digest: str = ""
    """SHA-256 of ``lengths.npz`` followed by this object with an empty digest."""


_ABSENT = {"largest_id": -1, "smallest_id": 0, "largest_label": -1, "smallest_label": 0, "tokenizer_top": -1}
"""Fields that evidence of older versions lacks, as they read there: left out of the digest."""


@dataclass(frozen=True, kw_only=True)
class Lengths:
    """Everything that was seen of a dataset's lengths."""

    about: About
    cells: "Table"
    labelled: "Table"
    chars: "Table"
    sample: "Table"
    longest: "Table"

    @property
    def sampled(self) -> bool:
        """Tell whether only a part of the rows was tokenised."""
        return bool(len(self.chars))


def build(about: About, arrays: "Mapping[str, Table]") -> Lengths:
    """Return lengths from arrays by name; absent ones are empty."""
    import numpy as np

    whole = {name: arrays.get(name, np.zeros((0, len(columns)), np.int64)) for name, columns in COLUMNS.items()}
    return Lengths(about=about, **whole)


def encode(lengths: Lengths) -> dict[str, bytes]:
    """Return the two evidence files; the same lengths always give the same bytes."""
    import numpy as np

    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in COLUMNS:
            array = io.BytesIO()
            np.lib.format.write_array(array, getattr(lengths, name), version=(1, 0), allow_pickle=False)
            archive.writestr(zipfile.ZipInfo(f"{name}.npy"), array.getvalue(), zipfile.ZIP_DEFLATED, 1)
    arrays = written.getvalue()
    about = msgspec.structs.replace(lengths.about, digest=_digest(arrays, lengths.about))
    return {ARRAYS: arrays, ABOUT: msgspec.json.format(msgspec.json.encode(about), indent=1)}


def decode(files: Mapping[str, bytes]) -> Lengths | None:
    """Read evidence back; None where the dataset was never counted.

    Raises:
        EvidenceError: A file is missing, damaged or of a newer schema.
    """
    if ARRAYS not in files and ABOUT not in files:
        return None
    if ARRAYS not in files or ABOUT not in files:
        raise EvidenceError(f"{ARRAYS} and {ABOUT} belong together, and one is missing; count the dataset again")
    try:
        about = msgspec.json.decode(files[ABOUT], type=About)
    except msgspec.DecodeError as error:
        raise EvidenceError(f"{ABOUT} is damaged ({error}); count the dataset again") from error
    if about.schema > LENGTHS_SCHEMA:
        raise EvidenceError(f"{ABOUT} was written by a newer stepprobe (schema {about.schema}); upgrade stepprobe")
    if _digest(files[ARRAYS], about) != about.digest:
        raise EvidenceError(f"{ARRAYS} or {ABOUT} was changed after it was written; count the dataset again")
    return build(about, _read_arrays(files[ARRAYS]))


def _digest(arrays: bytes, about: About) -> str:
    fields = msgspec.to_builtins(msgspec.structs.replace(about, digest=""))
    described = msgspec.json.encode({name: held for name, held in fields.items() if _ABSENT.get(name) != held})
    return hashlib.sha256(arrays + described).hexdigest()


def _read_arrays(content: bytes) -> "dict[str, Table]":
    import numpy as np

    found: dict[str, Table] = {}
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as archive:
            for name, columns in COLUMNS.items():
                array = archive[name]
                if array.dtype != np.int64 or array.ndim != 2 or array.shape[1] != len(columns) or (array < 0).any():
                    raise EvidenceError(f"{ARRAYS}: {name} is no table of {', '.join(columns)}")
                found[name] = array
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise EvidenceError(f"{ARRAYS} is damaged ({error}); count the dataset again") from error
    return found
