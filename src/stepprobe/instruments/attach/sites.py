"""Cumulative tables by place: synchronising calls, stack samples, input shapes, the framework's own rates."""

import sysconfig
from types import CodeType
from typing import Any

from stepprobe.instruments.attach.callers import Place

LIMIT = {"syncs": 512, "samples": 2048, "shapes": 8192}
"""Places remembered; what comes later is counted under one name."""
SHOWN = {"syncs": 100, "samples": 200, "shapes": 64}
"""Places written, most frequent first."""
OTHERS = "(other places)"
_STDLIB = sysconfig.get_path("stdlib") + "/"

Sample = tuple[str, CodeType | None, int, CodeType | None, int]
"""(account, innermost code of the user and its line, innermost code and its line)"""


class Sites:
    """Counts by place, keyed by code object and position: a line number is worked out only when a table is written."""

    def __init__(self) -> None:
        self.syncs: dict[tuple[CodeType | None, int, str], list[int]] = {}
        self.samples: dict[Sample, int] = {}
        self._pending: dict[Sample, int] = {}
        self.shapes: dict[str, int] = {}
        self.rates: dict[str, float] = {}
        self.sampler = {"interval_ns": 0, "taken": 0}

    def sync(self, place: Place, operation: str) -> list[int]:
        """Return what a place that makes the host wait counts into: its calls, those timed, their ns."""
        key: tuple[CodeType | None, int, str] = (place.code, place.at, operation)
        if key not in self.syncs and len(self.syncs) >= LIMIT["syncs"]:
            key = (None, 0, operation)
        place.row = self.syncs.setdefault(key, [0, 0, 0])
        return place.row

    def sample(self, account: str, user: CodeType | None, user_line: int, leaf: CodeType, leaf_line: int) -> None:
        """Count one stack sample, in the step that is under way."""
        key: Sample = (account, user, user_line, leaf, leaf_line)
        self._pending[key] = self._pending.get(key, 0) + 1

    def keep_samples(self) -> None:
        """The step is over: its samples count. Those behind the last step, when the script winds up, never do."""
        pending, self._pending = self._pending, {}
        for key, count in pending.items():
            if key not in self.samples and len(self.samples) >= LIMIT["samples"]:
                key = (key[0], None, 0, None, 0)
            self.samples[key] = self.samples.get(key, 0) + count
            self.sampler["taken"] += count

    def drop_samples(self) -> None:
        """The step is over, and was like no other: its samples say nothing about the rest."""
        self._pending = {}

    def shape(self, shape: str) -> bool:
        """Count one micro-batch; return whether its shape is seen for the first time."""
        first = shape not in self.shapes
        if first and len(self.shapes) >= LIMIT["shapes"]:
            shape = OTHERS
        self.shapes[shape] = self.shapes.get(shape, 0) + 1
        return first

    def table(self) -> dict[str, Any]:
        """Return the most frequent places of each table, as they are written."""
        syncs = sorted(self.syncs.items(), key=lambda item: -item[1][0])[: SHOWN["syncs"]]
        samples = sorted(self.samples.items(), key=lambda item: -item[1])[: SHOWN["samples"]]
        shapes = sorted(self.shapes.items(), key=lambda item: -item[1])[: SHOWN["shapes"]]
        return {
            "syncs": [[_at(code, _line_of(code, at)), operation, *row] for (code, at, operation), row in syncs],
            "samples": [
                [account, _at(user, user_line), _at(leaf, leaf_line), count]
                for (account, user, user_line, leaf, leaf_line), count in samples
            ],
            "shapes": [list(item) for item in shapes],
            "sampler": dict(self.sampler),
            "rates": dict(self.rates),
        }


def shorten(path: str) -> str:
    """Return a path as people know it: from the package on for libraries, as given for their own files."""
    for root in ("/site-packages/", "/dist-packages/", _STDLIB):
        if root in path:
            return path.rpartition(root)[2]
    return path


def _at(code: CodeType | None, line: int) -> str:
    return OTHERS if code is None else f"{shorten(code.co_filename)}:{line} {code.co_name}"


def _line_of(code: CodeType | None, instruction: int) -> int:
    if code is None:
        return 0
    for begin, end, line in code.co_lines():
        if begin <= instruction < end and line is not None:
            return line
    return code.co_firstlineno
