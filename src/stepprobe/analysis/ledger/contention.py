"""How much of its computing a training thread was put aside: the mark of a machine that is busy with other things."""

from stepprobe.analysis.ledger.process import NS_PER_MS, Process
from stepprobe.analysis.statistics import Mean
from stepprobe.model.accounts import BACKWARD, FORWARD

COMPUTING = (*FORWARD, "recompute", *BACKWARD, "optimizer", "clip")
"""Accounts in which the training thread computes, where the job runs on the CPU."""

BUSY_SHARE = 0.1
"""Off-CPU part of computing accounts that a quiet machine does not reach: there the thread has nothing to wait for."""


def computing(process: Process) -> tuple[str, ...]:
    """Return the accounts in which a process has nothing to wait for but a core.

    With more than one rank the backward pass is none of them: gradients are exchanged in it, so a thread that is off
    the CPU there may wait for another rank.
    """
    alone = process.records.header.world_size == 1
    return COMPUTING if alone else tuple(name for name in COMPUTING if name not in BACKWARD)


def put_aside(process: Process) -> Mean:
    """Return ms per step in which the thread was off the CPU while it computed."""
    names = computing(process)
    return process.mean(lambda entry: sum(entry.off_cpu.get(name, 0) for name in names) / NS_PER_MS)


def aside_share(process: Process) -> float:
    """Return the part of its computing, 0..1, in which the thread was off the CPU; 0 where that says nothing.

    Where a device computes, the thread may be off the CPU because it waits for the device.
    """
    worked = process.account(*computing(process)).value
    if process.facts.get("device") != "cpu" or not worked:
        return 0.0
    return put_aside(process).value / worked


def undisturbed(process: Process) -> Process:
    """Return a process as if it had not been put aside while it computed; one that computes on a device as it is."""
    return process.undisturbed(computing(process)) if process.facts.get("device") == "cpu" else process
