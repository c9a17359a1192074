"""Bytes and lines of a file, a compressed file or standard input, with errors that name the place."""

import gzip
import io
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, TypeVar, cast

from stepprobe.errors import NotObserved, UsageError

_T = TypeVar("_T")

STANDARD_INPUT = "-"
_GZIP, _ZSTD, PARQUET, _ARROW = b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"PAR1", b"ARROW1"
_WIDE = (b"\xff\xfe", b"\xfe\xff")
_BOM = b"\xef\xbb\xbf"


@contextmanager
def open_stream(source: str) -> Iterator[io.BufferedReader]:
    """Open a file or ``-`` for reading, decompressed, its first bytes still unread.

    Raises:
        UsageError: It cannot be opened.
        NotObserved: It is empty, or is text of 16 bits.
    """
    with ExitStack() as opened:
        raw = _open(source, opened)
        head = raw.peek(4)[:4]
        if head.startswith(_GZIP):
            unpacked = opened.enter_context(gzip.GzipFile(fileobj=raw))
            raw = opened.enter_context(io.BufferedReader(cast(io.RawIOBase, unpacked)))
        elif head.startswith(_ZSTD):
            raw = opened.enter_context(_zstd(source, raw))
        head = guarded(source, lambda: raw.peek(4)[:4])
        if not head:
            raise NotObserved(f"{_called(source)} is empty: it holds no row; {_instead(source)}")
        if head.startswith(_WIDE):
            raise NotObserved(f"{source} is UTF-16, not UTF-8; convert it: iconv -f UTF-16 -t UTF-8 {source}")
        yield raw


def _called(source: str) -> str:
    return "standard input" if source == STANDARD_INPUT else source


def _instead(source: str) -> str:
    return (
        "send rows to it (… < rows.jsonl), or name a file" if source == STANDARD_INPUT else "name a dataset with rows"
    )


def _open(source: str, opened: ExitStack) -> io.BufferedReader:
    if source == STANDARD_INPUT:
        if sys.stdin.isatty():
            raise UsageError(f"nothing is sent to standard input; {_instead(source)}")
        return cast(io.BufferedReader, sys.stdin.buffer)
    try:
        return opened.enter_context(open(source, "rb"))
    except OSError as error:
        raise UsageError(
            f"cannot read {source}: {error.strerror}; name a file, a folder or - for standard input"
        ) from error


def _zstd(source: str, raw: io.BufferedReader) -> io.BufferedReader:
    try:
        import pyarrow
    except ImportError as error:
        raise UsageError(
            f"{source} is compressed with zstd, which pyarrow reads: pip install pyarrow, or unzstd it"
        ) from error
    return io.BufferedReader(cast(io.RawIOBase, pyarrow.CompressedInputStream(raw, "zstd")))


def guarded(source: str, read: Callable[[], _T]) -> _T:
    """Read, and tell a stream that ends early or is damaged apart from one that ends.

    Raises:
        NotObserved: The stream is cut short or damaged.
    """
    try:
        return read()
    except (EOFError, OSError, zlib.error) as error:
        raise NotObserved(
            f"{source} is cut short or damaged ({error}); nothing of it was counted. Copy or download it again"
        ) from error


def lines(source: str, stream: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield (number from 1, line) of all lines that are not blank.

    Raises:
        NotObserved: The stream is cut short or damaged.
    """
    number = 0
    while line := guarded(source, stream.readline):
        number += 1
        if number == 1 and line.startswith(_BOM):
            line = line[len(_BOM) :]
        if not line.isspace():
            yield number, line


def is_arrow_folder(path: Path) -> bool:
    """Tell whether a folder was written by ``Dataset.save_to_disk``."""
    return (path / "state.json").is_file()


def expand(source: str) -> list[str]:
    """Return the files that a path stands for: itself, the files of a folder, or the folder of a dataset.

    Raises:
        UsageError: A folder holds no dataset.
    """
    path = Path(source)
    if source == STANDARD_INPUT or not path.is_dir() or is_arrow_folder(path):
        return [source]
    splits = [str(child) for child in sorted(path.iterdir()) if child.is_dir() and is_arrow_folder(child)]
    if splits:
        raise UsageError(f"{source} holds several splits; name the one that is trained on, for example {splits[-1]}")
    files = [child for child in sorted(path.iterdir()) if child.is_file()]
    found = [str(child) for child in files if _suffix(child) in _ROWS] or [
        str(child) for child in files if _suffix(child) in _PERHAPS
    ]
    if not found:
        raise UsageError(
            f"{source} is a folder without rows (no JSONL, Parquet, CSV or saved dataset); name a file in it"
        )
    return found


_ROWS = (".jsonl", ".ndjson", ".parquet", ".csv", ".tsv")
_PERHAPS = (".json", ".txt")
"""Beside files of rows these are a manifest or a read-me."""


def _suffix(path: Path) -> str:
    return next((suffix for suffix in reversed(path.suffixes) if suffix not in (".gz", ".zst")), "")
