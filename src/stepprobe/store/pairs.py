"""The calibration log of a folder of run folders: what was predicted, and what came."""

import fcntl
import os
from collections.abc import Sequence
from pathlib import Path

from stepprobe.errors import StepprobeError, UsageError
from stepprobe.model.calibration import CALIBRATION, Pair, encode_pair, missing
from stepprobe.store.files import as_text


def append_pairs(out: Path, pairs: Sequence[Pair]) -> int:
    """Append pairs to the calibration log of a folder of run folders, each once; return how many were new.

    Run folders are not touched. A lock is held from reading to writing, and each write is whole lines at the end, so
    comparisons at the same time lose and double nothing; a last line that was never finished is closed first.

    Raises:
        StepprobeError: The log cannot be written.
    """
    try:
        descriptor = os.open(
            out / CALIBRATION, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644
        )
        with open(descriptor, "r+b", buffering=0) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            content = file.readall()
            new = missing(content, pairs)
            if new:
                closing = b"\n" if content and not content.endswith(b"\n") else b""
                file.write(closing + b"".join(map(encode_pair, new)))
                os.fsync(file.fileno())
            return len(new)
    except OSError as error:
        raise StepprobeError(
            f"cannot write {as_text(str(out / CALIBRATION))}: {error.strerror}; the comparison is whole. "
            "Make the folder writable, then compare again"
        ) from error


def read_pairs(out: Path) -> bytes:
    """Return the calibration log of a folder of run folders; empty where there is none.

    Raises:
        UsageError: The folder or the log cannot be read.
    """
    try:
        if not out.is_dir():
            raise UsageError(f"{as_text(str(out))} is no folder; name the folder of run folders")
        descriptor = os.open(out / CALIBRATION, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise UsageError(f"cannot read {as_text(str(out / CALIBRATION))}: {error.strerror}") from error
