"""The report of ``stepprobe profile``: one part for each question, and the ledger of the steps that were observed."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from stepprobe.analysis.beside import Beside, beside
from stepprobe.analysis.findings import find
from stepprobe.analysis.ledger.figures import ledger_rows, run_figures
from stepprobe.analysis.ledger.job import Job, read_job
from stepprobe.analysis.ledger.reservations import run_notes
from stepprobe.analysis.ledger.settings import settings
from stepprobe.analysis.ledger.tables import run_charts, run_tables
from stepprobe.analysis.limits.efficiency import efficiency
from stepprobe.analysis.profile import growth
from stepprobe.analysis.profile.answers import Answers, answer_notes, busy, read_answers
from stepprobe.analysis.profile.findings import findings
from stepprobe.analysis.profile.loss import loss_part
from stepprobe.analysis.profile.outlook import Outlook, charts, headline, look_ahead, outlook
from stepprobe.analysis.profile.penalty import penalty
from stepprobe.analysis.profile.scaling import Refusal
from stepprobe.analysis.profile.view import Found, Part, Seen
from stepprobe.model.estimate import Estimate
from stepprobe.model.evidence import Evidence
from stepprobe.model.finding import Control
from stepprobe.model.report import Chart, Report, Table, Verdict

if TYPE_CHECKING:
    from stepprobe.analysis.trace.control import Reader

REPLAY = {"float32": 1e-4, "float64": 1e-4}
"""Relative error up to which the loss of a replayed batch is the one that was captured, by element type."""
REPLAY_COARSE = 1e-3
"""The same for types of 16 bits."""
BUSY = "measured on a busy machine, as asked"
"""What stands in the method of every figure of such experiments."""
FAR = 0.15
"""Error at the held-out shape from which the report warns of its own fit; real fits are within it at the median."""


def _growth(seen: Seen) -> Found:
    if isinstance(seen.fit, Refusal):
        return {}, growth.fixed_tokens(seen.answers), (f"no fit: {seen.fit.reason}",)
    tables = (growth.shape_table(seen.fit), *growth.fixed_tokens(seen.answers))
    return growth.fit_figures(seen.fit, seen.answers), tables, ()


def _too_busy(answers: Answers) -> bool:
    """Return whether nothing was measured because the machine was busy; what was refused says the next step."""
    return bool(answers.quiet and answers.quiet.refused and not answers.measured)


def _efficiency(seen: Seen) -> Found:
    return efficiency(seen.answers.records, seen.job, seen.settings)


PARTS: tuple[Part, ...] = (_growth, penalty, loss_part, _efficiency)
"""The questions, in the order in which they are answered; behind the first comes the outlook."""


def profile_report(evidence: Evidence, controls: tuple[Control, ...], read: "Reader | None" = None) -> Report:
    """Return the report of the experiments in a run folder.

    Args:
        evidence: What was observed.
        controls: Known questions that were asked before.
        read: The reader of traces; None leaves out what lies beside steps and experiments.

    Raises:
        EvidenceError: The evidence is damaged.
        UsageError: An option of the run makes no sense.
    """
    answers, notes = read_answers(evidence)
    job = _job(evidence)
    other = beside(evidence.files, job, read) if job and read else Beside()
    if answers is None:
        return _nothing(evidence, job, controls, other, notes)
    seen = _seen(evidence, answers, job)
    controls = (*controls, *_replayed(answers))
    ahead = look_ahead(seen)
    figures, tables, said = _asked(seen, ahead, evidence)
    verdict, refusal, reason = _verdict(evidence, seen, controls, other)
    return Report(
        command=evidence.command,
        verdict=verdict,
        title=evidence.subject,
        headline=headline(ahead) if ahead and not refusal else refusal,
        reason=reason,
        figures={**figures, **other.figures},
        ledger=ledger_rows(job.main) if job else (),
        findings=findings(seen, ahead, other),
        controls=(*controls, *other.controls),
        tables=(*other.ledger, *tables, *other.tables),
        charts=(*_charts(seen, ahead), *other.charts),
        notes=(*answer_notes(answers), *notes, *said, *other.notes),
        environment=seen.settings | {"clock of the experiments": answers.method},
    )


def _job(evidence: Evidence) -> Job | None:
    job = read_job(evidence)
    return job if job.ranks else None


def _total_steps(evidence: Evidence, job: Job | None) -> int | None:
    """Return the optimizer steps of the whole training: as told, or as the framework was set."""
    told = evidence.options.get("total_steps") or str(job.main.facts.get("max_steps", "") if job else "")
    return int(told) if told.isascii() and told.isdigit() and int(told) else None


def _replayed(answers: Answers) -> Iterator[Control]:
    """Hold the loss of a batch that the harness ran against that of the same batch in the script."""
    captured, replayed = answers.harness.captured_loss, answers.harness.replayed_loss
    if captured is None or replayed is None:
        return
    allowed = REPLAY.get(answers.harness.dtype.removeprefix("torch."), REPLAY_COARSE)
    yield Control(
        name="replay.loss",
        expected=captured,
        recovered=replayed,
        ok=abs(replayed - captured) <= allowed * abs(captured),
        tolerance=allowed,
    )


def _seen(evidence: Evidence, answers: Answers, job: Job | None) -> Seen:
    return Seen(
        answers=answers,
        fit=growth.fitted(answers),
        job=job,
        settings=settings(evidence, job.main) if job else dict(evidence.environment),
        total_steps=_total_steps(evidence, job),
    )


NO_EXPERIMENTS = "no experiments: "
"""What the process of the training notes where it did not begin them, before the reason."""


def _asked(seen: Seen, ahead: Outlook | None, evidence: Evidence) -> Found:
    """Ask every part, and the steps that were observed beside the experiments."""
    figures, tables, notes = dict[str, Estimate](), list[Table](), list[str]()
    for found, shown, said in _answered(seen, ahead):
        figures |= {name: _marked(seen, one) for name, one in found.items()}
        tables += shown
        notes += said
    if seen.job is None:
        return figures, tuple(tables), (*notes, "no step was observed beside the experiments: there is no ledger")
    of_run, missing = run_figures(seen.job.main, seen.job.ranks)
    tables += (one for one in run_tables(seen.job.main, seen.job.ranks) if one.name != "shapes")
    return of_run | figures, tuple(tables), (*notes, *run_notes(seen.job, evidence.status), *missing)


def _answered(seen: Seen, ahead: Outlook | None) -> Iterator[Found]:
    if _too_busy(seen.answers):
        yield {}, (), ("no experiment was made: neither fit nor forecasts nor the ceilings of the machine are told",)
        return
    first, *others = PARTS
    yield first(seen)
    yield outlook(seen, ahead)
    for part in others:
        yield part(seen)


def _marked(seen: Seen, figure: Estimate) -> Estimate:
    """Say of a figure that the machine was busy, where it was."""
    return msgspec.structs.replace(figure, method=f"{figure.method}; {BUSY}") if seen.answers.anyway else figure


def _charts(seen: Seen, ahead: Outlook | None) -> Iterator[Chart]:
    if not isinstance(seen.fit, Refusal):
        yield growth.shape_chart(seen.fit)
    yield from charts(ahead)
    if seen.job:
        yield from run_charts(seen.job.main)


def _verdict(evidence: Evidence, seen: Seen, controls: tuple[Control, ...], other: Beside) -> tuple[Verdict, str, str]:
    """Return the verdict, why nothing was measured (else empty), and why figures should be taken with care."""
    failed = [one for one in controls if not one.ok]
    quiet = seen.answers.quiet
    if known := [one.name for one in failed if one.name != "replay.loss"]:
        said = f"the planted step was not recovered ({', '.join(known)}); please report this"
    elif failed:
        said = (
            f"the step that was driven is not the script's own: the same batch has loss {failed[0].recovered:.6g}, in "
            f"the script it had {failed[0].expected:.6g}; name a harness with --harness"
        )
    elif quiet and _too_busy(seen.answers):
        said = f"{quiet.refused} ({busy(quiet)})"
    elif isinstance(seen.fit, Refusal):
        said = f"no fit: {seen.fit.reason}"
    else:
        reason = _reason(evidence, seen, other)
        return "warn" if reason else "ok", "", reason
    return "not measured", f"not measured: {said}", ""


def _reason(evidence: Evidence, seen: Seen, other: Beside) -> str:
    """Return why figures should be taken with care; empty where they need not be."""
    answers, restored = seen.answers, seen.answers.restored
    if other.reason:
        return other.reason
    if answers.anyway:
        return "the machine was busy and was measured all the same, as asked"
    if restored and not all(restored.unchanged.values()):
        return "not everything was put back after the experiments"
    error = None if isinstance(seen.fit, Refusal) else seen.fit.heldout_error
    if error is None:
        return "no shape was held out, so nobody knows what the fit is worth elsewhere"
    if abs(error) > FAR:
        return f"the fit misses the shape that it did not see by {abs(error):.0%}"
    if answers.done is None or answers.done.reason != "finished":
        return "the experiments did not come to their end"
    return f"the script did not end well ({evidence.status})" if evidence.status != "finished" else ""


def _nothing(
    evidence: Evidence, job: Job | None, controls: tuple[Control, ...], other: Beside, notes: list[str]
) -> Report:
    """Return the report of a run without experiments: the ledger of its steps, if there were any."""
    figures, missing = run_figures(job.main, job.ranks) if job else ({}, [])
    steps = f"; {job.main.count} steps were observed" if job else ", and no optimizer step was seen"
    told = [text for one in (job.ranks if job else ()) for text in one.records.notes]
    said = [text.removeprefix(NO_EXPERIMENTS) for text in told if text.startswith(NO_EXPERIMENTS)]
    why = said[0] if said else f"no experiment was begun (the script: {evidence.status})"
    return Report(
        command=evidence.command,
        verdict="not measured",
        title=evidence.subject,
        headline=f"not measured: {why}{steps}",
        figures={**figures, **other.figures},
        ledger=ledger_rows(job.main) if job else (),
        findings=find(job.main, job.ranks, wrong=other.wrong, more=other.slow) if job else (),
        controls=(*controls, *other.controls),
        tables=(*other.ledger, *other.tables),
        charts=other.charts,
        notes=(*notes, *(run_notes(job, evidence.status) if job else ()), *missing, *other.notes),
        environment=settings(evidence, job.main) if job else dict(evidence.environment),
    )
