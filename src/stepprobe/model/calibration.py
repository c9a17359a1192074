"""The lines of ``calibration.jsonl``: each a prediction beside what came of it, kept over all comparisons.

The log lies in the folder of run folders and grows by whole lines; each is sealed with a checksum, so that a damaged
one is seen and the others still count.
"""

import re
import zlib
from collections.abc import Sequence

import msgspec

from stepprobe.model.promise import Judgement

CALIBRATION_SCHEMA = 1
CALIBRATION = "calibration.jsonl"
"""Name of the log, beside the run folders."""

_CRC = re.compile(rb',"crc":"([0-9a-f]{8})"\}$')


class Range(msgspec.Struct, frozen=True, kw_only=True):
    """A value with its 95 % interval, ms per step of the run before."""

    value: float
    low: float | None
    high: float | None
    bound: bool = False
    """Only the ends are known: nothing, and the most that the change can save."""


class Pair(msgspec.Struct, frozen=True, kw_only=True, tag="pair", tag_field="type"):
    """One prediction and its outcome."""

    schema: int = CALIBRATION_SCHEMA
    kind: str
    """Kind of the finding, or ``joint`` where several changes came at once."""
    remedy: str
    """Stable name of the change; several are joined by `` + ``."""
    predicted: Range
    measured: Range
    held: Judgement
    before: str
    """Name of the run folder that made the prediction."""
    after: str
    """Name of the run folder in which the change was made."""
    before_started: str
    after_started: str
    """When the two runs began, as their manifests say."""
    machine: str

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What makes it the same pair when it is compared again."""
        return self.before, self.after, self.kind, self.remedy


class _Schema(msgspec.Struct):
    schema: int


def encode_pair(pair: Pair) -> bytes:
    """Return the line of a pair, sealed, with its line break."""
    body = msgspec.json.encode(pair)[:-1]
    return body + b',"crc":"%08x"}\n' % zlib.crc32(body)


def decode_pairs(content: bytes) -> tuple[list[Pair], list[str]]:
    """Return the pairs of a log, each once, and why lines could not be read."""
    found: dict[tuple[str, str, str, str], Pair] = {}
    problems = []
    for number, line in enumerate(content.split(b"\n"), 1):
        if not line:
            continue
        pair, problem = _decode(line)
        if pair is not None:
            found.setdefault(pair.key, pair)
        else:
            problems.append(f"line {number} of {CALIBRATION} {problem}; the other lines are used")
    return list(found.values()), problems


def _decode(line: bytes) -> tuple[Pair | None, str]:
    match = _CRC.search(line)
    if match is None or int(match[1], 16) != zlib.crc32(line[: match.start()]):
        return None, "is damaged (its checksum does not match)"
    try:
        if (schema := msgspec.json.decode(line, type=_Schema).schema) > CALIBRATION_SCHEMA:
            return None, f"was written by a newer stepprobe (schema {schema}); upgrade stepprobe"
        return msgspec.json.decode(line, type=Pair), ""
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return None, f"is no pair of this schema ({error})"


def missing(content: bytes, pairs: Sequence[Pair]) -> list[Pair]:
    """Return the pairs that a log does not hold yet."""
    known = {pair.key for pair in decode_pairs(content)[0]}
    return [pair for pair in pairs if pair.key not in known]
