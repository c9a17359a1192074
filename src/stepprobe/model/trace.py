"""A trace as columns: what is kept of each row of a profiler trace, in integer nanoseconds.

A row becomes 22 to 49 bytes: each column is as wide as its values need. The columns are the evidence of ``stepprobe
trace``; the file that they were read from is named by its SHA-256. Rows stand in a canonical order (start, longest
first, then names), so the order of events in the file changes nothing.

Layout of a column file, little-endian: an 8-byte magic, the arrays, the widest first and else in the order of
``ARRAYS``, the header as JSON, the header's length in 8 hex digits, and the SHA-256 of all of that in 64 hex digits.
"""

import hashlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from stepprobe.errors import EvidenceError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing

    Ints = np.typing.NDArray[np.integer[Any]]
    Mask = np.typing.NDArray[np.bool_]

COLUMNS_SCHEMA = 2
MAGIC = b"steptrc1"
SUFFIX = ".columns"
"""Ending of column files in a run folder."""
SUMMARY_SUFFIX = ".summary.json"
"""Ending of files that hold a summary in place of columns, where columns would not fit into memory."""
UNREAD = "unread.json"
"""Evidence file that says which of the named traces could not be read, and why."""

OP, ANNOTATION, PYTHON, LAUNCH, KERNEL, MEMCPY, MEMSET, DEVICE_ANNOTATION = range(1, 9)
"""Kinds of rows. Device time is KERNEL, MEMCPY and MEMSET, nothing else."""

KIND_OF = {
    "cpu_op": OP,
    "operator": OP,
    "user_annotation": ANNOTATION,
    "python_function": PYTHON,
    "cuda_runtime": LAUNCH,
    "cuda_driver": LAUNCH,
    "runtime": LAUNCH,
    "hip_runtime": LAUNCH,
    "kernel": KERNEL,
    "gpu_memcpy": MEMCPY,
    "memcpy": MEMCPY,
    "gpu_memset": MEMSET,
    "memset": MEMSET,
    "gpu_user_annotation": DEVICE_ANNOTATION,
}
"""Kind by lower-cased category; rows of other categories are not kept, but counted."""

ARRAYS = {
    "start": "<i8",
    "duration": "<i4",
    "correlation": "<i1",
    "external": "<i1",
    "sequence": "<i1",
    "name": "<i4",
    "thread": "<i1",
    "kind": "<i1",
}
"""Columns and the narrowest type of each; ids are never added up, so they may be as narrow as they are small."""

_WIDTHS = ("<i1", "<i2", "<i4", "<i8")
_FIRST_TYPES = dict(zip(ARRAYS, ("<i8", "<i8", "<i8", "<i8", "<i8", "<i4", "<i4", "<i1"), strict=True))
"""Types of schema 1, whose headers do not name them."""

ABSENT = -1
"""Stands for an id that a row does not carry."""


class Loss(msgspec.Struct, frozen=True, kw_only=True):
    """Something of the file that could not be used."""

    what: str
    """What it was, for a person."""
    count: int
    """Events (or bytes, as ``what`` says)."""
    of: int
    """Of how many."""


class TraceHeader(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a trace beside its rows."""

    schema: int = COLUMNS_SCHEMA
    name: str
    """File name without its folder."""
    source_bytes: int
    """Size of the file as it lay on disk."""
    source_sha256: str
    """Hash of the file as it lay on disk."""
    text_bytes: int
    """Bytes of JSON in it, after decompression."""
    read_cpu_ns: int = 0
    """CPU time that reading it took."""
    layout: str
    """``streamed`` or ``whole``: how it was decoded."""
    events: int
    """Events in the file."""
    rows: int
    """Rows that are kept."""
    skipped: dict[str, int] = {}
    """Events that are no rows, by phase and category (flows, counters, metadata)."""
    losses: tuple[Loss, ...] = ()
    origin_ns: int = 0
    """What was subtracted from every start, so that the earliest kept row starts at zero."""
    unit: str = "µs"
    """Unit of the time stamps in the file."""
    resolution_ns: float = 1000.0
    """Grid of the time stamps in the file."""
    rank: int | None = None
    world_size: int | None = None
    devices: tuple[str, ...] = ()
    """Names of the cards, as the file gives them."""
    names: tuple[str, ...] = ()
    threads: tuple[tuple[str, str], ...] = ()
    """(process, thread) as text; for device rows (device, stream)."""
    types: dict[str, str] = {}
    """Type of each column in its file; schema 1 does not say them."""


class Columns(msgspec.Struct, frozen=True, kw_only=True):
    """The rows of one trace."""

    header: TraceHeader
    start: "Ints"
    """ns after ``header.origin_ns``."""
    duration: "Ints"
    """ns; negative where the file says so."""
    correlation: "Ints"
    external: "Ints"
    """``External id``."""
    sequence: "Ints"
    """``Sequence number`` of the autograd node."""
    name: "Ints"
    """Place in ``header.names``."""
    thread: "Ints"
    """Place in ``header.threads``."""
    kind: "Ints"


def narrowed(name: str, column: "Ints") -> "Ints":
    """Return a column in the narrowest type that holds its values."""
    import numpy as np

    low, high = int(column.min(initial=0)), int(column.max(initial=0))
    for kind in _WIDTHS[_WIDTHS.index(ARRAYS[name]) :]:
        held = np.iinfo(kind)
        if held.min <= low and high <= held.max:
            return column.astype(kind, copy=False)
    return column


def encode_columns(columns: Columns) -> Iterator[bytes | memoryview]:
    """Yield the parts of a column file; joined or written one after the other they are the file."""
    digest = hashlib.sha256()
    for part in _parts(columns):
        digest.update(part)
        yield part
    yield digest.hexdigest().encode()


def _parts(columns: Columns) -> Iterator[bytes | memoryview]:
    import numpy as np

    yield MAGIC
    types = {name: getattr(columns, name).dtype.newbyteorder("<").str.replace("|", "<") for name in ARRAYS}
    for name, kind in _laid_out(types):
        yield np.ascontiguousarray(getattr(columns, name), kind).view("u1").data
    header = msgspec.json.encode(msgspec.structs.replace(columns.header, schema=COLUMNS_SCHEMA, types=types))
    yield header
    yield b"%08x" % len(header)


def _laid_out(types: dict[str, str]) -> list[tuple[str, str]]:
    """Return the columns and their types as they follow each other: the widest first, so that each is aligned."""
    return sorted(((name, types[name]) for name in ARRAYS), key=lambda column: -_WIDTHS.index(column[1]))


def decode_columns(name: str, content: bytes) -> Columns:
    """Read a column file back; its arrays are views into ``content``.

    Raises:
        EvidenceError: It is damaged, or of a newer schema.
    """
    import numpy as np

    if hashlib.sha256(memoryview(content)[:-64]).hexdigest().encode() != content[-64:] or content[:8] != MAGIC:
        raise EvidenceError(f"{name}: damaged (its checksum does not match); restore it, or read the trace again")
    length = int(content[-72:-64], 16)
    try:
        header = msgspec.json.decode(memoryview(content)[-72 - length : -72], type=TraceHeader)
        columns = _laid_out(header.types or _FIRST_TYPES)
    except (msgspec.DecodeError, UnicodeDecodeError, LookupError, ValueError) as error:
        raise EvidenceError(f"{name}: its header is not of this schema ({error}); upgrade stepprobe") from error
    if header.schema > COLUMNS_SCHEMA:
        raise EvidenceError(f"{name}: written by a newer stepprobe (schema {header.schema}); upgrade stepprobe")
    arrays, place = {}, len(MAGIC)
    for column, kind in columns:
        arrays[column] = np.frombuffer(content, kind, header.rows, place)
        place += header.rows * np.dtype(kind).itemsize
    return Columns(header=header, **arrays)
