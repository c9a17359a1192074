"""Writes the lines of ``stepprobe.model.experiments``, sealed, one by one, so that they outlive the process."""

import os
from typing import Any

from stepprobe.instruments.attach.recorder import Recorder

SCHEMA = 1


class ExperimentJournal:
    """Appends records to ``experiments-rank<R>-pid<P>.jsonl``; the first of them makes the file."""

    def __init__(self, folder: str, rank: int) -> None:
        self._recorder = Recorder(os.path.join(folder, f"experiments-rank{rank}-pid{os.getpid()}.jsonl"))

    def write(self, kind: str, record: dict[str, Any]) -> None:
        """Append one line; a write that fails ends the writing, never the user's job.

        Args:
            kind: Tag of a record of ``stepprobe.model.experiments``: ``harness``, ``quiet``, ``measured``, ….
            record: Its fields.
        """
        if kind == "harness":
            record = {"schema": SCHEMA, **record}
        self._recorder.write(kind, record)

    def close(self) -> None:
        """Close the file."""
        self._recorder.close()

    def abandon(self) -> None:
        """This process is a fork: the file is its parent's."""
        self._recorder.abandon()
