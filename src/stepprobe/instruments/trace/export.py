"""Files for other tools: a table as CSV or JSON, and the trace with our accounts as a track of its own."""

import contextlib
import csv
import gzip
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, Protocol, cast

from stepprobe.errors import NotObserved, UsageError
from stepprobe.instruments.trace.source import opened
from stepprobe.model.report import Table
from stepprobe.model.trace import TraceHeader

_OPENING = re.compile(rb'\A(?:\xef\xbb\xbf)?\s*(?:\[|\{.*?"traceEvents"\s*:\s*\[)', re.DOTALL)
_CHUNK_BYTES = 4 << 20
_PROCESS = 1_000_000_007
"""Process number of our tracks; no operating system gives it to a process."""


class Stretch(Protocol):
    """A stretch of time on one device."""

    @property
    def device(self) -> str: ...  # noqa: D102
    @property
    def step(self) -> str: ...  # noqa: D102
    @property
    def account(self) -> str: ...  # noqa: D102
    @property
    def start_ns(self) -> int: ...  # noqa: D102
    @property
    def end_ns(self) -> int: ...  # noqa: D102


def require_writable(path: Path) -> None:
    """Find out before the work that a file can be written after it.

    Raises:
        UsageError: It cannot.
    """
    if path.is_dir() or not path.parent.is_dir():
        raise UsageError(f"cannot write {str(path)!r}: its folder does not exist, or it is one; name another file")


def write_table(table: Table, path: Path) -> None:
    """Write a table: CSV with one row of titles, or a JSON list of objects if ``path`` ends in ``.json``.

    Shares are 0..1, times in the unit that the title names.

    Raises:
        UsageError: The file cannot be written.
    """
    titles = [f"{column.title} [{column.unit}]" if column.unit else column.title for column in table.columns]
    try:
        with path.open("w", newline="", encoding="utf-8") as file:
            if path.suffix == ".json":
                json.dump([dict(zip(titles, row, strict=True)) for row in table.rows], file, indent=1)
                return
            writer = csv.writer(file)
            writer.writerow(titles)
            writer.writerows([_harmless(cell) for cell in row] for row in table.rows)
    except OSError as error:
        raise UsageError(f"cannot write {str(path)!r}: {error.strerror}; name another file") from error


def _harmless(cell: object) -> object:
    """Keep a spreadsheet from taking a name for a formula."""
    return f"'{cell}" if isinstance(cell, str) and cell[:1] in "=+-@\t\r" else cell


def write_perfetto(source: Path, header: TraceHeader, stretches: Iterable[Stretch], path: Path) -> None:
    """Copy a trace and put our accounts in front of its events, compressed if ``path`` ends in ``.gz``.

    Raises:
        UsageError: A file cannot be read or written.
        NotObserved: The trace has changed and is none any more.
    """
    trace = opened(source)
    chunks = trace.chunks(_CHUNK_BYTES)
    head = b""
    while (opening := _OPENING.match(head)) is None:
        more = next(chunks, b"")
        if not more:
            trace.finish()
            raise NotObserved(f"{source.name}: holds no trace events any more; read it again")
        head += more
    try:
        with contextlib.ExitStack() as stack:
            out: BinaryIO = stack.enter_context(path.open("wb"))
            if path.suffix == ".gz":
                out = cast(BinaryIO, stack.enter_context(gzip.GzipFile(fileobj=out, mode="wb", compresslevel=5)))
            out.write(head[: opening.end()])
            rest = head[opening.end() :]
            events = _events(header, stretches)
            out.write(b",\n".join(events) + (b"" if rest.lstrip()[:1] in (b"]", b"") else b",\n"))
            out.write(rest)
            for chunk in chunks:
                out.write(chunk)
            trace.finish()
    except OSError as error:
        raise UsageError(f"cannot write {str(path)!r}: {error.strerror}; name another file") from error


def _events(header: TraceHeader, stretches: Iterable[Stretch]) -> Iterator[bytes]:
    lanes: dict[str, int] = {}
    about = {"name": "process_name", "ph": "M", "pid": _PROCESS, "tid": 0, "args": {"name": "stepprobe: device ledger"}}
    yield json.dumps(about).encode()
    for one in stretches:
        if one.device not in lanes:
            lanes[one.device] = len(lanes)
            named = {"name": "thread_name", "ph": "M", "pid": _PROCESS, "tid": lanes[one.device]}
            yield json.dumps(named | {"args": {"name": f"device {one.device}"}}).encode()
        event = {"ph": "X", "cat": "stepprobe", "name": one.account, "pid": _PROCESS, "tid": lanes[one.device]}
        text = json.dumps(event | {"args": {"step": one.step}})[1:]
        start, length = header.origin_ns + one.start_ns, one.end_ns - one.start_ns
        yield f'{{"ts": {_time(start, header)}, "dur": {_time(length, header)}, {text}'.encode()


def _time(time_ns: int, header: TraceHeader) -> str:
    if header.unit == "ns":
        return str(time_ns)
    whole, rest = divmod(time_ns, 1000)
    return f"{whole}.{rest:03}" if rest else str(whole)
