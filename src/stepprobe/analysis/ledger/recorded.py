"""What a run says about its own batches: how many rows, how long, padded how. Each with where it is known from."""

from collections.abc import Iterator, Mapping

import msgspec

from stepprobe.analysis.ledger.job import read_job
from stepprobe.analysis.ledger.process import Process
from stepprobe.analysis.ledger.shapes import rectangles
from stepprobe.model.evidence import Evidence
from stepprobe.model.first_calls import Argument, KeptCall, element_type, read_first_calls, values


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """One setting of a run."""

    value: str
    source: str
    """Where it is known from, for a person."""


class Recorded(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a run's batches; None where nothing says them."""

    batch_size: Told | None = None
    """Rows that a device takes."""
    length: Told | None = None
    """Tokens of the longest row of a batch."""
    max_length: Told | None = None
    """Tokens after which the job cuts a row."""
    padding: Told | None = None
    """What the collator makes, as in ``--padding``."""
    dtype: Told | None = None
    """Element type in which the model computes, by torch's name."""


def recorded(evidence: Evidence) -> Recorded:
    """Read the settings of a run.

    Raises:
        EvidenceError: A finished line is damaged.
    """
    job = read_job(evidence)
    facts: Mapping[str, object] = job.main.facts if job.ranks else {}
    kept = tuple(one for one in read_first_calls(evidence.files) if one.call.training)
    shapes = [*_watched(job.main), *_kept(kept)] if job.ranks else list(_kept(kept))
    length = max((columns for _, columns in shapes), default=0)
    return Recorded(
        batch_size=_batch_size(facts, shapes),
        length=Told(value=str(length), source="the longest batch that the run was seen to make") if length else None,
        max_length=_fact(facts, "max_length"),
        padding=_padding(kept),
        dtype=_dtype(facts, kept),
    )


def _fact(facts: Mapping[str, object], name: str) -> Told | None:
    value = facts.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        return None
    return Told(value=str(value), source=f"{name} of the run")


def _batch_size(facts: Mapping[str, object], shapes: list[tuple[int, int]]) -> Told | None:
    for name in ("per_device_train_batch_size", "loader_batch_size"):
        if told := _fact(facts, name):
            return told
    return Told(value=str(shapes[0][0]), source="the batches that the run was seen to make") if shapes else None


def _dtype(facts: Mapping[str, object], kept: tuple[KeptCall, ...]) -> Told | None:
    """Return what the model itself was seen to do, then what the trainer was asked for, then what is left to tell."""
    seen = sorted(kept, key=lambda one: (not one.call.attended, not one.call.autocast))
    if seen and (seen[0].call.attended or seen[0].call.autocast):
        return _told(*element_type(seen[0]))
    for name, dtype in (("bf16", "bfloat16"), ("fp16", "float16")):
        if facts.get(name) is True:
            return Told(value=dtype, source=f"{name} of the run")
    return _told(*element_type(seen[0])) if seen else None


def _told(value: str, source: str) -> Told | None:
    return Told(value=value, source=source) if value else None


def _watched(process: Process) -> Iterator[tuple[int, int]]:
    """Yield rows and columns of the batches that were counted, the most frequent shape first."""
    for rows, columns, _ in sorted(rectangles(process), key=lambda one: -one[2]):
        yield rows, columns


def _kept(kept: tuple[KeptCall, ...]) -> Iterator[tuple[int, int]]:
    for one in kept:
        ids = one.call.arguments.get("input_ids")
        if ids is not None and ids.shape is not None and len(ids.shape) == 2:
            yield ids.shape[0], ids.shape[1]


def _padding(kept: tuple[KeptCall, ...]) -> Told | None:
    kinds = [_kind(one.call.arguments) for one in kept]
    told = next((kind for kind in kinds if kind not in ("none", "ones")), kinds[0] if kinds else None)
    of = "the batch" if len(kept) == 1 else f"the {len(kept)} batches"
    return Told(value=told, source=f"{of} that the run kept") if told else None


def _kind(arguments: Mapping[str, Argument]) -> str:
    """Return the word of ``--padding`` for one batch."""
    if "cu_seq_lens_k" in arguments:
        return "padding-free"
    masks = [values(row) for row in _rows(arguments, "attention_mask")]
    if any(0 in row[1:] for row in (values(row) for row in _rows(arguments, "position_ids"))):
        padded = any(0 in row for row in masks)
        return "packed-ones" if masks and not padded else "packed"
    if any(row[0] == 0 for row in masks if row):
        return "left"
    if any(row[-1] == 0 for row in masks if row):
        return "right"
    return "ones" if masks else "none"


def _rows(arguments: Mapping[str, Argument], name: str) -> tuple[tuple[int, ...], ...]:
    told = arguments.get(name)
    return told.rows or () if told is not None and told.shape is not None and len(told.shape) == 2 else ()
