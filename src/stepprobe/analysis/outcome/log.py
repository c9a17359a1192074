"""The calibration log: pairs of a comparison for it, and what all of them say about the predictions."""

from collections.abc import Iterator, Sequence

from stepprobe.analysis.outcome.outcome import Outcome
from stepprobe.analysis.statistics import median, wilson
from stepprobe.analysis.wording import counted, ends
from stepprobe.errors import NotObserved
from stepprobe.model.calibration import CALIBRATION, Pair, Range, decode_pairs
from stepprobe.model.estimate import Estimate, exact
from stepprobe.model.evidence import Evidence
from stepprobe.model.promise import HELD, UNDECIDED
from stepprobe.model.report import Column, Report, Table

KNOWN_FROM = 0.01
"""Predicted ms below which a ratio of measured to predicted means nothing."""


def pairs_of(found: Outcome, runs: tuple[Evidence, Evidence], names: tuple[str, str]) -> list[Pair]:
    """Return what a comparison adds to the log: each change that has a prediction and an outcome of its own.

    Nothing where something else changed, too, since the prediction was not about that.
    """
    if found.confounded:
        return []
    before, after = runs
    return [
        Pair(
            kind=one.kind,
            remedy=one.remedy,
            predicted=_range(one.predicted),
            measured=_range(one.measured),
            held=one.held,
            before=names[0],
            after=names[1],
            before_started=before.environment.get("started", ""),
            after_started=after.environment.get("started", ""),
            machine=_machine(before),
        )
        for one in found.judged
        if one.predicted is not None and one.measured is not None
    ]


def _range(estimate: Estimate) -> Range:
    return Range(value=estimate.value, low=estimate.low, high=estimate.high, bound=estimate.bound)


def _machine(run: Evidence) -> str:
    cpu, count = run.environment.get("cpu.model", "unknown"), run.environment.get("cpu.usable", "")
    return f"{cpu}, {count} usable" if count else cpu


def calibration(content: bytes, where: str) -> Report:
    """Return what a log says about the predictions.

    Raises:
        NotObserved: It holds no pair.
    """
    pairs, problems = decode_pairs(content)
    if not pairs:
        damaged = f" ({'; '.join(problems)})" if problems else ""
        raise NotObserved(
            f"no outcome has been measured under {where}{damaged}: run a job, make a change that its report proposes, "
            "run it again, then: stepprobe compare BEFORE AFTER"
        )
    figures = _figures(pairs)
    return Report(
        command="report",
        verdict="warn" if problems else "ok",
        reason="; ".join(problems),
        title=f"{CALIBRATION} of {where}",
        headline=_headline(pairs, figures),
        figures=figures,
        tables=tuple(_tables(pairs)),
        notes=(*problems, *_notes(pairs)),
    )


def _figures(pairs: Sequence[Pair]) -> dict[str, Estimate]:
    figures = {"calibration.pairs": exact(len(pairs), "count", len(pairs), "counted")}
    decided = [pair for pair in pairs if pair.held != UNDECIDED]
    if decided:
        held = sum(pair.held == HELD for pair in decided)
        figures["calibration.held_share"] = _share(held, len(decided), "held, of those that are decided (Wilson)")
    judged = [pair for pair in pairs if pair.predicted.low is not None and pair.predicted.high is not None]
    if judged:
        within = sum(map(_inside, judged))
        method = "measured value inside the predicted interval, of all (Wilson)"
        figures["calibration.inside_share"] = _share(within, len(judged), method)
    if ratios := _ratios(pairs):
        method = "median of measured over predicted; ceilings are left out"
        figures["calibration.bias"] = Estimate(value=median(ratios), unit="1", n=len(ratios), method=method)
    return figures


def _share(hits: int, n: int, method: str) -> Estimate:
    low, high = wilson(hits, n)
    return Estimate(value=hits / n, unit="1", low=low, high=high, n=n, method=method)


def _inside(pair: Pair) -> bool:
    low, high = pair.predicted.low, pair.predicted.high
    return low is not None and high is not None and low <= pair.measured.value <= high


def _ratios(pairs: Sequence[Pair]) -> list[float]:
    return [
        pair.measured.value / pair.predicted.value
        for pair in pairs
        if not pair.predicted.bound and pair.predicted.value >= KNOWN_FROM
    ]


def _headline(pairs: Sequence[Pair], figures: dict[str, Estimate]) -> str:
    parts = [f"{counted(len(pairs), 'prediction')} with an outcome"]
    if share := figures.get("calibration.held_share"):
        held = round(share.value * share.n)
        interval = f"{share.low:.0%} to {share.high:.0%}"
        parts.append(f"{held} of {share.n} decided ones held ({share.value:.0%}, 95 %: {interval})")
    else:
        parts.append("none is decided")
    if bias := figures.get("calibration.bias"):
        parts.append(f"measured over predicted {bias.value:.2f} at the median")
    return " · ".join(parts)


def _tables(pairs: Sequence[Pair]) -> Iterator[Table]:
    kinds = sorted({pair.kind for pair in pairs})
    heads = ("kind", "pairs", "held", "missed", "undecided", "ceilings", "measured / predicted")
    yield Table(
        name="kinds",
        title="By kind of finding",
        columns=tuple(Column(title=head, unit="count" if head in heads[1:6] else "") for head in heads),
        rows=tuple(_kind(kind, [pair for pair in pairs if pair.kind == kind]) for kind in kinds),
        caption=(
            "Held: the whole measured interval lies inside the predicted one; missed: all of it outside; undecided: it "
            "reaches over an end. Ceilings: predictions from 0 to the most that can be saved, easily held (by a "
            "measured value below that), and without a ratio. The last column is a median."
        ),
    )
    missed = [pair for pair in pairs if pair.held not in (HELD, UNDECIDED)]
    if missed:
        titles = ("change", "predicted ms", "measured ms", "verdict", "before", "after")
        yield Table(
            name="misses",
            title="Predictions that missed",
            columns=tuple(Column(title=title) for title in titles),
            rows=tuple(map(_miss, missed)),
        )


def _kind(kind: str, pairs: Sequence[Pair]) -> tuple[str | int | float | None, ...]:
    held = sum(pair.held == HELD for pair in pairs)
    undecided = sum(pair.held == UNDECIDED for pair in pairs)
    ratios = _ratios(pairs)
    ceilings = sum(pair.predicted.bound for pair in pairs)
    return (
        *(kind, len(pairs), held, len(pairs) - held - undecided, undecided, ceilings),
        f"{median(ratios):.2f}" if ratios else "",
    )


def _miss(pair: Pair) -> tuple[str, ...]:
    spans = (ends(one.low, one.high).replace("+", "") for one in (pair.predicted, pair.measured))
    return pair.remedy, *spans, pair.held, pair.before, pair.after


def _notes(pairs: Sequence[Pair]) -> Iterator[str]:
    machines = sorted({pair.machine for pair in pairs})
    days = sorted({day[:10] for pair in pairs for day in (pair.before_started, pair.after_started) if day})
    if days:
        yield f"runs from {days[0]} to {days[-1]}" if len(days) > 1 else f"runs of {days[0]}"
    yield f"{'machine' if len(machines) == 1 else 'machines'}: {'; '.join(machines)}"
    yield "undecided pairs are in neither part of the share that held; an interval of few pairs is wide"
