"""Under what a run was observed: the machine, and what the training process said about itself."""

from stepprobe.analysis.process import Process
from stepprobe.model.evidence import Evidence


def settings(evidence: Evidence, process: Process) -> dict[str, str]:
    """Return machine, packages and the job's own settings by name."""
    header = process.records.header
    return {
        **evidence.environment,
        "python": header.python or evidence.environment.get("python", ""),
        "world size": str(header.world_size),
        **{f"package {name}": version for name, version in header.versions.items()},
        **{f"job {name}": str(value) for name, value in process.facts.items()},
    }
