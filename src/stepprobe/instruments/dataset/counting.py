"""From blocks of records to histograms: the one loop through which every format goes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from stepprobe.errors import UsageError
from stepprobe.instruments.dataset import arrow
from stepprobe.instruments.dataset.columns import (
    NO_IDS,
    BadValue,
    Fields,
    Span,
    characters,
    choose,
    ids_of,
    length_of,
    messages_of,
    text_of,
    wider,
)
from stepprobe.instruments.dataset.records import Block, Columns, Problems, Rows
from stepprobe.instruments.dataset.sampling import Kept, Sampler
from stepprobe.instruments.dataset.tally import PairTally, Tally, codes_of
from stepprobe.instruments.dataset.tokenizer import Tokenizer

if TYPE_CHECKING:
    import numpy as np
    import pyarrow
    from numpy.typing import NDArray

SAMPLE = 2000
LONGEST = 200
BATCH = 512
"""Rows that are given to the tokenizer at once."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How rows are read."""

    tokenizer: Tokenizer | None = None
    column: str | None = None
    source: str | None = None
    loss_mask: str = "auto"
    full: bool = False
    skip_broken: bool = False
    sample: int = SAMPLE
    seed: int = 0


class Text(NamedTuple):
    """A row that is still to be tokenised."""

    place: str
    kind: str
    value: Any


@dataclass
class Count:
    """Everything that is kept of a dataset while it is read."""

    settings: Settings
    twice: tuple[str, ...] = ()
    """Files that are named more than once."""
    tally: Tally = field(default_factory=Tally)
    pairs: PairTally = field(default_factory=PairTally)
    chars: Tally = field(default_factory=Tally)
    problems: Problems = field(default_factory=Problems)
    kinds: set[str] = field(default_factory=set)
    tokenised: int = 0
    unmasked: int = 0
    padded: int = 0
    ids: Span = NO_IDS
    """Of the token ids that rows held."""
    labels: Span = NO_IDS
    """Of the labels that rows held."""
    sampler: Sampler | None = None
    seen: int = 0
    """Rows seen so far, for who watches."""

    def __post_init__(self) -> None:
        self.problems.skip = self.settings.skip_broken
        if not self.settings.full:
            self.sampler = Sampler(self.settings.sample, LONGEST, self.settings.seed)

    def add(self, block: Block, origin: str) -> None:
        """Count a block of rows; those that name no source belong to ``origin``.

        Raises:
            UsageError: The columns, the tokenizer and the loss mask do not fit each other.
            NotObserved: A row is broken.
        """
        if isinstance(block, Columns):
            self._columns(block, origin)
        else:
            self._rows(block, origin)

    def _columns(self, block: Columns, origin: str) -> None:
        import numpy as np

        batch = block.batch
        fields = choose(batch.schema.names, self.settings.column, self.settings.source)
        nested = str(batch.schema.field(fields.column).type)
        if fields.kind == "input_ids" and "list" not in nested:
            raise UsageError(f"{fields.column} holds {nested}, not lists of token ids; name another with --column")
        if not _as_columns(batch, fields):
            places = (f"{block.place}, row {self.seen + 1 + number}" for number in range(batch.num_rows))
            self._rows(Rows(list(zip(places, batch.to_pylist(), strict=True))), origin)
            return
        self.kinds.add(fields.kind)
        if fields.kind == "lengths":
            counted = arrow.lengths(batch.column(fields.column), block.place, self.seen + 1, self.problems)
        else:
            counted = arrow.ids(batch, fields.column, self.settings.tokenizer.pad if self.settings.tokenizer else None)
        self.seen += batch.num_rows
        if fields.source:
            names, places_of = arrow.sources(batch, fields.source)
            codes = codes_of(self.tally, names)[places_of[counted.kept]]
        else:
            codes = np.full(len(counted.lengths), self.tally.number(origin))
        self.ids, self.labels = wider(self.ids, counted.span), wider(self.labels, counted.labels)
        self._counted(codes, counted.lengths, counted.labelled, counted.padded)

    def _counted(
        self, codes: "NDArray[np.int64]", found: "NDArray[np.int64]", labelled: "NDArray[np.int64] | None", padded: int
    ) -> None:
        self.tally.add(codes, found)
        self.padded += padded
        if labelled is not None and len(found):
            self.pairs.add(found, labelled)
            self.unmasked += int((labelled == 0).sum())

    def _rows(self, block: Rows, origin: str) -> None:
        fields = self._fields(block)
        self.kinds.add(fields.kind)
        self.seen += len(block.records)
        if fields.kind in ("lengths", "input_ids"):
            self._known(block, fields, origin)
            return
        self._check_text(fields.kind)
        pending: list[tuple[str, Text]] = []
        for place, record in block.records:
            try:
                text = Text(place, fields.kind, _value(record, fields))
            except BadValue as error:
                self.problems.add(place, str(error))
                continue
            source = _source(record, fields, origin)
            if self.sampler is None:
                pending.append((source, text))
            else:
                chars = _characters(text)
                number = self.chars.number(source)
                self.sampler.offer(number, chars, text)
                pending.append((source, text._replace(value=chars)))
        if self.sampler is None:
            self._tokenise(pending)
        else:
            self._add_chars(pending)

    def _add_chars(self, pending: Sequence[tuple[str, Text]]) -> None:
        import numpy as np

        codes = codes_of(self.chars, [source for source, _ in pending])
        self.chars.add(codes, np.array([text.value for _, text in pending], np.int64))

    def _fields(self, block: Rows) -> Fields:
        first = block.records[0][1]
        fields = choose(list(first), self.settings.column, self.settings.source)
        if fields.kind != "any":
            return fields
        return Fields(_kind_of(first[fields.column]), fields.column, fields.source)

    def _known(self, block: Rows, fields: Fields, origin: str) -> None:
        import numpy as np

        names: list[str] = []
        found: list[tuple[int, int]] = []
        pad = self.settings.tokenizer.pad if self.settings.tokenizer else None
        for place, record in block.records:
            try:
                if fields.kind == "lengths":
                    length = length_of(record.get(fields.column))
                    found.append(
                        (length, min(length, length_of(record[fields.labelled])) if fields.labelled else length)
                    )
                else:
                    ids = ids_of(record, fields.column, pad)
                    self.padded += ids.padded
                    self.ids, self.labels = wider(self.ids, ids.span), wider(self.labels, ids.labels)
                    found.append((ids.length, ids.labelled))
            except (BadValue, KeyError) as error:
                self.problems.add(place, str(error))
                continue
            names.append(_source(record, fields, origin))
        pairs = np.array(found, np.int64).reshape(-1, 2)
        known = fields.labelled is not None or fields.kind == "input_ids"
        self._counted(codes_of(self.tally, names), pairs[:, 0], pairs[:, 1] if known else None, 0)

    def _check_text(self, kind: str) -> None:
        tokenizer, mask = self.settings.tokenizer, self.settings.loss_mask
        if tokenizer is None:
            raise UsageError(
                f"the rows hold {kind}, so their tokens must be counted: name a tokenizer with --tokenizer T"
            )
        if kind == "messages" and tokenizer.template is None:
            tokenizer.render([])
        if mask == "assistant" and kind != "messages":
            raise UsageError(
                f"--loss-mask assistant needs chat messages, and the rows hold {kind}; use all or completion"
            )
        if mask == "completion" and kind != "prompt+completion":
            raise UsageError(f"--loss-mask completion needs columns prompt and completion, and the rows hold {kind}")

    def _tokenise(self, pending: Sequence[tuple[str, Text]]) -> None:
        import numpy as np

        for begin in range(0, len(pending), BATCH):
            part = pending[begin : begin + BATCH]
            found = self.measure([text for _, text in part])
            kept = [(source, *both) for (source, _), both in zip(part, found, strict=True) if both is not None]
            pairs = np.array([(length, labelled) for _, length, labelled in kept], np.int64).reshape(-1, 2)
            self._counted(codes_of(self.tally, [source for source, _, _ in kept]), pairs[:, 0], pairs[:, 1], 0)
            self.tokenised += len(kept)

    def measure(self, texts: Sequence[Text]) -> list[tuple[int, int] | None]:
        """Return tokens and labelled tokens of each row; None for one that the template refuses and may be skipped."""
        tokenizer, mask = self.settings.tokenizer, self.settings.loss_mask
        assert tokenizer is not None
        rendered = [self._rendered(tokenizer, text) for text in texts]
        kept = [one for one in rendered if one is not None]
        special = bool(texts) and not _is_chat(texts[0])
        if mask == "assistant":
            found = iter(tokenizer.count_assistant([whole for whole, _ in kept]))
            return [next(found) if one is not None else None for one in rendered]
        whole = tokenizer.count([whole for whole, _ in kept], special=special)
        if texts and texts[0].kind == "prompt+completion" and mask in ("auto", "completion"):
            prompts = tokenizer.count([prompt for _, prompt in kept], special=special)
        else:
            prompts = [0] * len(whole)
        both = iter([(length, max(0, length - prompt)) for length, prompt in zip(whole, prompts, strict=True)])
        return [next(both) if one is not None else None for one in rendered]

    def _rendered(self, tokenizer: Tokenizer, text: Text) -> tuple[str, str] | None:
        try:
            whole, prompt = _render(tokenizer, text, marks=self.settings.loss_mask == "assistant")
            whole.encode()
        except (UsageError, UnicodeEncodeError) as error:
            told = (
                str(error) if isinstance(error, UsageError) else f"its text cannot be written in UTF-8 ({error.reason})"
            )
            self.problems.add(text.place, told)
            return None
        return whole, prompt

    def tokenise_kept(self, rows: Sequence[Kept]) -> "NDArray[np.int64]":
        """Tokenise rows that a sampler kept; return records of source, chars, length, labelled."""
        import numpy as np

        order = self.chars.order()
        records = []
        for begin in range(0, len(rows), BATCH):
            part = rows[begin : begin + BATCH]
            for row, both in zip(part, self.measure([one.row for one in part]), strict=True):
                self.chars.remove(row.source, row.chars)
                if both is not None:
                    self.unmasked += both[1] == 0
                    records.append((int(order[row.source]), row.chars, *both))
        self.tokenised += len(records)
        return np.array(sorted(records), np.int64).reshape(-1, 4)

    def merge(self, other: "Count") -> None:
        """Add what was counted elsewhere of rows whose length was known."""
        self.tally.merge(other.tally)
        self.pairs.merge(other.pairs)
        self.kinds |= other.kinds
        self.padded += other.padded
        self.unmasked += other.unmasked
        self.seen += other.seen
        self.ids, self.labels = wider(self.ids, other.ids), wider(self.labels, other.labels)
        self.problems.rows += other.problems.rows
        self.problems.first += other.problems.first


def _as_columns(batch: "pyarrow.RecordBatch", fields: Fields) -> bool:
    """Tell whether a block can be counted without an object for each row."""
    if fields.source and batch.schema.field(fields.source).type.num_fields:
        return False
    if fields.kind == "input_ids":
        return arrow.are_plain(batch, fields.column)
    return fields.kind == "lengths" and not fields.labelled


def _kind_of(value: object) -> str:
    if isinstance(value, str) and not value.lstrip("+-").replace(".", "", 1).isdigit():
        return "text"
    if isinstance(value, list):
        return "messages" if value and isinstance(value[0], dict) else "input_ids"
    return "lengths" if isinstance(value, int | float | str) else "text"


def _source(record: Mapping[str, Any], fields: Fields, origin: str) -> str:
    source = record.get(fields.source) if fields.source is not None else origin
    return "none" if source is None else str(source)


def _value(record: Mapping[str, Any], fields: Fields) -> Any:  # noqa: ANN401
    value = record.get(fields.column)
    if fields.kind == "messages":
        return messages_of(value, fields.column)
    if fields.kind == "text":
        return text_of(value, fields.column)
    prompt = record.get("prompt")
    if isinstance(prompt, list):
        return messages_of(prompt, "prompt"), messages_of(value, fields.column)
    return text_of(prompt, "prompt"), text_of(value, fields.column)


def _is_chat(text: Text) -> bool:
    return text.kind == "messages" or (text.kind == "prompt+completion" and not isinstance(text.value[0], str))


def _characters(text: Text) -> int:
    if text.kind == "prompt+completion":
        return sum(len(part) if isinstance(part, str) else characters(part) for part in text.value)
    return characters(text.value) if text.kind == "messages" else len(text.value)


def _render(tokenizer: Tokenizer, text: Text, *, marks: bool) -> tuple[str, str]:
    """Return the whole text of a row, and its prompt."""
    if text.kind == "text":
        return text.value, ""
    if text.kind == "messages":
        return tokenizer.render(text.value, marks=marks), ""
    prompt, completion = text.value
    if isinstance(prompt, str):
        return prompt + completion, prompt
    return tokenizer.render([*prompt, *completion]), tokenizer.render(prompt, prompt=True)
