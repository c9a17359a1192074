"""The bytes of a trace file: decompressed on the way, hashed as they lie on disk."""

import gzip
import hashlib
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

from stepprobe.errors import NotObserved, UsageError

_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"


class _Hashed(io.RawIOBase):
    """A file that hashes what is read from it."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.digest = hashlib.sha256()
        self.read_bytes = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:  # noqa: ANN401 - any writable buffer
        count = cast(Any, self._file).readinto(buffer)
        self.digest.update(memoryview(buffer)[:count])
        self.read_bytes += count
        return int(count)


class Source:
    """One trace file, read once from start to end."""

    def __init__(self, name: str, file: BinaryIO) -> None:
        """Take a file that stands at its start.

        Raises:
            UsageError: It needs a package that is not installed.
        """
        self.name = name
        self.cut = ""
        """Why reading ended before the end of the file; empty where it did not."""
        magic = file.read(4)
        file.seek(0)
        self._file, self._hashed = file, _Hashed(file)
        self._stream = _decompressed(self._hashed, magic, name)

    def chunks(self, size: int) -> Iterator[bytes]:
        """Yield the text in pieces of about ``size`` bytes; damage in the compression ends it and is noted."""
        pieces: list[bytes] = []
        held = 0
        try:
            while piece := self._stream.read1(size):  # read() would lose what was whole before the damage
                pieces.append(piece)
                held += len(piece)
                if held >= size:
                    yield b"".join(pieces)
                    pieces, held = [], 0
        except Exception as error:  # each codec has its own class for a stream that breaks off
            self.cut = f"the stream breaks off ({error})"
        if pieces:
            yield b"".join(pieces)

    def finish(self) -> tuple[int, str]:
        """Return the size and SHA-256 of the file as it lies on disk, and close it."""
        try:
            while self._hashed.read(1 << 20):
                pass
        except OSError as error:
            raise NotObserved(f"{self.name}: cannot be read to its end ({error.strerror})") from error
        self._file.close()
        return self._hashed.read_bytes, self._hashed.digest.hexdigest()


def opened(path: Path) -> Source:
    """Open a trace file.

    Raises:
        UsageError: It cannot be read, or needs a package that is not installed.
    """
    try:
        return Source(path.name, cast(BinaryIO, path.open("rb", buffering=0)))
    except OSError as error:
        raise UsageError(f"cannot read {str(path)!r}: {error.strerror}; name a trace file") from error


def _decompressed(raw: _Hashed, magic: bytes, name: str) -> Any:  # noqa: ANN401 - whatever the codec offers
    if magic[:2] == _GZIP:
        return gzip.GzipFile(fileobj=io.BufferedReader(raw, 1 << 20), mode="rb")
    if magic == _ZSTD:
        return _zstd(raw, name)
    return io.BufferedReader(raw, 1 << 20)


def _zstd(raw: _Hashed, name: str) -> Any:  # noqa: ANN401 - whatever the codec offers
    """Open a zstd stream with whichever package is there.

    Raises:
        UsageError: There is none.
    """
    import importlib

    ways: tuple[tuple[str, Callable[[Any], Any]], ...] = (
        ("compression.zstd", lambda zstd: zstd.ZstdFile(raw)),
        ("zstandard", lambda zstd: zstd.ZstdDecompressor().stream_reader(raw, read_across_frames=True)),
        ("pyarrow", lambda arrow: arrow.CompressedInputStream(arrow.PythonFile(raw, mode="r"), "zstd")),
    )
    for module, open_stream in ways:
        try:
            return open_stream(importlib.import_module(module))
        except ImportError:
            continue
    raise UsageError(f"{name} is zstd-compressed, and no package here reads that; pip install zstandard, or unzstd")
