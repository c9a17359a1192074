"""What a run promised: the remedies of its findings and, where its step was asked, the forecasts that know better."""

from collections.abc import Iterator, Sequence

import msgspec

from stepprobe.analysis.findings import arranged, find
from stepprobe.analysis.ledger.contention import undisturbed
from stepprobe.analysis.ledger.job import Job
from stepprobe.analysis.ledger.settings import settings
from stepprobe.analysis.profile import growth
from stepprobe.analysis.profile.answers import read_answers
from stepprobe.analysis.profile.loss import loss_cost
from stepprobe.analysis.profile.remedies import LOADING, forecasts
from stepprobe.analysis.profile.rows import LONGEST_FIRST
from stepprobe.analysis.profile.situation import COMPUTE, OF_EACH_STEP, WAITING, situation
from stepprobe.analysis.profile.view import Seen
from stepprobe.model.estimate import Estimate
from stepprobe.model.evidence import Evidence
from stepprobe.model.finding import Finding, Remedy

PROFILE = "profile"
"""The probe that forecasts."""

FORECAST = "forecast."
"""Before the name of a forecast, in names of remedies as in those of figures."""

HEAD = tuple(name for name in COMPUTE if name.endswith(("lm_head", "loss")))
IN_ACCOUNTS = {
    "chunked_loss": HEAD,
    "labelled_rows": HEAD,
    "fast_path": COMPUTE,
    "workers": LOADING,
    "fewer_syncs": WAITING,
    "checkpointing_off": ("recompute",),
    "packing": (*COMPUTE, *OF_EACH_STEP),
    "batch_size": (*COMPUTE, *OF_EACH_STEP),
}
"""Accounts in which a forecast saves; any other saves in forward and backward."""

BETTER = {
    "padding.group": "bucketing",
    "padding.longest": "longest",
    "padding.pack": "packing",
    "loss.labelled_rows": "labelled_rows",
    "loader.workers": "workers",
    "sync.kept": "fewer_syncs",
    "checkpointing.off": "checkpointing_off",
}
"""Remedy of the ledger -> the forecast of the same change, which knows more."""


def promised(run: Evidence, job: Job, *, busy: bool) -> tuple[Finding, ...]:
    """Return the findings of a run with what each remedy should save.

    Args:
        run: Its evidence.
        job: What it reads as.
        busy: Whether the time in which its main process was put aside while it computed is left out.

    Raises:
        EvidenceError: The experiments are damaged.
    """
    if busy:
        main = undisturbed(job.main)
        job = msgspec.structs.replace(job, ranks=tuple(main if one is job.main else one for one in job.ranks))
    found = find(job.main, job.ranks)
    if run.probe != PROFILE:
        return found
    forecast = list(_forecast(run, job))
    known = {one.kind.removeprefix(FORECAST) for one in forecast}
    return arranged([*filter(None, (_without(one, known) for one in found)), *forecast], job.main)


def _without(finding: Finding, known: set[str]) -> Finding | None:
    """Return a finding without the remedies that were forecast; None where nothing is left of it."""
    left = tuple(one for one in finding.remedies if BETTER.get(one.name) not in known)
    return msgspec.structs.replace(finding, remedies=left) if left else None


def _forecast(run: Evidence, job: Job) -> Iterator[Finding]:
    """Yield each forecast as a finding of one remedy."""
    answers, _ = read_answers(run)
    if answers is None:
        return
    seen = Seen(answers=answers, fit=growth.fitted(answers), job=job, settings=settings(run, job.main))
    now = situation(seen, loss_cost(seen))
    if now is None:
        return
    for one in forecasts(now)[0]:
        accounts = IN_ACCOUNTS.get(one.remedy, COMPUTE)
        action = one.action if one.on_top is None else one.action.removeprefix(LONGEST_FIRST)
        yield Finding(
            kind=f"{FORECAST}{one.remedy}",
            title=f"Forecast from the step itself: {action}.",
            where="",
            cost=_spent(job, accounts),
            share=job.main.account(*accounts).value / job.main.wall.value,
            accounts=accounts,
            remedies=(Remedy(name=f"{FORECAST}{one.remedy}", action=action, predicted=one.on_top or one.saved),),
            cites=(f"{FORECAST}{one.remedy}",),
        )


def _spent(job: Job, accounts: Sequence[str]) -> Estimate:
    mean = job.main.account(*accounts)
    low = None if mean.low is None else max(0.0, mean.low)
    method = "time in the accounts in which it would save"
    return Estimate(value=mean.value, unit="ms", low=low, high=mean.high, n=mean.n, method=method)
