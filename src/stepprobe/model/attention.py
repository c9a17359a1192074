"""What an attention probe saw: calls, masks as runs of keys, the batch, the layers, and the twin's influence."""

import hashlib
from typing import Literal

import msgspec

from stepprobe.errors import EvidenceError

CAPTURE_SCHEMA = 1
CAPTURE = "attention.json"
ONE_SHORT = ("right", "left")
"""Kinds of a batch that was made to ask: its last row is short, whatever the rows of the job are."""
KEPT = "kept"
"""Kind of a batch that a job passed."""

Run = tuple[int, int, int, int]
"""Keys that one row sees: first, end (exclusive), and how far each of the two moves from row to row (0 or 1)."""


class Rows(msgspec.Struct, frozen=True, kw_only=True):
    """Neighbouring query rows whose visible keys move together."""

    first: int
    """First row."""
    end: int
    """Row after the last one."""
    runs: tuple[Run, ...] = ()
    """Runs of keys that row ``first`` sees, in order; none when it sees nothing."""


class Mask(msgspec.Struct, frozen=True, kw_only=True):
    """One distinct attention mask, exact, without its matrix."""

    name: str
    queries: int
    keys: int
    patterns: tuple[tuple[Rows, ...], ...] = ()
    """Distinct patterns over the batch; none when the values could not be read."""
    batch: tuple[int, ...] = ()
    """Index into ``patterns`` for each row of the batch."""
    rows_read: int = 0
    """Query rows that were evaluated in full; the others follow from them."""
    rows_checked: int = 0
    """Rows drawn at random and found as they had been deduced."""
    opaque: str = ""
    """Why its values could not be read; empty when they were."""


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One attention call, as the model made it."""

    layer: str
    """Qualified name of the module that called."""
    module: str
    """Class of that module."""
    api: str
    """``sdpa``, ``eager``, ``flash_attention_2``, ``flex_attention``, or ``softmax`` for hand-written attention."""
    query: tuple[int, ...]
    key: tuple[int, ...]
    value: tuple[int, ...]
    """Shapes (batch, heads, length, head_dim)."""
    dtype: str
    mask: str | None = None
    """Name of the mask; None when the call was given none."""
    mask_shape: tuple[int, ...] = ()
    mask_dtype: str = ""
    mask_last_stride: int = 1
    mask_grad: bool = False
    is_causal: bool = False
    gqa: bool = False
    """The call asked the kernel to share key heads among query heads (``enable_gqa``)."""
    kv_heads: int = 0
    """Key heads before they were repeated for the query heads."""
    dropout: float = 0.0
    softcap: bool = False
    sinks: bool = False
    bias: bool = False
    """A position bias is added to the scores."""
    window: int | None = None
    """Sliding window that the attention interface was given, tokens."""


class Layer(msgspec.Struct, frozen=True, kw_only=True):
    """One layer as the config declares it."""

    index: int
    kind: str
    """``full``, ``sliding``, ``chunked``, ``bidirectional``, or the config's own word for a layer without attention."""
    size: int | None = None
    """Tokens of the window or the chunk."""
    attention: bool = True
    """Whether the layer holds an attention call at all."""


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """The batch in run-length form."""

    kind: str
    size: int
    length: int
    names: tuple[str, ...]
    """Arguments that the model was given."""
    use_cache: bool | None = None
    """As the loop passes it, or off where it passes none and the config says so; None when neither says anything."""
    valid: tuple[tuple[tuple[int, int], ...], ...] = ()
    """For each row, runs (first, end) of tokens that are no padding; empty when there is no 2-D mask."""
    positions: tuple[tuple[tuple[int, int], ...], ...] = ()
    """For each row, (index, position) wherever positions do not go on by one; empty when there are none."""
    boundaries: tuple[int, ...] = ()
    """Cumulative document lengths, as padding-free collators pass them."""
    blocks: tuple[tuple[tuple[int, int, int], ...], ...] = ()
    """For each row, runs (first, end, id) of tokens of one image; id is never negative."""


class Influence(msgspec.Struct, frozen=True, kw_only=True):
    """Which logits of a tiny model move when one token is replaced."""

    name: str
    """``batch`` (the probe's own batch in small), ``bidirectional`` and ``causal`` (the two controls)."""
    batch: Batch
    layers: tuple[Layer, ...] = ()
    rows: tuple[str, ...] = ()
    """For each query the tokens that moved it, one ``1`` or ``0`` a token."""
    failed: str = ""
    """Why it could not be run; empty when it was."""


class Slow(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the model that can run on a slow path, and whether its fast one is there."""

    kind: str
    """``linear_attention``, ``experts``."""
    module: str
    """Class of the modules."""
    layers: int
    """Modules of this class."""
    missing: tuple[str, ...] = ()
    """Packages that the fast path needs and that are not installed."""
    path: str = ""
    """What runs instead."""


class Capture(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that was seen of one model under one batch."""

    model_type: str
    model_class: str
    attention: str
    """Attention implementation that the model chose."""
    compiled: bool
    """Whether the job runs under ``torch.compile``."""
    parameters: int
    batch: Batch
    layers: tuple[Layer, ...]
    calls: tuple[Call, ...] = ()
    masks: tuple[Mask, ...] = ()
    twin: tuple[Influence, ...] = ()
    slow: tuple[Slow, ...] = ()
    notes: tuple[str, ...] = ()
    failed: str = ""
    """Why the forward pass did not end; empty when it did."""
    positions: int = 0
    """Tokens of a row that the config allows (``max_position_embeddings``); 0 where it names no number."""
    position_kind: Literal["", "table", "rotary"] = ""
    """How the model tells positions apart: by a table with a row each, by rotation, or by neither."""
    vocabulary: int = 0
    """Ids that the model can embed (``vocab_size``); 0 where the config names no number."""
    schema: Literal[1] = 1


def write_capture(capture: Capture) -> bytes:
    """Return the bytes of ``attention.json``: the capture, then a line with its SHA-256."""
    body = msgspec.json.encode(capture)
    return body + b"\n" + hashlib.sha256(body).hexdigest().encode() + b"\n"


def read_capture(content: bytes) -> Capture:
    """Read a capture back.

    Raises:
        EvidenceError: It is damaged, half-written or of a newer schema.
    """
    body, _, tail = content.rstrip(b"\n").rpartition(b"\n")
    if hashlib.sha256(body).hexdigest().encode() != tail:
        raise EvidenceError(f"{CAPTURE} is damaged or half-written: its checksum does not fit; run the probe again")
    try:
        return msgspec.json.decode(body, type=Capture)
    except msgspec.DecodeError as error:
        raise EvidenceError(f"{CAPTURE} was written by another stepprobe ({error}); run the probe again") from error
