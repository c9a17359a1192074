"""The findings of a profile: of the ledger, with the forecasts of their changes, and what only experiments show."""

from collections import Counter
from collections.abc import Iterator, Mapping

import msgspec

from stepprobe.analysis.beside import Beside
from stepprobe.analysis.findings import arranged, find, worst
from stepprobe.analysis.findings.view import most_of
from stepprobe.analysis.profile import batches
from stepprobe.analysis.profile.forecast import Forecast, saving
from stepprobe.analysis.profile.outlook import Outlook
from stepprobe.analysis.profile.rows import less_padding
from stepprobe.analysis.profile.situation import COMPUTE, Situation
from stepprobe.analysis.profile.view import Seen
from stepprobe.model.estimate import Estimate
from stepprobe.model.finding import Finding, Remedy

BELONGS = {
    "padding.waste": ("longest", "bucketing", "packing", "padding_free"),
    "loss.unlabelled": ("labelled_rows",),
    "loss.share": ("labelled_rows", "chunked_loss"),
    "step.fixed": ("batch_size", "packing"),
}
"""Kind of finding -> the forecasts that are all its remedies, where there is one."""
BETTER = {
    "padding.group": "bucketing",
    "padding.longest": "longest",
    "padding.pack": "packing",
    "loss.labelled_rows": "labelled_rows",
    "loader.workers": "workers",
    "sync.kept": "fewer_syncs",
    "checkpointing.off": "checkpointing_off",
    "mask.below_window": "fast_path",
}
"""Remedy of the ledger or of the masks -> the forecast of the same change, which knows more."""


def findings(seen: Seen, ahead: Outlook | None, other: Beside) -> tuple[Finding, ...]:
    """Return the findings of the ledger with what the fit knows better, and those that only the experiments show.

    With forecasts among their remedies they are ranked by what those save: one number for a change in the whole report.
    """
    if seen.job is None:
        return ()
    base = find(seen.job.main, seen.job.ranks, wrong=other.wrong, more=other.slow)
    if ahead is None:
        return base
    made = {one.remedy: one for one in ahead.made}
    alike = Counter(one.kind for one in base)
    kept = [_with_forecasts(one, ahead.now, made, alone=alike[one.kind] == 1) for one in base[len(other.wrong) :]]
    found = [*kept, *_own(ahead.now, made)]
    by_gain = any(remedy.name.startswith("forecast.") for one in found for remedy in one.remedies)
    return arranged(found, seen.job.main, first=other.wrong, rank=_gain if by_gain else worst)


def _gain(finding: Finding) -> float:
    """Return the ms that its best change saves, at most where no more is known; its cost where none can be told."""
    return max(map(_saves, (one for one in finding.remedies if one.predicted)), default=worst(finding))


def _saves(remedy: Remedy) -> float:
    return most_of(remedy.predicted) if remedy.predicted else 0.0


def _with_forecasts(finding: Finding, now: Situation, made: Mapping[str, Forecast], *, alone: bool) -> Finding:
    """Return a finding whose changes save what is forecast of them.

    Args:
        finding: Of the ledger or the masks.
        now: The step.
        made: The forecasts by remedy.
        alone: No other finding is of its kind; else a forecast, which is about all of them, is not this one's.
    """
    own = _remedies(finding.kind, made) or (_better(finding, made) if alone else None)
    if own is None:
        return finding
    changed = msgspec.structs.replace(finding, remedies=own)
    cost = _cost(changed, now)
    if cost is None:
        return changed
    return msgspec.structs.replace(changed, cost=cost, share=cost.value / now.step.wall.value)


def _better(finding: Finding, made: Mapping[str, Forecast]) -> tuple[Remedy, ...] | None:
    """Return its remedies, those that were forecast as they were, the best first; None where nothing was forecast.

    A change that surely costs is none.
    """
    forecast = {one.name: made[BETTER[one.name]] for one in finding.remedies if BETTER.get(one.name) in made}
    if not forecast:
        return None
    kept = [_as_remedy(forecast[one.name]) if one.name in forecast else one for one in finding.remedies]
    kept = [one for one in kept if one.predicted is None or one.predicted.high is None or one.predicted.high > 0]
    return tuple(sorted(kept, key=lambda one: (one.predicted is None or one.predicted.unit != "ms", -_saves(one))))


def _remedies(kind: str, made: Mapping[str, Forecast]) -> tuple[Remedy, ...]:
    found = [made[name] for name in BELONGS.get(kind, ()) if name in made and (made[name].saved.high or 1.0) > 0]
    return tuple(_as_remedy(one) for one in sorted(found, key=lambda one: -one.saved.value))


def _as_remedy(one: Forecast) -> Remedy:
    return Remedy(name=f"forecast.{one.remedy}", action=one.action, predicted=one.saved)


def _cost(finding: Finding, now: Situation) -> Estimate | None:
    """Return the cost of a finding where the experiments know it better than the ledger; else None."""
    if finding.kind == "padding.waste" and now.batches is not None:
        found = less_padding(now, lambda one: batches.flattened(one, apart=True), now.batches)
        why = f"forward and backward × {found.value:.3f} without padding, by the fit"
        return saving(now.step.shrunk(found), now.n, why)
    best = finding.remedies[0].predicted if finding.remedies else None
    if best is None or best.bound or best.value <= 0 or not finding.remedies[0].name.startswith("forecast."):
        return None
    # on a card the ledger knows only the host's part of the loss
    by_ledger = finding.kind != "loss.unlabelled" or now.loss_in_steps is not None
    return best if finding.cost.bound or not by_ledger else None


def _own(now: Situation, made: Mapping[str, Forecast]) -> Iterator[Finding]:
    """Yield what the experiments show and no account of the ledger does."""
    share, wall = now.loss_share.value, now.step.wall.value
    cost = now.loss_in_steps or _driven_loss(now)
    if share and cost.value > 0.1 * wall:
        said = "" if now.loss_in_steps else " by what they took when driven alone"
        ceiling = 1 / (1 - min(0.999, cost.value / wall))
        yield Finding(
            kind="loss.share",
            title=f"Output layer and loss take {cost.value / wall:.0%} of the step{said}: no change to them gains more "
            f"than {ceiling:.2f}×.",
            where="",
            cost=cost,
            share=cost.value / wall,
            accounts=tuple(name for name in COMPUTE if name.endswith(("lm_head", "loss"))),
            remedies=_remedies("loss.share", made),
            cites=("ce.step_share" if now.loss_in_steps else "ce.share", "ce.best_chunk_rows"),
        )
    yield from _fixed(now, made)


def _driven_loss(now: Situation) -> Estimate:
    share, compute = now.loss_share, now.step.compute.value
    return Estimate(
        value=compute * share.value,
        unit="ms",
        low=max(0.0, compute * (share.value - share.known)) if share.half is not None else None,
        high=compute * (share.value + share.known) if share.half is not None else None,
        n=now.n,
        method="share of the loss in the micro-step, times forward and backward",
    )


def _fixed(now: Situation, made: Mapping[str, Forecast]) -> Iterator[Finding]:
    if now.batches is None:
        return
    total = now.fit.time(now.batches.work)[0]
    part = now.fit.part(now.batches.work, 0) / total
    half = now.fit.halves[0] * now.batches.work.batches / total
    compute, wall = now.step.compute.value, now.step.wall.value
    if compute * part < 0.2 * wall:
        return
    cost = Estimate(
        value=compute * part,
        unit="ms",
        low=max(0.0, compute * (part - half)),
        high=compute * (part + half),
        n=now.n,
        method="fixed part of the fit, times forward and backward",
    )
    yield Finding(
        kind="step.fixed",
        title=f"{part:.0%} of forward and backward does not hang on how many tokens there are: no change to padding "
        "touches it.",
        where="",
        cost=cost,
        share=cost.value / wall,
        accounts=COMPUTE,
        remedies=_remedies("step.fixed", made),
        cites=("fit.fixed", "scaling"),
    )
