"""Which way of batching costs least: buckets, packing and token budgets, in time, diversity and truncation."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from stepprobe.analysis.controls import recover
from stepprobe.analysis.lengths import bucket_report, padding_report, strategies
from stepprobe.analysis.lengths.bucket_sweep import NEAR_BEST, Sweep, sweep
from stepprobe.analysis.lengths.calibration import Counts, counts, half_width
from stepprobe.analysis.lengths.cost import Cost, choose
from stepprobe.analysis.lengths.known import BUCKET_EXPECTED, two_lengths
from stepprobe.analysis.lengths.options import Cut, Options, cut, read_options, shortened
from stepprobe.analysis.lengths.packs import Packs, pack
from stepprobe.errors import NotObserved
from stepprobe.model.estimate import Estimate, exact
from stepprobe.model.evidence import Evidence
from stepprobe.model.harness import Subject
from stepprobe.model.lengths import About, decode
from stepprobe.model.report import Report

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SUMMARY = "which way of batching costs least: buckets, packing, token budgets"

TOLERANCE = {"bucket.effective_batch.k1": 0.03}
"""Relative error allowed where a figure is drawn at random; elsewhere it must be the known value."""


def measure(subject: Subject) -> Evidence:
    """Observe the subject; interpret nothing."""
    return subject.observe()


def control() -> tuple[Evidence, dict[str, float]]:
    """Return a dataset whose batching is known, and the answer by figure name."""
    return two_lengths("bucket"), dict(BUCKET_EXPECTED)


@dataclass(frozen=True)
class _Seen:
    about: About
    known: Counts
    cut: Cut
    options: Options
    cost: Cost
    sweep: Sweep
    packed: Packs
    figures: dict[str, Estimate]


def derive(evidence: Evidence) -> Report:
    """Derive the report of a dataset, after recovering a known one.

    Raises:
        EvidenceError: The evidence is damaged.
        UsageError: An option makes no sense.
    """
    planted, expected = control()
    recovered = _look(planted)
    controls = recover(recovered.figures if recovered else {}, expected, usual=1e-6, tolerances=TOLERANCE)
    seen = _look(evidence)
    if seen is None:
        lengths = decode(evidence.files)
        return padding_report.nothing(evidence, lengths.about if lengths else None, controls)
    broken = [*(one.name for one in controls if not one.ok), *seen.sweep.faults]
    found = strategies.compare(seen.cut, seen.options, seen.cost, seen.sweep, seen.packed)
    return Report(
        command=evidence.command,
        verdict="not measured" if broken else "ok" if seen.sweep.varied else "undecided",
        title=evidence.subject,
        headline=f"not measured: {'; '.join(broken)}; please report this" if broken else _headline(seen),
        figures=seen.figures,
        controls=controls,
        tables=(
            strategies.strategy_table(found, seen.cost, seen.options.ranks),
            strategies.config_table(found),
            bucket_report.sweep_table(seen.sweep, seen.options),
        ),
        charts=bucket_report.charts(seen.sweep, found),
        notes=(
            *padding_report.notes(seen.about, seen.cut, seen.known),
            *bucket_report.notes(seen.sweep, seen.packed, seen.cut, seen.options),
            *_beyond(seen),
        ),
        environment=dict(evidence.environment),
    )


def _beyond(seen: _Seen) -> tuple[str, ...]:
    longest = int(seen.cut.known.lengths[-1])
    said = seen.cost.beyond(longest, longest * seen.options.batch_size)
    return (said,) if said else ()


def _look(evidence: Evidence) -> _Seen | None:
    lengths = decode(evidence.files)
    if lengths is None:
        return None
    options, cost = read_options(evidence.options), choose(evidence.files)
    known = counts(lengths)
    seen = cut(known, options)
    if seen is None:
        return None
    swept = sweep(seen, options, cost)
    packed = _pack(known, seen, options)
    rows = lengths.about.rows
    figures = {
        "lengths.rows": exact(rows, "count", rows, "rows counted"),
        "lengths.rows_tokenised": exact(lengths.about.tokenised, "count", rows, "rows given to the tokenizer"),
        "padding.waste_share": padding_report.waste_figure(known, seen, options),
        **bucket_report.bucket_figures(seen, swept, _sampled(known, options)),
        **bucket_report.packing_figures(seen, packed),
    }
    return _Seen(lengths.about, known, seen, options, cost, swept, packed, figures)


def _pack(known: Counts, seen: Cut, options: Options) -> Packs:
    """Pack the rows; packs may be of another length than rows are cut to."""
    cap = options.pack_to or options.max_length or int(seen.known.lengths[-1])
    if seen.known.lengths[-1] <= cap and options.multiple == 1:
        return pack(seen.known, cap, seen.tokens)
    lengths, rows = known.by_length
    filled = lengths > 0
    return pack(shortened(lengths[filled], rows[filled], cap), cap, seen.tokens)


def _sampled(known: Counts, options: Options) -> float:
    """Return what a sample adds to the waste, at the bucket where it matters most: the random order."""
    return half_width(known, padding_report.replicated_waste(known, options)) if known.replicates else 0.0


def _headline(seen: _Seen) -> str:
    random = seen.figures["padding.waste_share"].value
    packed = (
        f"packing into {seen.packed.cap:,}: {seen.packed.bins:,} packs (bound {seen.packed.bound:,}), "
        f"{seen.figures['packing.waste_share'].value:.1%} waste"
    )
    if not seen.sweep.varied:
        return f"the sweep varied nothing: {seen.sweep.reason} · {packed}"
    best = seen.sweep.best
    parts = [
        f"{random:.1%} of each batch is padding in random order (batch size {seen.options.batch_size})",
        f"bucket of {best.size}: {best.waste:.1%}, {seen.figures['bucket.best_speedup'].value:.2f}× faster"
        if best.size > 1
        else f"no bucket is more than {NEAR_BEST:.0%} faster",
    ]
    if best.mixing:
        parts.append(f"effective batch {best.mixing.effective:.1f} of {seen.options.batch_size}")
    return " · ".join([*parts, packed])


def recipe(evidence: Evidence) -> "NDArray[np.int64]":
    """Return the moves of the best packing, from which ``analysis.lengths.packing.assign`` tells every row's bin.

    Raises:
        EvidenceError: The evidence is damaged.
        NotObserved: No row holds a token.
    """
    seen = _look(evidence)
    if seen is None:
        raise NotObserved("there is nothing to pack: no row holds a token")
    return seen.packed.packing.moves
