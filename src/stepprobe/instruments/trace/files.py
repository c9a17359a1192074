"""Trace files as a subject: each is read into columns, which are the evidence.

The trace itself stays where it is and is named by its hash: it may be gigabytes, and it carries host names, user names
and paths that no report needs.
"""

import os
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TypeVar

import msgspec

from stepprobe.errors import NotObserved, StepprobeError, UsageError
from stepprobe.instruments.trace.reader import read
from stepprobe.model.evidence import Evidence
from stepprobe.model.trace import SUFFIX, SUMMARY_SUFFIX, UNREAD, Columns, encode_columns

COLUMNS_MOST = 256 << 20
"""Bytes of columns that a run keeps; of traces beyond that, their summaries are the evidence."""

Summarise = Callable[[Columns], bytes]
"""Turns columns into the bytes of a summary file."""

_ENDINGS = (".json", ".json.gz", ".json.zst", ".json.zstd")


def find(paths: Sequence[Path]) -> list[Path]:
    """Return the trace files that are meant: files as they are named, of folders all traces in them.

    Raises:
        UsageError: One does not exist, a folder holds no trace, or nothing is named.
    """
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = sorted(one for one in path.iterdir() if one.name.endswith(_ENDINGS))
            if not inside:
                raise UsageError(f"{str(path)!r} holds no trace ({', '.join(_ENDINGS)}); name a trace file")
            found += inside
        elif path.exists():
            found.append(path)
        else:
            raise UsageError(f"{str(path)!r} does not exist; name a trace file, or a folder of them")
    if not found:
        raise UsageError("name a trace file, or a folder of them")
    return list(dict.fromkeys(found))


class TraceFiles(msgspec.Struct, frozen=True, kw_only=True):
    """The traces of one job."""

    paths: tuple[Path, ...]
    planned: Evidence
    """What is known before."""
    summarise: Summarise
    """Makes the evidence of traces whose columns would not fit; a function that another process can import."""

    def observe(self) -> Evidence:
        """Read every trace, one process per file up to the cores.

        Raises:
            UsageError: A file cannot be opened.
            NotObserved: No file holds a trace.
        """
        small = sum(path.stat().st_size for path in self.paths) <= COLUMNS_MOST or len(self.paths) == 1
        summarise = None if small else self.summarise
        jobs = [(path, place, summarise) for place, path in enumerate(self.paths)]
        files: dict[str, bytes] = {}
        failed: list[StepprobeError] = []
        for name, read_or_error in side_by_side(_read, jobs):
            if isinstance(read_or_error, bytes):
                files[name] = read_or_error
            else:
                failed.append(read_or_error)
        if not files:
            raise failed[0] if len(failed) == 1 else NotObserved(f"no trace could be read; first: {failed[0]}")
        if failed:
            files[UNREAD] = msgspec.json.encode([str(error) for error in failed])
        return msgspec.structs.replace(self.planned, files=files)


_Job = tuple[Path, int, Summarise | None]
_Task = TypeVar("_Task")
_Answer = TypeVar("_Answer")


def side_by_side(work: Callable[[_Task], _Answer], tasks: Sequence[_Task]) -> Iterator[_Answer]:
    """Do one thing with many, one process each up to the cores; ``work`` can be imported by another process."""
    workers = min(len(tasks), len(os.sched_getaffinity(0)))
    if workers < 2:
        yield from map(work, tasks)
        return
    with ProcessPoolExecutor(workers) as pool:
        yield from pool.map(work, tasks)


def _read(job: _Job) -> tuple[str, bytes | StepprobeError]:
    """Read one trace; return the name and the content of its evidence, or why there is none."""
    path, place, summarise = job
    name = f"{place:04}-{_plain(path.name)}{SUMMARY_SUFFIX if summarise else SUFFIX}"
    try:
        columns = read(path)
    except StepprobeError as error:
        return name, error
    return name, summarise(columns) if summarise else b"".join(encode_columns(columns))


def _plain(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.]+", "-", name)[:60]
