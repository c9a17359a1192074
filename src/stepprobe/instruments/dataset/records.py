"""Records of any format as dictionaries or columns, in blocks."""

import csv
import json
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from stepprobe.errors import NotObserved, UsageError
from stepprobe.instruments.dataset.stream import PARQUET, is_arrow_folder, lines, open_stream

if TYPE_CHECKING:
    import pyarrow

Record = tuple[str, Mapping[str, Any]]
"""A place, and what stands there."""

BLOCK_ROWS = 8192
ARROW_ROWS = 1 << 20
_SHOWN = 5


@dataclass
class Problems:
    """Rows that could not be read: an error, unless they may be left out; then counted, the first ones named."""

    skip: bool = False
    rows: int = 0
    first: list[str] = field(default_factory=list)

    def add(self, place: str, reason: str) -> None:
        """Take note of a row, or refuse it.

        Raises:
            NotObserved: Rows may not be left out.
        """
        if not self.skip:
            raise NotObserved(f"{place}: {reason}; repair the row, or leave such rows out with --skip-broken")
        self.rows += 1
        if len(self.first) < _SHOWN:
            self.first.append(f"{place}: {reason}")


@dataclass(frozen=True)
class Rows:
    """Some records as dictionaries, each with its place."""

    records: list[Record]


@dataclass(frozen=True)
class Columns:
    """Some records as Arrow columns."""

    place: str
    batch: "pyarrow.RecordBatch"


Block = Rows | Columns


def read(source: str, problems: Problems, block_rows: int = BLOCK_ROWS) -> Generator[Block, None, None]:
    """Yield the records of one file, saved dataset or standard input.

    Raises:
        UsageError: It cannot be opened.
        NotObserved: It cannot be read to its end, or a row is broken.
    """
    path = Path(source)
    if is_arrow_folder(path):
        yield from _saved_dataset(path)
        return
    with open_stream(source) as stream:
        head = stream.peek(4096)
        if head[:4] != PARQUET:
            yield from _blocks(_records(source, stream, head, problems), block_rows)
            return
    yield from _parquet(source)


def _records(source: str, stream: IO[bytes], head: bytes, problems: Problems) -> Iterator[Record]:
    """Yield the records of text, by what it begins with."""
    first = head.lstrip(b"\xef\xbb\xbf \r\n\t")[:1]
    if first == b"{":
        return _json_lines(source, stream, problems)
    if first == b"[":
        return _json_list(source, stream)
    name = Path(source).name
    if name.endswith(".txt") or ".txt." in name:
        return _text_lines(source, stream, problems)
    if b"\0" in head or head[:6] == b"ARROW1":
        raise NotObserved(f"{source} is no JSONL, JSON, CSV, Parquet, text or saved dataset; convert it to one of them")
    return _csv(source, stream, problems)


def from_dataset(dataset: Any, block_rows: int = ARROW_ROWS) -> Generator[Block, None, None]:  # noqa: ANN401 - the user's object
    """Yield the records of a ``datasets.Dataset`` (or anything that iterates over dictionaries)."""
    if hasattr(dataset, "with_format") and hasattr(dataset, "num_rows"):
        for batch in dataset.with_format("arrow").iter(batch_size=block_rows):
            for part in batch.to_batches():
                yield Columns("the dataset", part)
        return
    yield from _blocks(((f"row {number}", record) for number, record in enumerate(dataset, 1)), BLOCK_ROWS)


def _blocks(records: Iterable[Record], block_rows: int) -> Iterator[Rows]:
    block: list[Record] = []
    for record in records:
        block.append(record)
        if len(block) >= block_rows:
            yield Rows(block)
            block = []
    if block:
        yield Rows(block)


def _json_lines(source: str, stream: IO[bytes], problems: Problems) -> Iterator[Record]:
    import msgspec

    decoder = msgspec.json.Decoder()
    for number, line in lines(source, stream):
        place = f"{source}:{number}"
        try:
            record = decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            if line.strip() == b"{":
                raise NotObserved(
                    f"{source} begins a JSON object that goes over several lines; a dataset has one object a line, or "
                    "is a list of them: name its file, or write it so"
                ) from error
            problems.add(place, f"not a JSON object in UTF-8 ({error}){_encoding(source, error)}")
            continue
        if isinstance(record, dict):
            yield place, record
        else:
            problems.add(place, f"a JSON {type(record).__name__} where an object is due")


def _encoding(source: str, error: Exception) -> str:
    """Return what to do about a file in another encoding; nothing where the error is about something else."""
    told = isinstance(error, UnicodeDecodeError) or "UTF-8" in str(error)
    return f", and where the whole file is in Latin-1: iconv -f LATIN1 -t UTF-8 {source}" if told else ""


def _json_list(source: str, stream: IO[bytes]) -> Iterator[Record]:
    try:
        held = json.loads(stream.read())
    except (ValueError, RecursionError) as error:
        raise NotObserved(
            f"{source}: not a JSON list in UTF-8 ({error}); repair it, or write one object a line"
        ) from error
    for number, record in enumerate(held, 1):
        if not isinstance(record, dict):
            raise NotObserved(f"{source}: entry {number} is a {type(record).__name__}; each must be an object")
        yield f"{source}, entry {number}", record


def _text_lines(source: str, stream: IO[bytes], problems: Problems) -> Iterator[Record]:
    for number, line in lines(source, stream):
        try:
            yield f"{source}:{number}", {"text": line.decode().rstrip("\r\n")}
        except UnicodeDecodeError as error:
            problems.add(
                f"{source}:{number}", f"not UTF-8 ({error.reason} at byte {error.start}){_encoding(source, error)}"
            )


def _csv(source: str, stream: IO[bytes], problems: Problems) -> Iterator[Record]:
    """Yield the rows of a CSV: with a header by its names, without one a single column of lengths."""
    numbered = lines(source, stream)
    first_number, first = next(numbered, (0, b""))
    if not first_number:
        return
    try:
        header = _cells(first)
    except (UnicodeDecodeError, csv.Error) as error:
        raise NotObserved(
            f"{source}:{first_number}: not a line of CSV in UTF-8 ({error}){_encoding(source, error)}; its first line "
            "must name the columns"
        ) from error
    if twice := sorted({cell for cell in header if cell and header.count(cell) > 1 and not _is_number(cell)}):
        raise NotObserved(f"{source} has several columns {twice[0]!r}; give each its own name in the first line")
    if len(header) > 1 and all(_is_number(cell) for cell in header):
        raise NotObserved(
            f"{source} has several columns and no header; name them in its first line, one of them length"
        )
    if len(header) == 1 and _is_number(header[0]):
        yield f"{source}:{first_number}", {"length": header[0]}
        header = ["length"]
    for number, line in numbered:
        place = f"{source}:{number}"
        try:
            cells = _cells(line)
        except (UnicodeDecodeError, csv.Error) as error:
            problems.add(place, f"not a line of CSV in UTF-8 ({error}){_encoding(source, error)}")
            continue
        if len(cells) != len(header):
            problems.add(place, f"{len(cells)} cells where the header has {len(header)}")
            continue
        yield place, dict(zip(header, cells, strict=True))


def _cells(line: bytes) -> list[str]:
    text = line.decode().rstrip("\r\n")
    if '"' not in text:
        return [cell.strip() for cell in text.split("\t" if "\t" in text else ",")]
    return next(csv.reader([text]))


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _pyarrow(source: str) -> Any:  # noqa: ANN401 - a module
    try:
        import pyarrow
    except ImportError as error:
        raise UsageError(f"{source} needs pyarrow: pip install pyarrow, or write it as JSONL or CSV") from error
    return pyarrow


def _parquet(source: str) -> Iterator[Block]:
    arrow = _pyarrow(source)
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(source) as file:
            if not file.metadata.num_rows:
                raise NotObserved(f"{source} holds no row; name a dataset with rows")
            for batch in file.iter_batches(batch_size=ARROW_ROWS, columns=_short_columns(file.schema_arrow)):
                yield Columns(source, batch)
    except (arrow.ArrowInvalid, OSError) as error:
        raise NotObserved(
            f"{source} is cut short or damaged ({str(error).splitlines()[0]}); copy or download it again"
        ) from error


def _short_columns(schema: "pyarrow.Schema") -> list[str] | None:
    """Return only the columns of numbers and sources where there is a length: texts are then not even read."""
    from stepprobe.instruments.dataset.columns import LENGTH_NAMES

    if not set(schema.names) & set(LENGTH_NAMES):
        return None
    return [field.name for field in schema if not str(field.type).startswith(("list", "struct", "large_list", "map"))]


def _saved_dataset(folder: Path) -> Iterator[Block]:
    arrow = _pyarrow(str(folder))
    try:
        state = json.loads((folder / "state.json").read_text(encoding="utf-8"))
        for entry in state["_data_files"]:
            with arrow.memory_map(str(folder / Path(entry["filename"]).name)) as file:
                for batch in arrow.ipc.open_stream(file):
                    yield Columns(str(folder), batch)
    except (ValueError, KeyError, OSError, arrow.ArrowInvalid) as error:
        raise NotObserved(f"{folder} is no whole saved dataset ({error}); save it again with save_to_disk") from error
