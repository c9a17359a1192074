"""What padding really costs: the same real tokens with and without it, beside what the fit says of the two."""

from collections import Counter
from collections.abc import Sequence

from stepprobe.analysis.profile.answers import Answers
from stepprobe.analysis.profile.growth import columns
from stepprobe.analysis.profile.repeated import paired
from stepprobe.analysis.profile.scaling import Fit, Work
from stepprobe.analysis.profile.view import Found, Seen
from stepprobe.model.estimate import Estimate
from stepprobe.model.experiments import Measured
from stepprobe.model.report import Table

TERMS = ("fixed, whatever the batch holds", "linear in slots", "quadratic in length")


def penalty(seen: Seen) -> Found:
    """Return what padding costs, measured and predicted."""
    answers = seen.answers
    padded, unpadded = answers.of("padded"), answers.of("unpadded")
    if not padded or not unpadded:
        why = "the batches that were seen hold none, or there was no time"
        if seen.process is not None and seen.process.unmasked:
            why = "without an attention mask it is not known which slots are padding"
        return {}, (), (f"padding was not measured: {why}",)
    figures: dict[str, Estimate] = {}
    notes: list[str] = []
    if measured := paired(_by_block(answers, padded), _by_block(answers, unpadded)):
        figures["penalty.measured"] = Estimate(
            value=measured.value,
            unit="1",
            low=measured.low,
            high=measured.high,
            n=measured.n,
            method=f"padded over unpadded, the same real tokens, median of the ratios in blocks; {answers.method}",
        )
        if measured.half is not None and not measured.decides():
            notes.append("padding: the interval of the ratio holds 1, so it is undecided whether it costs anything")
    if not isinstance(seen.fit, Fit):
        return figures, (), tuple(notes)
    with_, without = _work(padded), _work(unpadded)
    value, low, high = seen.fit.ratio(with_, without)
    figures["penalty.predicted"] = Estimate(
        value=value, unit="1", low=low, high=high, n=seen.fit.blocks, method="the same ratio, from the fit"
    )
    said = figures.get("penalty.measured")
    return figures, (_table(seen.fit, with_, without, said.value if said else None, _shapes(padded)),), tuple(notes)


def missed(seen: Seen) -> float:
    """Return by which part the fit is off about what leaving the padding out saves; 0 where that was not measured."""
    padded, unpadded = seen.answers.of("padded"), seen.answers.of("unpadded")
    measured = paired(_by_block(seen.answers, padded), _by_block(seen.answers, unpadded))
    if measured is None or not isinstance(seen.fit, Fit):
        return 0.0
    by_fit = seen.fit.ratio(_work(padded), _work(unpadded))[0]
    return abs((1 - 1 / measured.value) / (1 - 1 / by_fit) - 1) if by_fit > 1 else 0.0


def _by_block(answers: Answers, lines: Sequence[Measured]) -> dict[int, float]:
    """Return the ms of each block: all its micro-steps together."""
    spent: dict[int, float] = {}
    for one in lines:
        spent[one.block] = spent.get(one.block, 0.0) + answers.ms(one)
    return spent


def _work(lines: Sequence[Measured]) -> Work:
    """Return the work of one block."""
    first = min(one.block for one in lines)
    return Work.of([(one.rows, one.length) for one in lines if one.block == first])


def _shapes(lines: Sequence[Measured]) -> str:
    """Return the micro-batches of one block as ``4 × 512``."""
    first = min(one.block for one in lines)
    shapes = Counter((one.rows, one.length) for one in lines if one.block == first)
    return ", ".join(
        (f"{times} times " if times > 1 else "") + f"{rows:,} × {length:,}" for (rows, length), times in shapes.items()
    )


def _table(fit: Fit, padded: Work, unpadded: Work, measured: float | None, shapes: str) -> Table:
    """Return the terms apart: only two of the three can be saved."""
    parts = [
        (name, fit.part(unpadded, term), fit.part(padded, term), fit.part(padded, term) - fit.part(unpadded, term))
        for term, name in enumerate(TERMS)
    ]
    sums = [sum(column) for column in zip(*(part[1:] for part in parts), strict=True)]
    said = "" if measured is None else f"; measured, it takes {measured:.3g} times as long"
    return Table(
        name="penalty",
        title="What padding costs in one micro-batch that was driven, by the fit",
        columns=columns(("part", "without|ms", "padded|ms", "padding|ms")),
        rows=(*parts, ("micro-step", sums[0], sums[1], sums[2])),
        caption=(
            f"Rows × length, padded: {shapes}; of a whole step see the findings. The same real tokens: "
            f"{unpadded.slots:,.0f} slots without padding, {padded.slots:,.0f} with it{said}. No change to padding "
            "touches the fixed part."
        ),
    )
