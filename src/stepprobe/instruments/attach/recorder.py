"""Write what was seen, line by line, so that it outlives the process however it ends.

Standard library only. The lines are described in ``stepprobe.model.records``. A write that fails (full disk, lost
mount) never reaches the user's code: the recorder says so once on standard error and stops.
"""

import contextlib
import fcntl
import itertools
import json
import math
import os
import zlib
from typing import Any

FULL_STEPS = 4096
"""Steps that are kept in full before thinning begins."""
BLOCK = 64
"""Steps kept in full between two finished lines of sums."""
TAIL_NS = 100_000_000
"""The unfinished sums are on disk after this time at the latest: a kill loses no step that took longer."""

_encode = json.JSONEncoder(separators=(",", ":"), check_circular=False, ensure_ascii=False).encode


class Recorder:
    """Appends records to one file; keeps every step at first, then fewer and fewer, with sums for all the others.

    After ``full_steps`` steps, each doubling of the count halves the share of steps kept in full: a run of n steps
    leaves about ``full_steps * (1 + log2(n / full_steps) / 2)`` lines. Sums in progress lie at the end of the file
    and are overwritten in place as they grow.
    """

    def __init__(self, path: str, full_steps: int = FULL_STEPS) -> None:
        self._path = path
        self._file = -1
        self._identity = (-1, -1)
        self._full_steps = full_steps
        self._sums: dict[bool, dict[str, Any]] = {}
        self._end = 0
        self._tail = b""
        self._tail_at_ns = 0
        self.failure: str | None = None

    def write(self, kind: str, record: dict[str, Any]) -> None:
        """Append one record, before the sums in progress."""
        self._append(_line(kind, record))

    def _append(self, line: bytes) -> None:
        self._put(line + self._tail)
        self._end += len(line)

    def step(self, record: dict[str, Any], now_ns: int) -> None:
        """Append a step in full, or add it to the sums when its turn to be kept has not come.

        One that stays out of the means is always kept in full: a sum could not leave it out again.
        """
        index = record["index"]
        if index < self._full_steps:
            self._append(step_line(record))
            return
        stride = 1 << (index // self._full_steps).bit_length()
        if index % stride == 0 or record.get("aside"):
            self._append(step_line(record))
        else:
            self._add(record)
        if index % (BLOCK * stride) == BLOCK * stride - 1:
            self.flush()
        elif now_ns - self._tail_at_ns >= TAIL_NS:
            self._tail_at_ns = now_ns
            self._write_tail()

    def flush(self) -> None:
        """Finish the sums in progress."""
        self._write_tail()
        self._end += len(self._tail)
        self._tail = b""
        self._sums = {}

    def abandon(self) -> None:
        """Never write from this process: it is a fork, and the file is its parent's."""
        self.failure = "forked"

    def close(self) -> None:
        """Write what is pending and close the file."""
        self.flush()
        if self._holds_its_file():
            os.close(self._file)
        self._file = -1
        self.failure = self.failure or "closed"

    def _write_tail(self) -> None:
        self._tail = b"".join(_line("summary", {"detail": detail, **sums}) for detail, sums in self._sums.items())
        self._put(self._tail)

    def _put(self, data: bytes) -> None:
        if self.failure is not None or not data:
            return
        try:
            if self._file < 0:
                self._create()
            elif not self._holds_its_file():
                self._file = _open(self._path, 0)
                if not self._holds_its_file():
                    raise OSError("the script closed its file, and another lies in its place")
            # unbuffered: what is written is in the kernel's hands and outlives a kill
            if os.pwrite(self._file, data, self._end) != len(data):
                raise OSError("short write: the disk is full")
        except OSError as error:
            self._give_up(error)

    def _create(self) -> None:
        """Make the file; a process that replaced itself by ``exec`` finds its own earlier one, and counts on."""
        stem, suffix = os.path.splitext(self._path)
        for number in itertools.count(2):
            try:
                self._file = _open(self._path, os.O_CREAT | os.O_EXCL)
                break
            except FileExistsError:
                self._path = f"{stem}-{number}{suffix}"
        self._identity = _identity(self._file)

    def _holds_its_file(self) -> bool:
        """Return whether the number still is our file's: a script may close numbers that it never opened."""
        try:
            return _identity(self._file) == self._identity
        except OSError:
            return False

    def _add(self, record: dict[str, Any]) -> None:
        sums = self._sums.get(record["detail"])
        if sums is None:
            sums = self._sums[record["detail"]] = _nothing(record["index"])
        sums["last"] = record["index"]
        sums["count"] += 1
        for key in ("wall_ns", "cpu_ns", "self_ns"):
            sums[key] += record[key]
        for account, (wall, off) in record["accounts"].items():
            total = sums["accounts"].setdefault(account, [0, 0])
            total[0] += wall
            total[1] += off
        for name, count in record["counters"].items():
            sums["counters"][name] = sums["counters"].get(name, 0) + count
        octave = str(math.floor(8 * math.log2(max(record["wall_ns"], 1))))
        sums["wall_histogram"][octave] = sums["wall_histogram"].get(octave, 0) + 1

    def _give_up(self, error: OSError) -> None:
        self.failure = str(error)
        message = f"stepprobe: cannot write evidence any more ({error}); the script goes on, unobserved\n"
        with contextlib.suppress(OSError):
            os.write(2, message.encode())


def _open(path: str, flags: int) -> int:
    """Open for writing, never as 0, 1 or 2: the script may have closed those, and still write to them."""
    file = os.open(path, os.O_WRONLY | os.O_CLOEXEC | flags, 0o644)
    try:
        return fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, 3)
    finally:
        os.close(file)


def _identity(file: int) -> tuple[int, int]:
    status = os.fstat(file)
    return status.st_dev, status.st_ino


def _line(kind: str, record: dict[str, Any]) -> bytes:
    return _sealed(_encode({"type": kind, **record})[:-1])


def _sealed(body: str) -> bytes:
    data = body.encode("utf-8", "replace")  # a path need not be Unicode
    return b'%b,"crc":"%08x"}\n' % (data, zlib.crc32(data))


def step_line(record: dict[str, Any]) -> bytes:
    """Return the line of a step: the JSON that an encoder gives, twice as fast, since all of it is numbers."""
    accounts = ",".join([f'"{name}":[{wall},{off}]' for name, (wall, off) in record["accounts"].items()])
    counters = ",".join([f'"{name}":{count}' for name, count in record["counters"].items()])
    aside = f'"aside":"{record["aside"]}",' if record.get("aside") else ""
    return _sealed(
        f'{{"type":"step","index":{record["index"]},"start_ns":{record["start_ns"]},"wall_ns":{record["wall_ns"]},'
        f'"cpu_ns":{record["cpu_ns"]},"self_ns":{record["self_ns"]},"detail":{"true" if record["detail"] else "false"},'
        f'"end":"{record["end"]}",{aside}"accounts":{{{accounts}}},"counters":{{{counters}}}'
    )


def _nothing(index: int) -> dict[str, Any]:
    zeros = {"count": 0, "wall_ns": 0, "cpu_ns": 0, "self_ns": 0}
    return {"first": index, "last": index, **zeros, "accounts": {}, "counters": {}, "wall_histogram": {}}
