"""The user's tokenizer and chat template, without the framework around them: counts tokens as a trainer would."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepprobe.errors import UsageError

if TYPE_CHECKING:
    from jinja2 import Template
    from tokenizers import Tokenizer as Backend

_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "special_tokens_map.json")
_BEGIN, _END = "\0generation\1", "\0/generation\1"
"""Stand around what a template marks as the assistant's; taken out again before anything is counted."""


@dataclass
class Seen:
    """The ids that a tokenizer gave."""

    largest: int = -1

    def look(self, encodings: Sequence[Any]) -> None:
        """Look at the ids of some texts."""
        self.largest = max(self.largest, max((max(one.ids, default=-1) for one in encodings), default=-1))


@dataclass(frozen=True, kw_only=True)
class Tokenizer:
    """A tokenizer, loaded."""

    name: str
    sha256: str
    backend: "Backend"
    template: "Template | None"
    special: Mapping[str, str]
    pad: int | None
    marks_assistant: bool
    """Whether the template says which part the assistant wrote (``{% generation %}``)."""

    seen: Seen = field(default_factory=Seen)
    """What its ids were so far."""

    @property
    def top(self) -> int:
        """Largest id that it can give."""
        return max(self.backend.get_vocab(with_added_tokens=True).values(), default=-1)

    @property
    def vocabulary(self) -> int:
        """Entries of the vocabulary, added tokens included."""
        return int(self.backend.get_vocab_size(with_added_tokens=True))

    def count(self, texts: Sequence[str], *, special: bool) -> list[int]:
        """Return the tokens of each text; ``special`` adds what the tokenizer puts around a plain text."""
        encode = getattr(self.backend, "encode_batch_fast", self.backend.encode_batch)
        encodings = encode(list(texts), add_special_tokens=special)
        self.seen.look(encodings)
        return [len(one) for one in encodings]

    def count_assistant(self, texts: Sequence[str]) -> list[tuple[int, int]]:
        """Return tokens and the assistant's tokens of rendered chats that still hold their marks."""
        parted = [_without_marks(text) for text in texts]
        encodings = self.backend.encode_batch([plain for plain, _ in parted], add_special_tokens=False)
        self.seen.look(encodings)
        return [
            (len(encoding), sum(_tokens_between(encoding, *span) for span in spans))
            for encoding, (_, spans) in zip(encodings, parted, strict=True)
        ]

    def render(self, messages: Sequence[Mapping[str, Any]], *, prompt: bool = False, marks: bool = False) -> str:
        """Return a chat as the template writes it.

        Args:
            messages: The chat.
            prompt: End with the beginning of an answer.
            marks: Keep the marks around what the assistant wrote.

        Raises:
            UsageError: There is no chat template, or it refuses the chat.
        """
        if self.template is None:
            raise UsageError(
                f"the tokenizer {self.name} has no chat template, and the rows hold messages; name a tokenizer of a "
                "chat model, or give the template with --template FILE"
            )
        from jinja2 import TemplateError

        try:
            text = str(
                self.template.render(messages=messages, add_generation_prompt=prompt, tools=None, **self.special)
            )
        except (TemplateError, TypeError, ValueError, KeyError) as error:
            raise UsageError(f"the chat template of {self.name} refuses a row: {error}") from error
        return text if marks else text.replace(_BEGIN, "").replace(_END, "")


def load(name: str, template: Path | None = None) -> Tokenizer:
    """Load a tokenizer from a folder, a ``tokenizer.json``, or a hub id that lies in the local cache.

    Raises:
        UsageError: There is none, it is damaged, or the tokenizers package is missing.
    """
    try:
        from tokenizers import Tokenizer as Backend
    except ImportError as error:
        raise UsageError("counting tokens needs the tokenizers package: pip install tokenizers") from error
    files = _find(name)
    try:
        backend = Backend.from_file(str(files["tokenizer.json"]))
        config = _json(files.get("tokenizer_config.json"))
    except Exception as error:  # the backend raises plain Exception
        raise UsageError(
            f"the tokenizer {name} cannot be loaded: {error}; save it again with save_pretrained"
        ) from error
    backend.no_truncation()
    backend.no_padding()
    written = _template_text(template, files, config)
    special = {key: text for key, value in config.items() if key.endswith("_token") and (text := _content(value))}
    pad = backend.token_to_id(special["pad_token"]) if "pad_token" in special else None
    digest = hashlib.sha256(files["tokenizer.json"].read_bytes() + (written or "").encode()).hexdigest()
    return Tokenizer(
        name=name,
        sha256=digest,
        backend=backend,
        template=_compiled(name, written),
        special=special,
        pad=pad,
        marks_assistant=bool(written) and "generation %}" in (written or "").replace("-%}", "%}"),
        seen=Seen(-1 if pad is None else pad),
    )


def _find(name: str) -> dict[str, Path]:
    path = Path(name)
    if path.is_file():
        found = {"tokenizer.json": path}
        folder: Path | None = path.parent
    else:
        found, folder = {}, path if path.is_dir() else None
    beside = {file: folder / file for file in _FILES if (folder / file).is_file()} if folder else _cached(name)
    found = beside | found
    if "tokenizer.json" not in found and folder is not None:
        raise UsageError(
            f"{name} is a folder without tokenizer.json; name the tokenizer's own folder, or write the file: "
            f"AutoTokenizer.from_pretrained({name!r}).save_pretrained({name!r})"
        )
    if "tokenizer.json" not in found:
        raise UsageError(
            f"no tokenizer at {name!r}: neither a folder with tokenizer.json nor a model in the local cache; "
            "name its folder (tokenizer.save_pretrained writes one)"
        )
    return found


def _cached(name: str) -> dict[str, Path]:
    try:
        from huggingface_hub import try_to_load_from_cache

        found = {file: try_to_load_from_cache(name, file) for file in _FILES}
    except (ImportError, ValueError):
        return {}
    return {file: Path(place) for file, place in found.items() if isinstance(place, str)}


def _json(path: Path | None) -> dict[str, Any]:
    held = json.loads(path.read_text(encoding="utf-8")) if path else {}
    return held if isinstance(held, dict) else {}


def _content(value: object) -> str:
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else ""


def _template_text(given: Path | None, files: Mapping[str, Path], config: Mapping[str, Any]) -> str | None:
    try:
        if given is not None:
            return given.read_text(encoding="utf-8")
        if "chat_template.jinja" in files:
            return files["chat_template.jinja"].read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the chat template cannot be read: {error}; name another file with --template") from error
    held = config.get("chat_template")
    if isinstance(held, list):  # several, by name
        named = {one.get("name"): one.get("template") for one in held if isinstance(one, dict)}
        held = named.get("default")
    return held if isinstance(held, str) else None


def _compiled(name: str, written: str | None) -> "Template | None":
    """Compile a template in a sandbox, with what chat templates are used to find there."""
    if written is None:
        return None
    from jinja2 import TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_generation(), "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = _today
    try:
        return environment.from_string(written)
    except TemplateError as error:
        raise UsageError(f"the chat template of {name} cannot be compiled: {error}") from error


def _to_json(value: object, ensure_ascii: bool = False, indent: int | None = None, **_: object) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)


def _refuse(message: str) -> None:
    from jinja2 import TemplateError

    raise TemplateError(message)


def _today(form: str) -> str:
    """Return a fixed day: a length must not depend on the day on which it is counted."""
    import datetime

    return datetime.datetime(2026, 1, 28, tzinfo=datetime.UTC).strftime(form)


def _generation() -> Any:  # noqa: ANN401 - a class made late, since jinja2 is imported late
    from jinja2 import nodes
    from jinja2.ext import Extension

    class Generation(Extension):
        """``{% generation %} … {% endgeneration %}``: what the assistant wrote."""

        tags = {"generation"}  # noqa: RUF012 - jinja2's own interface

        def parse(self, parser: Any) -> nodes.Node:  # noqa: ANN401
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.CallBlock(self.call_method("_marked"), [], [], body).set_lineno(line)

        def _marked(self, caller: Any) -> str:  # noqa: ANN401
            return f"{_BEGIN}{caller()}{_END}"

    return Generation


def _without_marks(text: str) -> tuple[str, list[tuple[int, int]]]:
    """Return the text without marks, and where the marked parts lie in it."""
    plain, spans = "", []
    for number, part in enumerate(text.split(_BEGIN)):
        if number:
            marked, _, part = part.partition(_END)
            spans.append((len(plain), len(plain) + len(marked)))
            plain += marked
        plain += part
    return plain, spans


def _tokens_between(encoding: Any, begin: int, end: int) -> int:  # noqa: ANN401 - the tokenizer's own class
    if end <= begin:
        return 0
    first, last = encoding.char_to_token(begin), encoding.char_to_token(end - 1)
    if first is None:
        return 0
    return int((len(encoding) if last is None else last + 1) - first)
