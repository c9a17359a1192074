"""Files of a run folder: opened without following links, written by rename, named by their hash."""

import hashlib
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path

import msgspec

from stepprobe.errors import EvidenceError, StepprobeError

MANIFEST = "manifest.json"
PART = ".part"
"""Of a file that is still being written, before its rename."""


class StoredFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file of the folder as it was when it was sealed."""

    sha256: str
    bytes: int


def read(folder: Path, name: str) -> bytes:
    """Return the content of a file of the folder."""
    with opened(folder, name) as file:
        return file.read()


def describe_file(folder: Path, name: str) -> StoredFile:
    """Hash a file piece by piece: evidence may be large."""
    with opened(folder, name) as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return StoredFile(sha256=digest, bytes=file.tell())


@contextmanager
def opened(folder: Path, name: str) -> Iterator[BufferedReader]:
    """Open a regular file of the folder; a link is not followed, since it could lead anywhere."""
    try:
        descriptor = os.open(folder / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise EvidenceError(f"{as_text(name)} in {as_text(folder.name)} is not a plain file")
            yield file
    except OSError as error:
        if name == MANIFEST and isinstance(error, FileNotFoundError | NotADirectoryError):
            raise EvidenceError(f"{as_text(str(folder))} is not a run folder: it holds no {MANIFEST}") from error
        raise EvidenceError(f"cannot read {as_text(name)} in {as_text(folder.name)}: {error.strerror}") from error


def describe(content: bytes) -> StoredFile:
    """Return length and hash of a content."""
    return StoredFile(sha256=hashlib.sha256(content).hexdigest(), bytes=len(content))


def replace(path: Path, content: bytes) -> None:
    """Write by rename, so that a reader or a crash sees the old file or the new one, never half of it."""
    part = path.with_name(path.name + PART)
    try:
        with open(part, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except OSError:
        part.unlink(missing_ok=True)
        raise


def writing(folder: Path, write: Callable[[], None]) -> None:
    """Write, and say what to do where that is impossible."""
    try:
        write()
    except OSError as error:
        raise StepprobeError(
            f"cannot write into {as_text(str(folder))}: {error.strerror}; the evidence there is kept. Make room, then: "
            f"stepprobe report {as_text(str(folder))} (or choose another place for the next run with --out DIR)"
        ) from error


def as_text(text: str) -> str:
    """Return text that can be encoded: what is no Unicode in a path or an argument is written as an escape."""
    return text.encode("utf-8", "backslashreplace").decode()
