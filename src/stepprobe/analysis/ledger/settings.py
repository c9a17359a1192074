"""Under what a run was observed: the machine, and what the training process said about itself."""

from collections.abc import Iterator

from stepprobe.analysis.ledger.process import Process
from stepprobe.model.evidence import Evidence

NO_BATCH_SIZE = ("loader_batch_size", 0)
"""What a loader says whose batches are made by a sampler: nothing about their size."""
BATCH = "job batch, most often"
"""What was seen of the batches, beside what was set."""


def settings(evidence: Evidence, process: Process) -> dict[str, str]:
    """Return machine, packages and the job's own settings by name."""
    header = process.records.header
    return {
        **evidence.environment,
        "python": header.python or evidence.environment.get("python", ""),
        "world size": str(header.world_size),
        **{f"package {name}": version for name, version in header.versions.items()},
        **{f"job {name}": str(value) for name, value in process.facts.items() if _is_setting(name, value)},
        **_batch(process),
    }


def differing(first: dict[str, str], second: dict[str, str]) -> Iterator[tuple[str, str, str]]:
    """Yield name, first and second of all in which the settings of two runs differ, by name."""
    for name in sorted(first.keys() | second.keys()):
        before, after = (known.get(name, "absent") for known in (first, second))
        if before != after:
            yield name, before, after


def _is_setting(name: str, value: object) -> bool:
    """Return whether a fact says how the job was set up; those about the traced steps do not."""
    return (name, value) != NO_BATCH_SIZE and not name.startswith("window.")


def _batch(process: Process) -> dict[str, str]:
    shapes = process.records.sites.shapes if process.records.sites else []
    return {BATCH: max(shapes, key=lambda one: one[1])[0]} if shapes else {}
