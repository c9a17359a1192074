"""What each part of the profile's report may look at, and what it gives back."""

from collections.abc import Callable
from dataclasses import dataclass

from stepprobe.analysis.ledger.job import Job
from stepprobe.analysis.ledger.process import Process
from stepprobe.analysis.profile.answers import Answers
from stepprobe.analysis.profile.scaling import Fit, Refusal
from stepprobe.model.estimate import Estimate
from stepprobe.model.report import Table

Found = tuple[dict[str, Estimate], tuple[Table, ...], tuple[str, ...]]
"""Figures, tables and notes."""


@dataclass(frozen=True)
class Seen:
    """One process: its experiments, their fit, and the steps that were observed beside them."""

    answers: Answers
    fit: Fit | Refusal
    job: Job | None
    """None where no step was observed."""
    settings: dict[str, str]
    total_steps: int | None = None
    """Optimizer steps of the whole training, where they are known."""

    @property
    def process(self) -> Process | None:
        """The process whose ledger is shown."""
        return self.job.main if self.job else None


Part = Callable[[Seen], Found]
"""One question of the profile."""
