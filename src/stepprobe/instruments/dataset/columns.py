"""Which column of a record holds its length, its tokens or its text, and what the value is."""

import difflib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stepprobe.errors import UsageError
from stepprobe.model.lengths import IGNORED

LENGTH_NAMES = ("length", "lengths", "n_tokens", "num_tokens", "token_count", "seq_len", "input_length", "n")
MESSAGE_NAMES = ("messages", "conversations", "conversation", "chat")
TEXT_NAMES = ("text", "content", "document")
SOURCE_NAMES = ("source", "dataset", "subset")

LENGTH_MOST = 1 << 40
"""Tokens from which on a number is taken for something else."""

Span = tuple[int, int]
"""Smallest and largest of some ids, the smallest being 0 where none is negative."""
NO_IDS: Span = (0, -1)

_ID_MOST = 1 << 63
_ROLES = {"human": "user", "gpt": "assistant", "bot": "assistant"}


class BadValue(Exception):
    """A row whose value cannot be used."""


@dataclass(frozen=True)
class Fields:
    """The columns that are used, and what they hold."""

    kind: str
    """``lengths``, ``input_ids``, ``messages``, ``prompt+completion`` or ``text``."""
    column: str
    source: str | None
    labelled: str | None = None
    """Column with the number of labelled tokens, beside lengths."""


def choose(names: Sequence[str], column: str | None, source: str | None) -> Fields:
    """Choose columns by name.

    Raises:
        UsageError: A column that was asked for is missing, or none looks like rows.
    """
    for wanted in (column, source):
        if wanted is not None and wanted not in names:
            raise UsageError(f"no column {wanted!r}{_nearest(wanted, names)}; there are: {_shown(names)}")
    origin = source or next((name for name in SOURCE_NAMES if name in names), None)
    if column is not None:
        return Fields(_kind(column), column, origin)
    for kind, known in (("lengths", LENGTH_NAMES), ("input_ids", ("input_ids",)), ("messages", MESSAGE_NAMES)):
        if found := next((name for name in known if name in names), None):
            return Fields(kind, found, origin, "labelled" if kind == "lengths" and "labelled" in names else None)
    if "prompt" in names and "completion" in names:
        return Fields("prompt+completion", "completion", origin)
    if found := next((name for name in TEXT_NAMES if name in names), None):
        return Fields("text", found, origin)
    raise UsageError(
        f"no column of lengths, input_ids, messages or text; there are: {_shown(names)}. Name one with --column"
    )


def _shown(names: Sequence[str]) -> str:
    """Return the names of columns, which are foreign text, for a message."""
    return ", ".join(name if name.isprintable() else ascii(name) for name in names) or "none"


def _kind(column: str) -> str:
    if column in LENGTH_NAMES:
        return "lengths"
    if column == "input_ids":
        return "input_ids"
    return "messages" if column in MESSAGE_NAMES else "any"


def _nearest(word: str, known: Sequence[str]) -> str:
    found = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f" (did you mean {found[0]}?)" if found else ""


def length_of(value: object) -> int:
    """Return a length from a cell.

    Raises:
        BadValue: It is no whole number of at least zero.
    """
    if value is None:
        raise BadValue("the row has no length")
    if isinstance(value, str):
        try:
            value = float(value) if "." in value else int(value)
        except ValueError:
            raise BadValue(f"length {value!r} is no number") from None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, int) and value >= LENGTH_MOST:
        raise BadValue(f"length {value} is no length of a row: it is {LENGTH_MOST:,} tokens or more")
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise BadValue(f"length {value!r} is not a whole number of tokens, 0 or more")
    return value


@dataclass(frozen=True)
class Ids:
    """What a row of token ids says about itself."""

    length: int
    labelled: int
    padded: bool
    span: Span
    """Of its ids, padding included."""
    labels: Span
    """Of its labels, those of tokens without loss left out."""


def wider(*spans: Span) -> Span:
    """Return the span of all."""
    return min(low for low, _ in spans), max(high for _, high in spans)


def ids_of(record: Mapping[str, Any], column: str, pad: int | None) -> Ids:
    """Count a row of ``input_ids``; padding inside it is seen by its attention mask, or as a run of pad tokens.

    Raises:
        BadValue: It is no list of numbers.
    """
    ids = record.get(column)
    if ids is None:
        raise BadValue(f"the row has no {column}")
    if not isinstance(ids, list) or (ids and isinstance(ids[0], list | bool)):
        of = f" of {type(ids[0]).__name__}s" if isinstance(ids, list) else ""
        raise BadValue(f"{column} is a {type(ids).__name__}{of}, not a list of token ids")
    mask, length = record.get("attention_mask"), len(ids)
    if isinstance(mask, list) and len(mask) == length:
        real = sum(1 for one in mask if one)
    else:
        real = length - _pad_run(ids, pad)
    labelled, labels = _labels_of(record.get("labels")) or (real, NO_IDS)
    return Ids(real, min(labelled, real), real < length, _span(ids, column), labels)


def _labels_of(labels: object) -> tuple[int, Span] | None:
    """Return how many labels bear loss, and their span; None for none, or another kind: a classifier's.

    Raises:
        BadValue: There is a hole among them.
    """
    if not isinstance(labels, list):
        return None
    try:
        return len(labels) - labels.count(IGNORED), _span(set(labels) - {IGNORED}, "labels")
    except (BadValue, TypeError):
        if None in labels:
            raise BadValue("labels holds null among its token ids") from None
        return None


def _span(ids: Collection[int], column: str) -> Span:
    """Return the span of whole numbers; their sum tells whether all are, since a dataset holds very many."""
    try:
        low, high = min(ids, default=0), max(ids, default=-1)
        whole = isinstance(sum(ids), int) and _is_id(low) and _is_id(high)
    except TypeError:
        whole = False
    if not whole:
        raise BadValue(f"{column} holds something else among its token ids")
    return min(low, 0), high


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -_ID_MOST <= value < _ID_MOST


def _pad_run(ids: list[int], pad: int | None) -> int:
    """Return how many pad tokens end the row, one spared: where pad is also the end of text it may be real."""
    if pad is None:
        return 0
    run = 0
    while run < len(ids) and ids[-1 - run] == pad:
        run += 1
    return run - 1 if run > 1 else 0


def text_of(value: object, column: str) -> str:
    """Return a text.

    Raises:
        BadValue: It is null or no string.
    """
    if not isinstance(value, str):
        raise BadValue(f"{column} is {'null' if value is None else 'a ' + type(value).__name__}, not a string")
    return value


def messages_of(value: object, column: str) -> list[dict[str, Any]]:
    """Return chat messages with ``role`` and ``content``; ShareGPT's ``from`` and ``value`` are renamed.

    Raises:
        BadValue: It is no list of messages, or a content is null without tool calls.
    """
    if not isinstance(value, list):
        raise BadValue(
            f"{column} is {'null' if value is None else 'a ' + type(value).__name__}, not a list of messages"
        )
    if not value:
        raise BadValue(f"{column} is an empty list")
    found = []
    for number, message in enumerate(value):
        if not isinstance(message, dict):
            raise BadValue(f"{column}[{number}] is a {type(message).__name__}, not a message")
        speaker = "from" if "role" not in message and "value" in message else "role"
        if not isinstance(message.get(speaker), str):
            raise BadValue(f"{column}[{number}] has no {speaker} that is a string")
        if speaker == "from":
            message = {"role": _ROLES.get(message["from"], message["from"]), "content": message["value"]}
        if message.get("content") is None and not message.get("tool_calls"):
            raise BadValue(f"{column}[{number}] has no content")
        found.append(message)
    return found


def characters(messages: Sequence[Mapping[str, Any]]) -> int:
    """Return the characters of all contents."""
    return sum(
        len(content) if isinstance(content := one.get("content"), str) else len(str(content)) for one in messages
    )
