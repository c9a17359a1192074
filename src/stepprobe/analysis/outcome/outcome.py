"""The outcome of a comparison: what was promised, what of it was done, what came, and whether the promise held."""

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

import msgspec

from stepprobe.analysis.findings.view import as_ms
from stepprobe.analysis.ledger.contention import undisturbed
from stepprobe.analysis.ledger.job import Job
from stepprobe.analysis.ledger.process import Process
from stepprobe.analysis.outcome.changes import (
    by_time_alone,
    proposed_twice,
    same_change,
    seen,
    touched,
    unexplained,
)
from stepprobe.analysis.outcome.gains import Gains
from stepprobe.analysis.outcome.promised import promised
from stepprobe.analysis.outcome.promises import Promise, sets_of, together
from stepprobe.analysis.outcome.sameness import apart, surroundings
from stepprobe.analysis.outcome.sign import Undecided
from stepprobe.analysis.wording import ends
from stepprobe.model.estimate import Estimate
from stepprobe.model.evidence import Evidence
from stepprobe.model.finding import Finding
from stepprobe.model.promise import UNDECIDED, Judgement, inside, judge
from stepprobe.model.report import Column, Table

WALL = "step.wall"
"""In a comparison, of the run before: what gains are shares of."""
PREDICTED, MEASURED, HELD = "outcome.predicted", "outcome.measured", "outcome.held"

CLAUSE = re.compile(r": |, | \(| if | once\b")
"""What ends the first clause of a change."""


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """A promise, or several together, beside what came."""

    kind: str
    remedy: str
    """Stable names, joined by `` + ``."""
    label: str
    predicted: Estimate | None
    measured: Estimate | None
    held: Judgement
    why: str = ""
    """Why nothing was measured, or why it is undecided."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a comparison adds about promises."""

    findings: tuple[Finding, ...] = ()
    """Findings of the run before of which a remedy was made, with its outcome where it has one of its own."""
    judged: tuple[Judged, ...] = ()
    """The last one is all that was done, unless something is undecided that may have been done, too."""
    tables: tuple[Table, ...] = ()
    notes: tuple[str, ...] = ()
    saved: Estimate | None = None
    """ms per step that the second run saves on the first for the same work, whatever was promised."""
    wall: Estimate | None = None
    """Wall time of a step of the run before, on the same terms."""
    confounded: str = ""
    """What else changed, so that a prediction cannot be held to what came; empty where nothing did."""
    undecided: bool = False
    """Whether a change may have been made beside those that were, and the evidence cannot tell."""

    @property
    def figures(self) -> dict[str, Estimate]:
        """Figures of all that was done."""
        found = {MEASURED: self.saved}
        if self.judged and (not self.undecided or (len(self.judged) == 1 and self.judged[0].measured)):
            found |= {WALL: self.wall, MEASURED: self.judged[-1].measured}
            found |= {PREDICTED: self.judged[-1].predicted, HELD: _as_figure(self.judged[-1])}
        return {name: estimate for name, estimate in found.items() if estimate is not None}


def outcome(
    runs: tuple[Evidence, Evidence], jobs: Sequence[Job], *, busy: bool, repeats: Sequence[Process] = ()
) -> Outcome:
    """Judge what the first run promised.

    Args:
        runs: The evidence of both.
        jobs: What they read as.
        busy: Whether the time in which the threads were put aside while they computed is left out of both, of the
            promises and of what came.
        repeats: Further runs of the training before.
    """
    if why := apart(runs, (jobs[0].main, jobs[1].main)):
        return Outcome(notes=(f"no outcome: {why}",))
    first, second, *again = (undisturbed(one) if busy else one for one in (*(job.main for job in jobs), *repeats))
    findings = promised(runs[0], jobs[0], busy=busy)
    gains = Gains(first, second, calm=busy, ranks=(jobs[0].ranks, jobs[1].ranks), repeats=again)
    if not findings:
        return Outcome(notes=("no outcome: the run before promised nothing (it has no finding)",), saved=gains.saved())
    promises = _told_apart(list(_promises(findings, gains)))
    made = list(_renumbered([promise for promise in promises if promise.seen]))
    open_ = [promise for promise in promises if promise.taints]
    if not made:
        notes = tuple(_undecided(promises)) or (_nothing_made(promises),)
        notes = (*notes, *_smaller(gains))
        return Outcome(tables=(_table((), promises),), notes=notes, saved=gains.saved(), undecided=bool(open_))
    also = (*unexplained(gains, [promise.remedy.name for promise in made]), *surroundings(runs, (first, second)))
    confounded = "; ".join(also)
    judged = tuple(_judged(made, open_, gains, confounded))
    single = {} if confounded else {one.remedy: one for one in judged[: len(made)]}
    return Outcome(
        findings=tuple(_with_outcomes(made, single)),
        judged=judged,
        tables=(_table(judged, promises),),
        notes=(*_notes(made, gains, confounded), *_undecided(promises), *_smaller(gains)),
        saved=gains.saved(),
        wall=as_ms(first.wall, f"a step of the run before{gains.left_out.replace(';', ',')}"),
        confounded=confounded,
        undecided=bool(open_),
    )


def _promises(findings: Sequence[Finding], gains: Gains) -> Iterator[Promise]:
    """Yield every remedy that has a prediction.

    Where two of a finding show in the same way, or two findings proposed the same change, only the first counts.
    """
    changes: set[str] = set()
    for number, finding in enumerate(findings, 1):
        shown: set[str] = set()
        own: set[str] = set()
        for remedy in finding.remedies:
            why, change = seen(gains, finding, remedy), same_change(remedy.name)
            said = why.why if isinstance(why, Undecided) else why
            if remedy.predicted is None or (said and (said in shown or change in changes)):
                continue
            promise = Promise(number=number, finding=finding, remedy=remedy, seen="")
            if isinstance(why, Undecided):
                promise = msgspec.structs.replace(promise, undecided=why.why, taints=True)
            else:
                promise = msgspec.structs.replace(promise, seen=why)
            yield promise
            shown.add(said)
            own |= {change} if said and proposed_twice(change) else set()
        changes |= own


def _told_apart(promises: Sequence[Promise]) -> list[Promise]:
    """Leave undecided what is seen by less time alone, where another change that was made may save there, too."""
    sure = [one for one in promises if one.seen and not by_time_alone(one.remedy.name)]
    found = []
    for promise in promises:
        others = [one for one in sure if touched(one.finding, one.remedy) & promise.accounts]
        if promise.seen and others and by_time_alone(promise.remedy.name):
            names = " or ".join(_clause(one) for one in others)
            why = f"{promise.seen}, and “{names}” could have done it"
            promise = msgspec.structs.replace(promise, seen="", undecided=why)
        found.append(promise)
    return found


def _undecided(promises: Iterable[Promise]) -> Iterator[str]:
    for promise in promises:
        if promise.undecided:
            yield f"undecided: these changes could have done it: {_clause(promise)}: {promise.undecided}"


def _smaller(gains: Gains) -> Iterator[str]:
    if gains.calm:
        yield (
            "a busy machine: what was promised and what came leave out the time in which the thread was put aside "
            "while it computed, so a promise is smaller here than in the report of the run before; percentages beside "
            f"the findings are of {gains.first.wall.value:.4g} ms, a step of the run before without that time"
        )


def _judged(made: Sequence[Promise], open_: Sequence[Promise], gains: Gains, confounded: str) -> Iterator[Judged]:
    everything = [*made, *open_]
    for promise in made if len(everything) > 1 else ():
        yield _own(promise, everything, gains, confounded)
    if not open_:
        yield _all(made, gains, confounded)


def _all(made: Sequence[Promise], gains: Gains, confounded: str) -> Judged:
    spent = {names: gains.before(*names) for names in sets_of(made)}
    predicted = together(made, spent)
    measured = gains.saved_between(sorted(frozenset().union(*(promise.accounts for promise in made))))
    only = made[0] if len(made) == 1 else None
    return Judged(
        kind=only.finding.kind if only else "joint",
        remedy=" + ".join(sorted(promise.remedy.name for promise in made)),
        label=_label(only) if only else "together",
        predicted=predicted,
        measured=measured,
        held=UNDECIDED if confounded else judge(predicted, measured),
        why=f"also changed: {confounded}" if confounded else "",
    )


def _own(promise: Promise, made: Sequence[Promise], gains: Gains, confounded: str) -> Judged:
    """Judge one of several changes by the accounts that are its own."""
    own = promise.apart_from(made) and not confounded
    measured = gains.saved(*sorted(promise.accounts)) if own else None
    if measured is not None:
        method = f"{measured.method}; only {', '.join(sorted(promise.accounts))}, since several changes were made"
        measured = msgspec.structs.replace(measured, method=method)
    predicted = promise.remedy.predicted
    return Judged(
        kind=promise.finding.kind,
        remedy=promise.remedy.name,
        label=_label(promise),
        predicted=predicted,
        measured=measured,
        held=judge(predicted, measured),
        why="" if own else "shares its accounts with another change",
    )


def _label(promise: Promise) -> str:
    """Return the number of the finding, where it is shown, and the first clause of the change."""
    return f"{promise.number}. {_clause(promise)}" if promise.seen else _clause(promise)


def _clause(promise: Promise) -> str:
    return CLAUSE.split(promise.remedy.action, maxsplit=1)[0]


def _renumbered(made: Sequence[Promise]) -> Iterator[Promise]:
    """Yield promises with their findings numbered anew among each other, and what overlaps them, too."""
    place = {number: position for position, number in enumerate(sorted({one.number for one in made}), 1)}
    for promise in made:
        overlaps = tuple(place[other] for other in promise.finding.overlaps if other in place)
        finding = msgspec.structs.replace(promise.finding, overlaps=overlaps)
        yield msgspec.structs.replace(promise, number=place[promise.number], finding=finding)


def _with_outcomes(made: Sequence[Promise], single: dict[str, Judged]) -> Iterator[Finding]:
    """Yield the findings of which something was made, with those remedies alone and their outcomes."""
    for _, promises in groupby(made, lambda promise: promise.number):
        own = list(promises)
        remedies = (
            msgspec.structs.replace(
                one.remedy, outcome=single[one.remedy.name].measured if one.remedy.name in single else None
            )
            for one in own
        )
        yield msgspec.structs.replace(own[0].finding, remedies=tuple(remedies))


def _as_figure(judged: Judged) -> Estimate:
    """Return 1 where the promise held, 0 where it did not; undecided reaches from one to the other."""
    open_ended = judged.held == UNDECIDED
    value = float(bool(inside(judged.predicted, judged.measured))) if open_ended else float(judged.held == "held")
    low, high = (0.0, 1.0) if open_ended else (value, value)
    n = judged.measured.n if judged.measured else 0
    return Estimate(value=value, unit="1", low=low, high=high, n=n, method=judged.held, bound=open_ended)


HEADS = ("what", "promised|ms", "95 %", "came|ms", "95 %", "verdict")


def _table(judged: Sequence[Judged], promises: Iterable[Promise]) -> Table:
    rows = [_row(one) for one in judged]
    for promise in promises:
        if not promise.seen:
            verdict = "undecided" if promise.undecided else "not made"
            rows.append((_label(promise), *_ends(promise.remedy.predicted), None, "", verdict))
    parted = (head.partition("|") for head in HEADS)
    return Table(
        name="promises",
        title="What was promised and what came",
        columns=tuple(Column(title=title, unit=unit) for title, _, unit in parted),
        rows=tuple(rows),
        caption=(
            "Held: the whole measured interval lies inside the promised one. Missed: all of it lies outside. "
            "Undecided: it reaches over an end, or one is missing. A promise from 0 on is a ceiling, easily held: "
            "by a measured value below it. "
            "“Together” counts time that changes share once."
        ),
    )


def _row(judged: Judged) -> tuple[str, float | None, str, float | None, str, str]:
    measured = judged.measured
    came = (None, "") if measured is None else (measured.value, _span(measured.low, measured.high))
    return judged.label, *_ends(judged.predicted), *came, judged.held if measured is not None else "only together"


def _ends(predicted: Estimate | None) -> tuple[float | None, str]:
    if predicted is None:
        return None, ""
    return None if predicted.bound else predicted.value, _span(predicted.low, predicted.high)


def _span(low: float | None, high: float | None) -> str:
    return ends(low, high).replace("+", "")


def _nothing_made(promises: Sequence[Promise]) -> str:
    count = len(promises)
    return (
        f"no outcome: of the {count} changes that the run before proposed, none shows in the run after (neither in its "
        "settings nor in what its steps do)"
    )


def _notes(made: Sequence[Promise], gains: Gains, confounded: str) -> Iterator[str]:
    for promise in made:
        yield f"made: {_label(promise)}: {promise.seen}"
    if len(made) > 1:
        yield (
            f"{len(made)} changes were made at once: a change that shares its accounts with another has no outcome of "
            "its own; make them one by one to tell them apart"
        )
    if not gains.same_work:
        before, after = gains.tokens
        yield (
            f"a step does not do the same work (tokens per step {before:,.1f} → {after:,.1f}): outcomes are per token, "
            "written for the tokens of a step before"
        )
    if gains.first.unmasked != gains.second.unmasked:
        which = "before" if gains.first.unmasked else "after"
        yield f"the run {which} has no attention mask: all its slots are counted as tokens, which outcomes rest on"
    if confounded:
        yield f"also changed: {confounded}; what came cannot be held to the promise. Compare runs without that change"
