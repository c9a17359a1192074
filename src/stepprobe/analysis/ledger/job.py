"""The processes of one job, read from its evidence: one per rank, and what was set aside."""

import re
from collections.abc import Sequence

import msgspec

from stepprobe.analysis.ledger.process import Process
from stepprobe.errors import UsageError
from stepprobe.model.evidence import Evidence
from stepprobe.model.records import decode_process

STEPS_FILE = re.compile(r"steps-rank\d+-pid\d+(-\d+)?\.jsonl")


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What a job left behind."""

    ranks: tuple[Process, ...]
    """One process per rank with a finished step, by rank."""
    seen: int
    """Steps that any process began, finished or not."""
    notes: tuple[str, ...]
    """What was set aside."""

    @property
    def main(self) -> Process:
        """The process whose ledger is shown: that of the lowest rank."""
        return self.ranks[0]


def read_job(evidence: Evidence) -> Job:
    """Read all processes of a job.

    Raises:
        EvidenceError: A finished line is damaged, of a newer schema, or a step does not close.
        UsageError: The option ``warmup`` is neither ``auto`` nor a number of steps.
    """
    warmup = _warmup(evidence)
    processes: list[Process] = []
    notes: list[str] = []
    for name, content in sorted(evidence.files.items()):
        if not STEPS_FILE.fullmatch(name):
            continue
        if b"\n" not in content:
            notes.append(f"{name}: the process ended before its first line was finished ({len(content)} bytes dropped)")
            continue
        processes.append(Process(decode_process(name, content), warmup))
    idle = sum(process.count == 0 for process in processes)
    if idle:
        notes.append(f"{idle} of {len(processes)} observed processes made no optimizer step; they are left out")
    ranks: list[Process] = []
    for rank in sorted({process.rank for process in processes}):
        chosen, remarks = _of_rank([process for process in processes if process.rank == rank])
        ranks += chosen
        notes += remarks
    for place, other in enumerate(ranks):
        if other.warmup != ranks[0].warmup:  # ranks march in step, so they are compared over the same steps
            ranks[place] = Process(other.records, str(ranks[0].warmup))
    return Job(ranks=tuple(ranks), seen=sum(process.count for process in processes), notes=tuple(notes))


def _of_rank(processes: Sequence[Process]) -> tuple[list[Process], list[str]]:
    """Choose the process with the most steps of a rank; name the others."""
    able = [process for process in processes if process.entries and process.wall.value]
    if not able:
        return [], []
    chosen = max(able, key=lambda process: (process.count, -process.records.header.pid))
    notes = [
        f"rank {other.rank}: process {other.records.header.pid} trained, too ({other.count} steps); "
        f"the report is about process {chosen.records.header.pid} ({chosen.count} steps)"
        for other in able
        if other is not chosen
    ]
    return [chosen], notes


def _warmup(evidence: Evidence) -> str:
    warmup = str(evidence.options.get("warmup", "auto"))
    if warmup != "auto" and not (warmup.isascii() and warmup.isdigit()):
        raise UsageError(f"warmup is {warmup!r}: give a number of steps, or auto")
    return warmup
