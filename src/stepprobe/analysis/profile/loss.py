"""What the loss costs: its share of the micro-step, the chunk to compute it in, and what is computed beside it."""

from collections.abc import Sequence
from dataclasses import dataclass

from stepprobe.analysis.findings.tokens import HEAD
from stepprobe.analysis.findings.view import as_ms
from stepprobe.analysis.ledger.figures import MEAN
from stepprobe.analysis.ledger.process import estimate
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
NEEDED = ("forward.lm_head", "forward.loss", "backward.lm_head")
"""Accounts without which the ledger does not hold output layer and loss apart from the rest."""
WHOLE: tuple[Experiment, ...] = ("scaling", "heldout", "fixed_tokens", "padded", "unpadded")


@dataclass(frozen=True)
class Chunk:
    """The loss in chunks of some rows."""

    rows: int
    time: Middle
    """Over the loss at once, in the same blocks."""
    behind: Middle
    """Over the fastest way to compute the loss, in the same blocks."""
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
    at_once: Chunk
    """The same as one chunk of all rows."""
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
    def ways(self) -> tuple[Chunk, ...]:
        """All ways that give the script's loss; the one in a chunk of all rows is the loss at once."""
        return (*(one for one in self.chunks if not one.differs), self.at_once)

    @property
    def fastest(self) -> Chunk:
        """The way that took the least time."""
        return min(self.ways, key=lambda one: (one.time.value, -one.rows))

    @property
    def chosen(self) -> Chunk:
        """The way with the fewest bytes of those nearly as fast as the fastest; without known bytes the fewest rows."""
        by_bytes = self.held == "bytes"
        return min(self._near, key=lambda one: ((one.bytes or 0.0) if by_bytes else 0.0, one.rows))

    @property
    def held(self) -> str:
        """What the choice has the fewest of: ``bytes``, or ``rows`` where not all bytes are known."""
        return "bytes" if all(one.bytes is not None for one in self._near) else "rows"

    @property
    def _near(self) -> list[Chunk]:
        return [one for one in self.ways if one.behind.value <= 1 + OVERHEAD]

    @property
    def best(self) -> Chunk | None:
        """The chunk that was chosen; None: the loss at once was."""
        return None if self.chosen is self.at_once else self.chosen

    @property
    def decided(self) -> bool:
        """Whether the repetitions resolve so small a difference in time as the choice may cost."""
        behind = self.chosen.behind
        return self.chosen is self.fastest or (behind.half is not None and behind.half <= OVERHEAD)


def loss_cost(seen: Seen) -> LossCost | None:
    """Return what the loss costs at the largest shape at which it was measured alone; None where it was not."""
    answers = seen.answers
    every = _timed(answers, answers.of("loss"))
    if not every:
        return None
    shape = max(((one.rows, one.length) for one in every), key=lambda shape: shape[0] * shape[1])
    plain = _at(every, shape)
    share, method = _share(seen, plain, shape)
    at_once, chunks = _ways(answers, plain, _at(_timed(answers, answers.of("loss_chunk")), shape), shape[0] * shape[1])
    metrics = answers.of("loss_metric")
    return LossCost(
        rows=shape[0],
        length=shape[1],
        ms=middle([answers.ms(one) for one in plain]),
        at_once=at_once,
        share=share,
        share_method=method,
        chunks=chunks,
        metrics=tuple(
            (name, middle([answers.ms(one) for one in lines]), _bytes(lines))
            for name in sorted({one.variant for one in metrics})
            if (lines := [one for one in metrics if one.variant == name])
        ),
    )


def in_the_steps(seen: Seen) -> Estimate | None:
    """Return the ms of output layer and loss in a step of the script, by its ledger; None where that cannot tell.

    Not on a card, which computes behind the host's back, and not where one of the two has no account of its own.
    """
    process = seen.process
    if process is None or process.facts.get("device") != "cpu":
        return None
    if not all(process.account(name).value for name in NEEDED):
        return None
    return as_ms(process.account(*HEAD), f"{' + '.join(HEAD)}, {MEAN}")


def _step_share(seen: Seen) -> Estimate | None:
    """Return them as a share of the script's own step: the one that says what a change to them can gain at most."""
    if seen.process is None or in_the_steps(seen) is None:
        return None
    share = seen.process.ratio(
        lambda entry: sum(entry.accounts.get(name, 0) for name in HEAD), lambda entry: entry.wall_ns
    )
    return estimate(share, "1", "output layer and loss, forward and backward, over the wall time of the script's steps")


def _timed(answers: Answers, lines: Sequence[Measured]) -> list[Measured]:
    """Return those that took any time by the clock; nothing can be said in parts of none."""
    return [one for one in lines if answers.ms(one) > 0]


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


def _ways(
    answers: Answers, plain: Sequence[Measured], chunks: Sequence[Measured], rows: int
) -> tuple[Chunk, tuple[Chunk, ...]]:
    """Return the loss at once, and in chunks of each size, the smallest first."""
    lines = {
        int(one.variant): [two for two in chunks if two.variant == one.variant]
        for one in chunks
        if one.variant.isdecimal()
    }
    differs = {size: _differs(plain, own) for size, own in sorted(lines.items())}
    usable = [plain, *(lines[size] for size in differs if not differs[size])]
    fastest = min(usable, key=lambda own: _over(answers, own, plain).value)
    ways = [
        Chunk(
            rows=size,
            time=_over(answers, own, plain),
            behind=_over(answers, own, fastest),
            ms=median([answers.ms(one) for one in own]),
            bytes=_bytes(own),
            differs=differ,
        )
        for size, own, differ in [(rows, plain, ""), *((size, lines[size], differs[size]) for size in differs)]
    ]
    return ways[0], tuple(ways[1:])


def _over(answers: Answers, own: Sequence[Measured], other: Sequence[Measured]) -> Middle:
    """Return some repetitions over others, block by block where they share blocks."""
    found = paired(*({one.block: answers.ms(one) for one in lines} for lines in (own, other)))
    return found or ratio(*([answers.ms(one) for one in lines] for lines in (own, other)))


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
                f"output layer and loss, driven alone at {found.rows}×{found.length}, over {found.share_method}; "
                f"{answers.method}"
            ),
        )
    step = _step_share(seen)
    if step is not None:
        figures["ce.step_share"] = step
    if found.chunks:
        figures["ce.best_chunk_rows"] = exact(
            found.chosen.rows, "count", len(found.chunks), f"{_choice(found)}; {answers.method}"
        )
    return figures, (_table(found, step),), tuple(notes)


def _table(found: LossCost, step: Estimate | None) -> Table:
    rows: list[tuple[Cell, ...]] = [
        ("at once", found.ms.value, 1.0, found.at_once.bytes, _word(found, found.at_once) if found.chunks else "")
    ]
    rows += [
        (f"in chunks of {one.rows:,} rows", one.ms, one.time.value, one.bytes, _word(found, one))
        for one in reversed(found.chunks)
    ]
    rows += [(f"{name} (logged)", ms.value, ms.value / found.ms.value, held, "") for name, ms, held in found.metrics]
    caption = (
        f"Output layer and loss, forward and backward, driven alone at {found.rows} × {found.length:,}: "
        f"{found.tokens:,} rows. {_shares(found, step)}"
    )
    if found.chunks:
        caption += f" {_sentence(_choice(found))}"
    return Table(
        name="loss",
        title="What the loss costs",
        columns=columns(("loss", "time|ms", "of the loss at once", "peak|bytes", "")),
        rows=tuple(rows),
        caption=caption.strip(),
    )


def _shares(found: LossCost, step: Estimate | None) -> str:
    """Say which share of the step the loss is: by the script's own steps where they tell, and what the other is of."""
    driven = f"{found.share.value:.1%} of a micro-step that is driven at this shape" if found.share.n else ""
    if step is None:
        return f"It is {driven}: {_at_most(found.share.value)}." if driven else ""
    said = f"By the ledger it is {step.value:.1%} of the script's own step: {_at_most(step.value)}."
    return said + (f" It is {driven}, which is another step." if driven else "")


def _at_most(share: float) -> str:
    return f"no change to the loss can make that faster than {1 / (1 - min(0.999, share)):.2f}×"


def _sentence(said: str) -> str:
    return f"{said[0].upper()}{said[1:]}."


def _choice(found: LossCost) -> str:
    """Say what the choice rests on, or why it is none."""
    chosen, fastest = found.chosen, found.fastest
    name = _name(found, chosen)
    held = found.held
    if chosen is fastest:
        return f"chosen: {name}, the fastest; no other within {OVERHEAD:.0%} of it takes fewer {held}"
    if not found.decided:
        return (
            f"undecided: {name} takes fewer {held} than {_name(found, fastest)}, the fastest, but the repetitions "
            f"scatter too much to tell whether it takes at most {OVERHEAD:.0%} longer"
        )
    return f"chosen: {name}, the fewest {held} of all that take at most {OVERHEAD:.0%} longer than the fastest"


def _name(found: LossCost, one: Chunk) -> str:
    return "all rows at once" if one is found.at_once else f"{one.rows:,} rows"


def _word(found: LossCost, one: Chunk) -> str:
    if one.differs:
        return f"not equal: {one.differs}"
    if one.time.value > SLOW:
        return "do not use"
    words = [("chosen" if found.decided else "undecided")] if one is found.chosen else []
    return ", ".join([*words, *(["fastest"] if one is found.fastest else [])])
