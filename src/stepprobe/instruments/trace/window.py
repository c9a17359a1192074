"""The traces that a run's own training processes wrote: compressed, and read into columns beside them."""

import gzip
import os
import re
import shutil
from importlib.util import find_spec
from pathlib import Path

import msgspec

from stepprobe.errors import StepprobeError
from stepprobe.instruments.trace.files import side_by_side
from stepprobe.instruments.trace.reader import read
from stepprobe.model.trace import SUFFIX, UNREAD, encode_columns

WRITTEN = re.compile(r"trace-rank\d+-pid\d+\.json")
"""How a training process names its trace (``instruments/attach/window.py``)."""
FAST = 1
"""Level of compression: a trace shrinks to a tenth with it, and little further with any other."""


def gather(folder: Path) -> None:
    """Compress each trace in a run folder and write its columns beside it; what cannot be read is noted there.

    Raises:
        OSError: The folder cannot be written; each trace is there still, in one form or the other.
    """
    found = sorted(path for path in folder.iterdir() if WRITTEN.fullmatch(path.name))
    if not found:
        return
    problems = [problem for problem in side_by_side(_keep, found) if problem]
    if problems:
        (folder / UNREAD).write_bytes(msgspec.json.encode(problems))


def _keep(path: Path) -> str:
    """Keep one trace; return why it could not be read, or nothing."""
    packed = path.with_name(path.name + ".gz")
    _compress(path, packed)
    if find_spec("numpy") is None:
        return f"{packed.name}: numpy is missing; pip install numpy, then: stepprobe trace FILE"
    try:
        columns = read(packed)
    except StepprobeError as error:
        return str(error)
    with open(path.with_suffix(SUFFIX), "wb") as file:
        for part in encode_columns(columns):
            file.write(part)
    return ""


def _compress(path: Path, packed: Path) -> None:
    part = packed.with_name(packed.name + ".part")
    with open(path, "rb") as plain, gzip.open(part, "wb", FAST) as file:
        shutil.copyfileobj(plain, file, 1 << 20)
    os.replace(part, packed)
    path.unlink()
