"""Records as lines, for evidence whose answer is known: the same format that a training process writes."""

import zlib
from collections.abc import Iterable

import msgspec

from stepprobe.model.experiments import ExperimentRecord
from stepprobe.model.records import Record


def encode_process(records: Iterable[Record | ExperimentRecord]) -> bytes:
    """Return the bytes of a ``steps-*.jsonl`` or ``experiments-*.jsonl`` file that holds these records."""
    return b"".join(_line(record) for record in records)


def _line(record: Record | ExperimentRecord) -> bytes:
    body = msgspec.json.encode(record)[:-1]
    return body + b',"crc":"%08x"}\n' % zlib.crc32(body)
