"""The lines of ``steps-rank<R>-pid<P>.jsonl``: what one training process wrote about its own steps.

Each line is one JSON object whose last key is ``crc``, the CRC-32 (8 hex digits) of the line up to ``,"crc"``. The
writer (``instruments/attach/recorder.py``) uses the standard library alone; this is the reader's side. Times are
integer nanoseconds; ``start_ns`` counts from the header's ``origin_unix_ns``.
"""

import re
import zlib
from collections.abc import Iterable
from typing import Literal, TypeVar

import msgspec

from stepprobe.errors import EvidenceError

RECORDS_SCHEMA = 1


class Header(msgspec.Struct, frozen=True, kw_only=True, tag="header", tag_field="type"):
    """First line: who writes."""

    schema: int
    rank: int
    local_rank: int
    world_size: int
    pid: int
    origin_unix_ns: int
    """Wall-clock time (UTC, since the epoch) at which ``start_ns`` is zero."""
    python: str
    versions: dict[str, str]
    """Versions of the packages that were loaded when the first step began."""
    unit_cost_ns: dict[str, float]
    """Calibrated cost of each kind of hook, beyond what hooks time of themselves."""


class Facts(msgspec.Struct, frozen=True, kw_only=True, tag="facts", tag_field="type"):
    """What was seen of the job's set-up; a later line overrides an earlier one, key by key."""

    facts: dict[str, str | int | float | bool]


class Step(msgspec.Struct, frozen=True, kw_only=True, tag="step", tag_field="type"):
    """One optimizer step in full."""

    index: int
    """0 for the first step of the process."""
    start_ns: int
    wall_ns: int
    cpu_ns: int
    """CPU time of the training thread during the step."""
    self_ns: int
    """Our own cost on that thread during the step: timed inside hooks, plus calls times unit cost."""
    detail: bool
    """True: forward and backward are split by module. False: they are booked whole, as ``forward`` and ``backward``."""
    accounts: dict[str, tuple[int, int]]
    """Account -> (wall ns, of which off the CPU ns). The wall ns sum to ``wall_ns`` exactly."""
    counters: dict[str, int]
    """Counts of this step: ``slots real labelled micro_steps forwards backwards no_grad_forwards new_shapes syncs
    syncs_untimed train_walks train_walk_ns amp_skipped loader_starts``; absent means zero, but see facts ``counts.*``.

    ``rows``: rows of its micro-batches. Where their lengths (real tokens) are known: ``longest_slots``, the slots if
    each micro-batch were padded to its longest row; ``row_squares``, the sum of their squares; ``mixed_squares``, that
    of their distances from the mean of their micro-batch. ``losses loss_rows``: calls of ``cross_entropy``, and the
    targets they got, those to be ignored among them."""
    end: Literal["boundary", "train_end", "exit"] = "boundary"
    """What ended it: the next step's beginning, the framework's end of training, or the end of the script (then the
    step's end is the last event seen in it)."""
    aside: Literal["", "profiler", "experiments", "parts"] = ""
    """Why this step is like no other of the run and stays out of every mean; empty for an ordinary one."""


class Summary(msgspec.Struct, frozen=True, kw_only=True, tag="summary", tag_field="type"):
    """Sums over steps ``first`` .. ``last`` that are not kept in full; two summaries merge by adding."""

    first: int
    last: int
    count: int
    """Steps summed here (of one kind, detailed or not, so it can be below ``last - first + 1``)."""
    detail: bool
    wall_ns: int
    cpu_ns: int
    self_ns: int
    accounts: dict[str, tuple[int, int]]
    counters: dict[str, int]
    wall_histogram: dict[str, int]
    """Steps by ``floor(8 · log2(wall_ns))``."""


class Sites(msgspec.Struct, frozen=True, kw_only=True, tag="sites", tag_field="type"):
    """Cumulative tables, written now and then; the last one stands."""

    step: int
    syncs: list[tuple[str, str, int, int, int]]
    """(place ``file:line function``, operation, calls, calls timed, ns of the timed ones)."""
    samples: list[tuple[str, str, str, int]]
    """(account, innermost line of the user's code, innermost line, samples)."""
    shapes: list[tuple[str, int]]
    """(shape of the input ids, micro-batches)."""
    sampler: dict[str, int]
    """``interval_ns taken``: how samples were taken."""
    rates: dict[str, float]
    """Last numbers that the framework itself logged about speed and tokens."""


class Note(msgspec.Struct, frozen=True, kw_only=True, tag="note", tag_field="type"):
    """Something that was skipped or went wrong inside the instrument."""

    text: str


class End(msgspec.Struct, frozen=True, kw_only=True, tag="end", tag_field="type"):
    """Last line of a process that ended in an orderly way."""

    steps: int
    reason: str


Line = TypeVar("Line")

Record = Header | Facts | Step | Summary | Sites | Note | End

_DECODER = msgspec.json.Decoder(Record)
_CRC = re.compile(rb',"crc":"([0-9a-f]{8})"\}$')


class ProcessRecords(msgspec.Struct, frozen=True, kw_only=True):
    """Everything one training process wrote, decoded."""

    name: str
    header: Header
    facts: dict[str, str | int | float | bool]
    steps: tuple[Step, ...]
    summaries: tuple[Summary, ...]
    sites: Sites | None
    notes: tuple[str, ...]
    ended: str | None
    """Reason of the end record; None when the process was killed."""
    cut_bytes: int
    """Bytes of a last line that was never finished."""


def decode_process(name: str, data: bytes) -> ProcessRecords:
    """Decode one ``steps-*.jsonl`` file.

    An unfinished last line (the process was killed while writing) is dropped and counted.

    Raises:
        EvidenceError: A finished line is damaged, or the file is of a newer schema.
    """
    records, cut_bytes = decode_lines(name, data, _DECODER)
    if not records or not isinstance(records[0], Header):
        raise EvidenceError(f"{name}: has no header line; the process ended before it wrote one")
    if records[0].schema > RECORDS_SCHEMA:
        raise EvidenceError(
            f"{name}: written by a newer stepprobe (schema {records[0].schema}, this one reads up to "
            f"{RECORDS_SCHEMA}); upgrade stepprobe"
        )
    return _collect(name, records[0], records[1:], cut_bytes)


def decode_lines(name: str, data: bytes, decoder: "msgspec.json.Decoder[Line]") -> tuple[list[Line], int]:
    """Decode sealed lines; return them and the bytes of a last line that was never finished.

    Raises:
        EvidenceError: A finished line is damaged or not of this schema.
    """
    body, _, cut = data.rpartition(b"\n")
    lines = enumerate(body.split(b"\n"), 1)
    return [_decode_line(name, number, line, decoder) for number, line in lines if line], len(cut)


def _decode_line(name: str, number: int, line: bytes, decoder: "msgspec.json.Decoder[Line]") -> Line:
    match = _CRC.search(line)
    if match is None or int(match[1], 16) != zlib.crc32(line[: match.start()]):
        raise EvidenceError(f"{name}:{number}: damaged line (its checksum does not match); the evidence was changed")
    try:
        return decoder.decode(line)
    except msgspec.DecodeError as error:
        raise EvidenceError(f"{name}:{number}: not a record of this schema ({error})") from error


def _collect(name: str, header: Header, records: Iterable[Record], cut_bytes: int) -> ProcessRecords:
    facts: dict[str, str | int | float | bool] = {}
    steps: list[Step] = []
    summaries: list[Summary] = []
    notes: list[str] = []
    sites: Sites | None = None
    ended: str | None = None
    for record in records:
        match record:
            case Step():
                steps.append(record)
            case Summary():
                summaries.append(record)
            case Facts():
                facts.update(record.facts)
            case Sites():
                sites = record
            case Note():
                notes.append(record.text)
            case End():
                ended = record.reason
            case Header():
                raise EvidenceError(f"{name}: a second header line; two processes wrote into one file")
    return ProcessRecords(
        name=name,
        header=header,
        facts=facts,
        steps=tuple(steps),
        summaries=tuple(summaries),
        sites=sites,
        notes=tuple(notes),
        ended=ended,
        cut_bytes=cut_bytes,
    )
