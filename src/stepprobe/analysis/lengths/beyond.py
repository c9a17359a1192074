"""Whether a dataset fits a model: rows no longer than its positions, ids and labels inside its vocabulary."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from stepprobe.analysis.lengths.calibration import Counts, counts, estimate
from stepprobe.analysis.lengths.options import Options
from stepprobe.model.attention import Capture
from stepprobe.model.estimate import Estimate, exact
from stepprobe.model.finding import Finding, Remedy
from stepprobe.model.lengths import IGNORED, About, Lengths
from stepprobe.model.report import Verdict

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Rows = Ints | NDArray[np.float64]

BEYOND = "tokenizer.beyond_vocabulary"
CRASH = "an index error on the CPU, a device-side assert on a GPU"


class Fit(msgspec.Struct, frozen=True, kw_only=True):
    """What was found."""

    figures: dict[str, Estimate] = {}
    findings: tuple[Finding, ...] = ()
    verdict: Verdict = "ok"


def fit(capture: Capture, lengths: Lengths, options: Options) -> Fit:
    """Hold rows and ids to what the model has room for.

    Args:
        capture: The model; it says its positions and its vocabulary.
        lengths: The dataset.
        options: ``max_length`` cuts rows first.
    """
    both = (_positions(capture, counts(lengths), options), vocabulary(capture.vocabulary, lengths.about))
    worst: tuple[Verdict, ...] = ("fail", "warn", "ok")
    return Fit(
        figures={**both[0].figures, **both[1].figures},
        findings=(*both[0].findings, *both[1].findings),
        verdict=min((one.verdict for one in both), key=worst.index),
    )


def _positions(capture: Capture, known: Counts, options: Options) -> Fit:
    """Count the rows that are longer than the positions; a model that has none is not asked."""
    most = capture.positions
    if not most or not capture.position_kind:
        return Fit()
    beyond = options.max_length is None or options.max_length > most

    def share(lengths: "Ints", rows: "Rows") -> float:
        return float(rows[lengths > most].sum() / rows.sum()) if beyond and rows.sum() else 0.0

    lengths, rows = known.by_length
    total = int(rows.sum())
    over = int(rows[lengths > most].sum()) if beyond else 0
    figures = {
        "positions.model": exact(most, "tokens", 1, "max_position_embeddings of the config"),
        "positions.rows_beyond": exact(over, "count", total, "rows longer than that, after cutting"),
        "positions.share_beyond": estimate(known, share, "1", "rows longer than that, over all", total),
    }
    if not over:
        return Fit(figures=figures)
    table = capture.position_kind == "table"
    found = _beyond_positions(over, figures["positions.share_beyond"], most, table)
    return Fit(figures=figures, findings=(found,), verdict="fail" if table else "warn")


def _beyond_positions(rows: int, share: Estimate, most: int, table: bool) -> Finding:
    if table:
        then = f"They are a table with a row each: the first such row ends the job with {CRASH}."
    else:
        then = (
            "They are rotary: nothing fails, and attention is silently extrapolated to positions that the model was "
            "not made for."
        )
    actions = [f"cut, split or pack rows to at most {most:,} tokens: max_length={most} in the trainer"]
    if not table:
        actions.append("where long rows are meant: scale the rotation in the config (rope_scaling), and train on it")
    rows_are = "1 row is" if rows == 1 else f"{rows:,} rows are"
    return Finding(
        kind="data.beyond_positions",
        title=f"{rows_are} longer than the model's {most:,} positions. {then}",
        where="",
        cost=share,
        share=share.value,
        remedies=tuple(Remedy(action=action, predicted=None) for action in actions),
        cites=("positions.rows_beyond", "positions.share_beyond", "positions.model", "lengths.max"),
    )


def vocabulary(size: int, about: About) -> Fit:
    """Hold ids and labels to what a model can embed; a vocabulary padded beyond the tokenizer's is fine.

    Args:
        size: Ids that the model can embed; 0 where that is not known: only negative ones are found then.
        about: The extreme ids and labels of the dataset.
    """
    seen, top, labels = about.largest_id, about.tokenizer_top, (about.smallest_label, about.largest_label)
    figures = _vocabulary_figures(size, about)
    findings = (
        *(_beyond_vocabulary(size, seen, top, figures) if size else ()),
        *(_negative_id(about.smallest_id, figures) if about.smallest_id < 0 else ()),
        *(_beyond_labels(size, labels, figures) if labels[0] < 0 or 0 < size <= labels[1] else ()),
    )
    sure = 0 < size <= seen or any(one.kind != BEYOND for one in findings)
    return Fit(figures=figures, findings=findings, verdict="fail" if sure else "warn" if findings else "ok")


def _vocabulary_figures(size: int, about: About) -> dict[str, Estimate]:
    rows = about.tokenised or about.rows
    methods = {
        "largest_id": "largest token id of rows and padding that was seen",
        "smallest_id": "smallest token id that was seen, below 0",
        "largest_label": "largest label that was seen",
        "smallest_label": f"smallest label that was seen, below 0; {IGNORED} left out",
        "tokenizer_top": "largest id that the tokenizer can give",
    }
    seen = {name: int(getattr(about, name)) for name in methods}
    found = {
        f"vocabulary.{name}": exact(value, "count", 1 if name == "tokenizer_top" else rows, methods[name])
        for name, value in seen.items()
        if (value < 0) == name.startswith("smallest")
    }
    known = {"vocabulary.model": exact(size, "count", 1, "vocab_size of the config")} if size and found else {}
    return known | found


def _beyond_vocabulary(size: int, seen: int, top: int, figures: dict[str, Estimate]) -> Iterator[Finding]:
    if max(seen, top) < size:
        return
    if seen >= size:
        title = (
            f"The data, or its padding, holds token id {seen:,}, and the model embeds ids 0 to {size - 1:,}: the "
            f"first such token ends the job with {CRASH}."
        )
    else:
        title = (
            f"The tokenizer can give ids up to {top:,}, and the model embeds 0 to {size - 1:,}. None beyond was seen "
            f"in the rows that were looked at; the first one ends the job with {CRASH}."
        )
    over = figures["vocabulary.largest_id" if seen >= size else "vocabulary.tokenizer_top"]
    yield Finding(
        kind=BEYOND,
        title=title,
        where="",
        cost=exact(over.value + 1 - size, "count", over.n, "past the last id that the model embeds"),
        share=(over.value + 1 - size) / (over.value + 1),
        remedies=(
            Remedy(action="use the tokenizer that belongs to the model, or tokenise the data with it", predicted=None),
            Remedy(action="where tokens were added: model.resize_token_embeddings(len(tokenizer))", predicted=None),
        ),
        cites=tuple(figures),
    )


def _negative_id(smallest: int, figures: dict[str, Estimate]) -> Iterator[Finding]:
    yield Finding(
        kind="data.negative_id",
        title=(
            f"The data holds token id {smallest:,}, and no model embeds one below 0: the first ends the job with "
            f"{CRASH}."
        ),
        where="",
        cost=exact(-smallest, "count", figures["vocabulary.smallest_id"].n, "below 0"),
        share=1.0,
        remedies=(
            Remedy(
                action=f"pad input_ids with the tokenizer's pad_token_id: {IGNORED} belongs into labels alone",
                predicted=None,
            ),
        ),
        cites=("vocabulary.smallest_id",),
    )


def _beyond_labels(size: int, labels: tuple[int, int], figures: dict[str, Estimate]) -> Iterator[Finding]:
    """Judge labels by what cross entropy takes: classes of the head, and what marks a token without loss."""
    smallest, largest = labels
    wrong, over = (smallest, -smallest) if smallest < 0 else (largest, largest + 1 - size)
    both = f" and {largest:,}" if smallest < 0 and 0 < size <= largest else ""
    name = "vocabulary.smallest_label" if smallest < 0 else "vocabulary.largest_label"
    classes = f"0 to {size - 1:,}" if size else "ids from 0 on"
    mark = f"mark tokens without loss with {IGNORED}, which the loss leaves out; no other negative number is"
    anew = "make the labels with the tokenizer that belongs to the model"
    yield Finding(
        kind="data.label_beyond_vocabulary",
        title=(
            f"The data holds label {wrong:,}{both}, and the loss takes {classes}, and {IGNORED} for tokens that bear "
            f"none: the first other one ends the job with {CRASH}."
        ),
        where="",
        cost=exact(over, "count", figures[name].n, "below 0" if smallest < 0 else "past the last class of the loss"),
        share=over / (over + size) if size else 1.0,
        remedies=(Remedy(action=mark if smallest < 0 else anew, predicted=None),),
        cites=tuple(one for one in figures if one.endswith("_label") or one == "vocabulary.model"),
    )
