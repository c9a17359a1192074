"""Where did each step's time go? From the records of training processes to the report of ``stepprobe run``."""

from collections.abc import Mapping

from stepprobe.analysis.beside import beside
from stepprobe.analysis.controls import recover
from stepprobe.analysis.findings import find
from stepprobe.analysis.ledger.figures import ledger_rows, run_figures
from stepprobe.analysis.ledger.job import Job, read_job
from stepprobe.analysis.ledger.known import EXPECTED, TOLERANCE, known_run
from stepprobe.analysis.ledger.reservations import run_notes, unsteady
from stepprobe.analysis.ledger.settings import settings
from stepprobe.analysis.ledger.tables import run_charts, run_tables
from stepprobe.analysis.unmeasured import unmeasured
from stepprobe.instruments.trace.reader import read_bytes
from stepprobe.model.accounts import LABELS
from stepprobe.model.estimate import Estimate, exact
from stepprobe.model.evidence import Evidence
from stepprobe.model.finding import Control
from stepprobe.model.harness import Subject
from stepprobe.model.report import Report

SUMMARY = "where each step's time goes, what to change, and what that should gain"


def measure(subject: Subject) -> Evidence:
    """Observe the subject; interpret nothing."""
    return subject.observe()


def control() -> tuple[Evidence, dict[str, float]]:
    """Return a run whose answer is known, and that answer by figure name."""
    return known_run(), dict(EXPECTED)


def derive(evidence: Evidence) -> Report:
    """Derive the report of a run, after recovering a known one.

    Raises:
        EvidenceError: The evidence is damaged or a step does not close.
        UsageError: An option of the run makes no sense.
    """
    known, expected = control()
    controls = recover(_figures(read_job(known)), expected, tolerances=TOLERANCE)
    job = read_job(evidence)
    if not job.ranks:
        return _nothing_measured(evidence, job, controls)
    figures, missing = run_figures(job.main, job.ranks)
    other = beside(evidence.files, job, read_bytes)
    findings = find(job.main, job.ranks, wrong=other.wrong, more=other.slow)
    broken = not all(one.ok for one in controls)
    reason = "; ".join(filter(None, (other.reason, _reason(evidence, job))))
    return Report(
        command=evidence.command,
        verdict="not measured" if broken else "warn" if reason else "ok",
        reason="" if broken else reason,
        title=evidence.subject,
        headline=_broken_headline(controls) if broken else _headline(figures, job.main.unmasked),
        figures={**figures, **other.figures},
        ledger=ledger_rows(job.main),
        findings=findings,
        controls=(*controls, *other.controls),
        tables=(*other.ledger, *run_tables(job.main, job.ranks), *other.tables),
        charts=(*run_charts(job.main), *other.charts),
        notes=(*run_notes(job, evidence.status), *missing, *other.notes),
        environment=settings(evidence, job.main),
    )


def _figures(job: Job) -> dict[str, Estimate]:
    return run_figures(job.main, job.ranks)[0]


def _reason(evidence: Evidence, job: Job) -> str:
    if evidence.status != "finished":
        return f"the script did not end well ({evidence.status})"
    return unsteady(job.main)


def _headline(figures: Mapping[str, Estimate], unmasked: bool) -> str:
    parts = [f"step {figures['step.wall'].value:,.1f} ms"]
    if real := figures.get("tokens.real_per_second"):
        # without a mask nobody knows which tokens are real
        parts.append(f"{real.value:,.0f} {'slots' if unmasked else 'real tokens'}/s")
    largest = max((name for name in LABELS), key=lambda name: figures[f"ledger.{name}"].value)
    share = figures[f"ledger.{largest}"].value / figures["step.wall"].value
    parts.append(f"most in {LABELS[largest]} ({share:.0%})")
    return " · ".join(parts)


def _broken_headline(controls: tuple[Control, ...]) -> str:
    failed = ", ".join(one.name for one in controls if not one.ok)
    return f"not measured: the control run was not recovered ({failed}); please report this"


def _nothing_measured(evidence: Evidence, job: Job, controls: tuple[Control, ...]) -> Report:
    begun = (
        f"{job.seen} optimizer step was begun, but its end was not seen" if job.seen else "no optimizer step was seen"
    )
    said = f"not measured: {begun} (the script: {evidence.status}){_next_step(evidence)}"
    figures = {"step.count": exact(job.seen, "steps", job.seen, "optimizer steps seen")}
    return unmeasured(evidence, said, controls=controls, figures=figures, notes=job.notes)


def _next_step(evidence: Evidence) -> str:
    if evidence.status == "finished":
        return "; does it train with a torch optimizer in this Python, and not under -I, -E or -S?"
    return "; read its own error above, and run it without stepprobe to see whether it trains"
