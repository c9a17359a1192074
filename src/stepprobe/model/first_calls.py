"""The lines of ``batches-rank0-pid<P>.jsonl``: what attention masks depend on, of the first calls of a job's model.

The writer is ``instruments/attach/first_calls.py``; each line is sealed as those of ``records`` are.
"""

import re
from collections.abc import Mapping

import msgspec

from stepprobe.model.records import decode_lines

BATCHES = re.compile(r"batches-rank0-pid\d+(-\d+)?\.jsonl")
FORETOLD = "masks-{number}.json"
"""A capture of the masks of one kept call, made when the job had ended."""
UNTOLD = "masks-untold.json"
"""Why the masks of kept calls were not foretold."""


class ModelLine(msgspec.Struct, frozen=True, kw_only=True, tag="model", tag_field="type"):
    """A model that was called."""

    number: int
    name: str
    """Its class."""
    known: bool
    """Whether class and config are transformers' own."""
    config: str
    """JSON; empty when it was too long."""
    attention: str
    """Attention implementation."""
    dtype: str
    """Type of its first floating parameter."""
    compiled: bool
    checkpointing: bool
    card: str
    """Name of the device that trained."""


class Argument(msgspec.Struct, frozen=True, kw_only=True):
    """One argument of a call."""

    kind: str
    """Type of its elements, or its class where it is no tensor."""
    shape: tuple[int, ...] | None = None
    rows: tuple[tuple[int, ...], ...] | None = None
    """Each row as its first value, then (slope, steps) in turn."""
    cut: str = ""
    """Why no values were kept of an argument whose values matter."""
    value: int | None = None


class CallLine(msgspec.Struct, frozen=True, kw_only=True, tag="call", tag_field="type"):
    """A call that was kept."""

    model: int
    training: bool
    arguments: dict[str, Argument]
    attended: dict[str, int] | None
    """Calls of ``scaled_dot_product_attention`` by ``dtype mask is_causal queries x keys``; None where not counted."""
    autocast: str | None = None
    """Element type of the autocast around the call, empty outside any; None where that could not be told."""


class KeptCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call with its model."""

    number: int
    """From 1, in the order of the calls."""
    model: ModelLine
    call: CallLine


_DECODER = msgspec.json.Decoder(ModelLine | CallLine)


def read_first_calls(files: Mapping[str, bytes]) -> tuple[KeptCall, ...]:
    """Return the calls that were kept, of all processes that wrote any.

    Raises:
        EvidenceError: A finished line is damaged.
    """
    kept: list[KeptCall] = []
    for name in sorted(name for name in files if BATCHES.fullmatch(name)):
        lines, _ = decode_lines(name, files[name], _DECODER)
        models = {line.number: line for line in lines if isinstance(line, ModelLine)}
        calls = [line for line in lines if isinstance(line, CallLine) and line.model in models]
        first = len(kept) + 1
        kept += [
            KeptCall(number=number, model=models[call.model], call=call) for number, call in enumerate(calls, first)
        ]
    return tuple(kept)


def element_type(one: KeptCall) -> tuple[str, str]:
    """Return the element type in which a call computed, and where that is known from; empty where it is not."""
    if one.call.attended:
        return next(iter(one.call.attended)).split()[0], "the attention that the run was seen to compute"
    if one.call.autocast:
        return one.call.autocast, "autocast of the run"
    told = "" if one.call.autocast is not None else ", were there no autocast: that was not recorded"
    return one.model.dtype, f"the parameters of the run{told}" if one.model.dtype else ""


def values(row: tuple[int, ...]) -> list[int]:
    """Return the values of one row."""
    found = [row[0]]
    for slope, steps in zip(row[1::2], row[2::2], strict=True):
        begin = found[-1]
        found += [begin + slope * (place + 1) for place in range(steps)]
    return found
