"""The report as one JSON object: the contract of ``--json`` and of ``report.json``."""

import json
import math
import re

import msgspec

from stepprobe.model.report import Report
from stepprobe.report.text import visible

FIELDS = (
    *("schema", "command", "verdict", "figures", "findings", "controls", "run"),
    *("title", "headline", "reason", "ledger", "tables", "charts", "notes", "environment"),
)
"""Keys in the order in which they are written: the contract first, then what the other renderers draw."""

_SURROGATE = re.compile("[\ud800-\udfff]")
_DRAWN = re.compile(r"[^ -~\n]")

Plain = dict[str, "Plain"] | list["Plain"] | tuple["Plain", ...] | str | int | float | bool | None


def render(report: Report) -> str:
    """Return the report as one JSON object in one line, ending in a line break.

    A number that is not finite is ``null``. Text is exact, with unseen characters escaped, except that a lone
    surrogate, which no UTF-8 can hold, is drawn as ``‹U+DC80›``.
    """
    fields: Plain = {name: msgspec.to_builtins(getattr(report, name)) for name in FIELDS}
    written = json.dumps(_finite(fields), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return _DRAWN.sub(_escaped, written) + "\n"


def schema() -> str:
    """Return the JSON Schema (2020-12) of what ``render`` writes, ending in a line break."""
    described = msgspec.json.schema(Report)
    described["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    document = described["$defs"]["Report"]
    document["properties"] = {name: document["properties"][name] for name in FIELDS}
    document["required"] = list(FIELDS)
    return json.dumps(_nullable(described), indent=2, ensure_ascii=False) + "\n"


def _finite(value: Plain) -> Plain:
    match value:
        case dict():
            return {_encodable(key): _finite(held) for key, held in value.items()}
        case list() | tuple():
            return [_finite(held) for held in value]
        case float():
            return value if math.isfinite(value) else None
        case str():
            return _encodable(value)
    return value


def _encodable(text: str) -> str:
    return _SURROGATE.sub(lambda found: visible(found[0]), text)


def _escaped(found: re.Match[str]) -> str:
    character = found[0]
    if visible(character) == character:
        return character
    return f"\\u{ord(character):04x}" if ord(character) <= 0xFFFF else json.dumps(character)[1:-1]


def _nullable(value: Plain) -> Plain:
    """Return the schema with every ``number`` open for ``null``, as a number that is not finite is written."""
    if isinstance(value, dict):
        opened = {key: _nullable(held) for key, held in value.items()}
        return opened | {"type": ["number", "null"]} if value.get("type") == "number" else opened
    return [_nullable(held) for held in value] if isinstance(value, list) else value
