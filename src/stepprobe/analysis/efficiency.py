"""How far from the limits of its machine a step runs: model FLOPs, MFU and HFU, ceilings, and what is recoverable."""

from collections.abc import Mapping, Sequence

from stepprobe.analysis.job import Job
from stepprobe.model.estimate import Estimate
from stepprobe.model.experiments import ExperimentRecord
from stepprobe.model.report import Table

Found = tuple[dict[str, Estimate], tuple[Table, ...], tuple[str, ...]]


def efficiency(records: Sequence[ExperimentRecord], job: Job | None, settings: Mapping[str, str]) -> Found:
    """Return figures, tables (the ceilings first) and notes.

    Args:
        records: Lines of the experiments of one process.
        job: The same job's own steps; None where none was observed, then there is no figure per step.
        settings: The report's environment, as ``analysis.settings.settings`` gives it.
    """
    return {}, (), ()
