"""What is written when: one journal for a training process, from its first step on."""

import os
import time
from typing import Any

from stepprobe.instruments.attach.recorder import FULL_STEPS, Recorder
from stepprobe.instruments.attach.sites import Sites

SITES_EVERY_NS = 2_000_000_000
"""How often the cumulative tables are written, beside each doubling of the step count."""
LEAST_FULL_STEPS = 256
NOTES = 50
"""Notes kept; a hook that fails on each step must not fill the disk."""


class Journal:
    """Steps as they end, facts when they change, cumulative tables now and then."""

    def __init__(self, folder: str, sites: Sites) -> None:
        self.facts: dict[str, Any] = {}
        """What was seen of the job's set-up."""
        self.folder = folder
        """The run folder."""
        self._sites = sites
        self._recorder: Recorder | None = None
        self._origin = 0
        self._steps = 0
        self._written_facts: dict[str, Any] = {}
        self._sites_due_ns = 0
        self._notes: list[str] = []

    @property
    def is_open(self) -> bool:
        """Whether the first step has begun and the file can still be written."""
        return self._recorder is not None and self._recorder.failure is None

    @property
    def has_begun(self) -> bool:
        """Whether the first step has begun."""
        return self._recorder is not None

    def begin(self, rank: int, world_size: int, header: dict[str, Any]) -> None:
        """Write the first line."""
        path = os.path.join(self.folder, f"steps-rank{rank}-pid{os.getpid()}.jsonl")
        self._recorder = Recorder(path, full_steps=max(LEAST_FULL_STEPS, FULL_STEPS // max(world_size, 1)))
        self._recorder.write("header", header)
        self._origin = time.perf_counter_ns()
        for text in self._notes:
            self._recorder.write("note", {"text": text})

    def step(self, record: dict[str, Any], begin_ns: int, end_ns: int) -> None:
        """Write a step, and what else is due."""
        assert self._recorder is not None
        record["start_ns"] = begin_ns - self._origin
        self._recorder.step(record, end_ns)
        self._steps = record["index"] + 1
        self._write_facts()
        if end_ns >= self._sites_due_ns or self._steps & (self._steps - 1) == 0:
            # each table is a snapshot of all so far: further apart as the job grows, so that they stay bounded
            self._sites_due_ns = end_ns + max(SITES_EVERY_NS, (end_ns - self._origin) // 10)
            self._write_sites()

    def note(self, text: str) -> None:
        """Keep a line about something that was skipped or went wrong in the instrument; each line once."""
        if text in self._notes or len(self._notes) >= NOTES:
            return
        self._notes.append(text)
        if self._recorder is not None:
            self._recorder.write("note", {"text": text})

    def close(self) -> None:
        """Write the last lines."""
        if self.is_open:
            assert self._recorder is not None
            self._write_facts()
            self._write_sites()
            self._recorder.write("end", {"steps": self._steps, "reason": "exit"})
            self._recorder.close()

    def abandon(self) -> None:
        """This process is a fork: the file is its parent's."""
        if self._recorder is not None:
            self._recorder.abandon()

    def _write_facts(self) -> None:
        assert self._recorder is not None
        if self.facts != self._written_facts:
            self._written_facts = dict(self.facts)
            self._recorder.write("facts", {"facts": self._written_facts})

    def _write_sites(self) -> None:
        assert self._recorder is not None
        self._recorder.write("sites", {"step": self._steps, **self._sites.table()})
