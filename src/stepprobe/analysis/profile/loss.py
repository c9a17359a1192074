"""What the loss costs: its share of the micro-step, the chunk to compute it in, and what is computed beside it."""

from collections.abc import Sequence
from dataclasses import dataclass

from stepprobe.analysis.lengths.chunks import OVERHEAD
from stepprobe.analysis.profile.answers import Answers
from stepprobe.analysis.profile.growth import columns
from stepprobe.analysis.profile.repeated import Middle, middle, paired, ratio
from stepprobe.analysis.profile.scaling import Fit, Work
from stepprobe.analysis.profile.view import Found, Seen
from stepprobe.analysis.statistics import median
from stepprobe.model.estimate import Estimate, exact
from stepprobe.model.experiments import Experiment, Measured
from stepprobe.model.report import Cell, Table

SAME_LOSS, SAME_GRADIENT = 1e-4, 1e-3
"""Relative differences up to which two losses, and the norms of two gradients, are the same."""
SLOW = 2.0
"""Time over that of the loss at once from which a chunked path is not to be used."""
WHOLE: tuple[Experiment, ...] = ("scaling", "heldout", "fixed_tokens", "padded", "unpadded")


@dataclass(frozen=True)
class Chunk:
    """The loss in chunks of some rows."""

    rows: int
    time: Middle
    """Over the loss at once, in the same blocks."""
    ms: float
    bytes: float | None
    differs: str
    """What is not equal to the loss at once; empty where all is."""


@dataclass(frozen=True)
class LossCost:
    """The loss at one shape."""

    rows: int
    length: int
    ms: Middle
    bytes: float | None
    share: Middle
    """Of the micro-step of that shape."""
    share_method: str
    chunks: tuple[Chunk, ...]
    metrics: tuple[tuple[str, Middle, float | None], ...]
    """What is computed beside it, ms and bytes."""

    @property
    def tokens(self) -> int:
        """Rows of logits."""
        return self.rows * self.length

    @property
    def best(self) -> Chunk | None:
        """The chunk with the fewest bytes that is nearly as fast as any; None: the loss at once is best."""
        usable = [one for one in self.chunks if not one.differs]
        fastest = min((one.time.value for one in usable), default=1.0)
        near = [one for one in usable if one.time.value <= min(1.0, fastest) * (1 + OVERHEAD)]
        return min(near, key=lambda one: (one.bytes if one.bytes is not None else one.rows, one.rows), default=None)


def loss_cost(seen: Seen) -> LossCost | None:
    """Return what the loss costs at the largest shape at which it was measured alone; None where it was not."""
    answers = seen.answers
    every = answers.of("loss")
    if not every:
        return None
    shape = max(((one.rows, one.length) for one in every), key=lambda shape: shape[0] * shape[1])
    plain = _at(every, shape)
    share, method = _share(seen, plain, shape)
    chunks = _at(answers.of("loss_chunk"), shape)
    metrics = answers.of("loss_metric")
    return LossCost(
        rows=shape[0],
        length=shape[1],
        ms=middle([answers.ms(one) for one in plain]),
        bytes=_bytes(plain),
        share=share,
        share_method=method,
        chunks=tuple(
            _chunk(answers, plain, [one for one in chunks if one.variant == variant])
            for variant in sorted({one.variant for one in chunks if one.variant.isdigit()}, key=int)
        ),
        metrics=tuple(
            (name, middle([answers.ms(one) for one in lines]), _bytes(lines))
            for name in sorted({one.variant for one in metrics})
            if (lines := [one for one in metrics if one.variant == name])
        ),
    )


def _at(lines: Sequence[Measured], shape: tuple[int, int]) -> list[Measured]:
    return [one for one in lines if (one.rows, one.length) == shape]


def _bytes(lines: Sequence[Measured]) -> float | None:
    peaks = [one.peak_bytes for one in lines if one.peak_bytes is not None]
    return median(peaks) if peaks else None


def _share(seen: Seen, plain: Sequence[Measured], shape: tuple[int, int]) -> tuple[Middle, str]:
    """Return the loss over the micro-step of the same shape: measured beside it, or elsewhere, else by the fit."""
    answers = seen.answers
    spent = [answers.ms(one) for one in plain]
    beside = {one.block: answers.ms(one) for one in _at(answers.of("remedy", variant="none"), shape)}
    if found := paired({one.block: answers.ms(one) for one in plain}, beside):
        return found, "the micro-step measured beside it, block by block"
    whole = _at(answers.of(*WHOLE), shape)
    if whole:
        return ratio(spent, [answers.ms(one) for one in whole]), "the micro-step measured at the same shape"
    if isinstance(seen.fit, Fit):
        value, low, high = seen.fit.time(Work.of([shape]))
        found = middle(spent)
        half = (
            None
            if found.half is None
            else found.value / value * ((found.half / found.value) ** 2 + ((high - low) / 2 / value) ** 2) ** 0.5
        )
        return Middle(found.value / value, half, found.n), "the micro-step that the fit gives for the same shape"
    return Middle(float("nan"), None, 0), ""


def _chunk(answers: Answers, plain: Sequence[Measured], lines: Sequence[Measured]) -> Chunk:
    own, whole = ({one.block: answers.ms(one) for one in part} for part in (lines, plain))
    spent = [answers.ms(one) for one in lines]
    return Chunk(
        rows=int(lines[0].variant),
        time=paired(own, whole) or ratio(spent, [answers.ms(one) for one in plain]),
        ms=median(spent),
        bytes=_bytes(lines),
        differs=_differs(plain, lines),
    )


def _differs(plain: Sequence[Measured], lines: Sequence[Measured]) -> str:
    said = []
    for name, allowed in (("loss", SAME_LOSS), ("gradient", SAME_GRADIENT)):
        known, found = ([value for one in part if (value := getattr(one, name)) is not None] for part in (plain, lines))
        if known and found and abs(median(found) - median(known)) > allowed * abs(median(known)):
            said.append(name)
    return " and ".join(said)


def loss_part(seen: Seen) -> Found:
    """Return what the loss costs."""
    found = loss_cost(seen)
    if found is None:
        return {}, (), ("the loss was not measured alone: no output layer and loss were found, or there was no time",)
    answers, figures = seen.answers, dict[str, Estimate]()
    notes = [
        f"the loss in chunks of {one.rows} rows has another {one.differs}: not used"
        for one in found.chunks
        if one.differs
    ]
    notes += [
        f"the loss in chunks of {one.rows} rows takes {one.time.value:.2g} times as long as at once: do not use it"
        for one in found.chunks
        if one.time.value > SLOW
    ]
    if found.share.n:
        figures["ce.share"] = Estimate(
            value=found.share.value,
            unit="1",
            low=found.share.low,
            high=found.share.high,
            n=found.share.n,
            method=(
                f"output layer and loss, forward and backward, at {found.rows}×{found.length}, over "
                f"{found.share_method}; {answers.method}"
            ),
        )
    if found.chunks:
        best = found.best
        said = "the fewest bytes among those as fast as any" if best else "no chunk is as fast as the loss at once"
        figures["ce.best_chunk_rows"] = exact(
            best.rows if best else found.tokens, "count", len(found.chunks), f"{said}; {answers.method}"
        )
    return figures, (_table(found),), tuple(notes)


def _table(found: LossCost) -> Table:
    rows: list[tuple[Cell, ...]] = [("at once", found.ms.value, 1.0, found.bytes, "")]
    best = found.best
    rows += [
        (f"in chunks of {one.rows:,} rows", one.ms, one.time.value, one.bytes, _word(one, best))
        for one in reversed(found.chunks)
    ]
    rows += [(f"{name} (logged)", ms.value, ms.value / found.ms.value, held, "") for name, ms, held in found.metrics]
    caption = f"Output layer and loss, forward and backward, at {found.rows} × {found.length:,}: {found.tokens:,} rows."
    if found.share.n:
        share = min(0.999, found.share.value)
        most = 1 / (1 - share)
        caption += f" It is {share:.1%} of the micro-step: no change to the loss can make that faster than {most:.2f}×."
    return Table(
        name="loss",
        title="What the loss costs",
        columns=columns(("loss", "time|ms", "of the loss at once", "peak|bytes", "")),
        rows=tuple(rows),
        caption=caption,
    )


def _word(one: Chunk, best: Chunk | None) -> str:
    if one.differs:
        return f"not equal: {one.differs}"
    if one.time.value > SLOW:
        return "do not use"
    return "best" if one is best else ""
