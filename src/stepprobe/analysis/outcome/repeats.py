"""Further runs of the training before: what differs from run to run of one training is the work of no change.

The steps of one run lie closer to each other than the means of two runs do: where its memory lies, how warm the machine
was and what else it did stay the same for all of a run. No interval from within two runs knows of that.
"""

from collections.abc import Iterator, Sequence

from stepprobe.analysis.ledger.job import Job
from stepprobe.analysis.ledger.process import Process
from stepprobe.analysis.ledger.settings import BATCH, differing, settings
from stepprobe.analysis.ledger.tokens import KINDS, observed
from stepprobe.analysis.outcome.sameness import apart, surroundings
from stepprobe.analysis.statistics import Mean, difference
from stepprobe.analysis.wording import ends
from stepprobe.errors import UsageError
from stepprobe.model.evidence import Evidence
from stepprobe.model.report import Column, Table

ADVICE = "name further runs of the training before with --repeat, at least three"
OTHER_WORK = 0.25
"""Relative difference in tokens per step from which a step of two runs is not the same work."""


def caution(again: Sequence[object], *, decided: bool) -> str:
    """Return what the headline adds to a decision that two single runs made; empty where runs were repeated."""
    if again or not decided:
        return ""
    return "; one run a side: what runs of one training differ by is not in it (--repeat)"


def how(repeats: Sequence[object]) -> str:
    """Say in the method of a difference that runs were repeated; empty where none was."""
    if not repeats:
        return ""
    count = len(repeats)
    return f"; not narrower than what the run before and {count} repeat{'s' * (count > 1)} of it lie apart by (Student)"


def refuse_others(before: Evidence, first: Process, repeat: Evidence, again: Process, number: int) -> None:
    """Refuse a run that is none of the training before.

    Raises:
        UsageError: It is another job, ran under other settings, or has another amount of work in a step.
    """
    runs, processes = (before, repeat), (first, again)
    why = apart(runs, processes) or "; ".join(
        [*surroundings(runs, processes), *_settings(runs, processes), *_work(processes)]
    )
    if why:
        raise UsageError(f"repeat {number} ({repeat.subject}): no repeat of the run before: {why}; {ADVICE}")


def _settings(runs: tuple[Evidence, Evidence], processes: tuple[Process, Process]) -> Iterator[str]:
    for name, before, after in differing(*map(settings, runs, processes)):
        if name.startswith("job ") and name != BATCH:
            yield f"{name.removeprefix('job ')} {before} → {after}"


def _work(processes: tuple[Process, Process]) -> Iterator[str]:
    """Yield what a step holds where that is not the same work: the batches of some runs differ a little by chance."""
    for kind in KINDS:
        if all(observed(process, kind) for process in processes):
            before, after = (process.counter(kind).value for process in processes)
            if before and abs(after / before - 1) > OTHER_WORK:
                yield f"{kind if kind == 'slots' else f'{kind} tokens'} of a step {before:,.0f} → {after:,.0f}"
                return


def table(jobs: Sequence[Job]) -> Iterator[Table]:
    """Yield a row for each of several runs of one training; nothing for a single run."""
    if len(jobs) < 2:
        return
    first = jobs[0].main
    rows = [
        (f"repeat {number}" if number else "before", *_from(first.wall, job.main.wall), *_from(first.cpu, job.main.cpu))
        for number, job in enumerate(jobs)
    ]
    yield Table(
        name="repeats",
        title="The training before, run again",
        columns=(
            Column(title="run"),
            Column(title="wall", unit="ms"),
            Column(title="apart, 95 % from within"),
            Column(title="CPU", unit="ms"),
            Column(title="apart, 95 % from within"),
        ),
        rows=tuple(rows),
        caption="Runs of one training: where the interval of a difference from within two of them leaves zero out, it "
        "is too narrow for this machine, and what lies between runs decides.",
    )


def _from(first: Mean, own: Mean) -> tuple[float, str]:
    return own.value, "" if own is first else ends(*difference(first, own)[1:])
