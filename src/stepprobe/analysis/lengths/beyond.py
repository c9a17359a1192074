"""Whether a dataset fits a model: rows no longer than its positions, ids no larger than its vocabulary."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from stepprobe.analysis.lengths.calibration import Counts, counts, estimate
from stepprobe.analysis.lengths.options import Options
from stepprobe.model.attention import Capture
from stepprobe.model.estimate import Estimate, exact
from stepprobe.model.finding import Finding, Remedy
from stepprobe.model.lengths import About, Lengths
from stepprobe.model.report import Verdict

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Rows = Ints | NDArray[np.float64]

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
    both = (_positions(capture, counts(lengths), options), _vocabulary(capture, lengths.about))
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


def _vocabulary(capture: Capture, about: About) -> Fit:
    """Compare the largest ids with what the model can embed; a vocabulary padded beyond the tokenizer's is fine."""
    size, seen, top = capture.vocabulary, about.largest_id, about.tokenizer_top
    if not size or max(seen, top) < 0:
        return Fit()
    figures = {"vocabulary.model": exact(size, "count", 1, "vocab_size of the config")}
    if seen >= 0:
        method = "largest token id of rows and padding that was seen"
        figures["vocabulary.largest_id"] = exact(seen, "count", about.tokenised or about.rows, method)
    if top >= 0:
        figures["vocabulary.tokenizer_top"] = exact(top, "count", 1, "largest id that the tokenizer can give")
    findings = tuple(_beyond_vocabulary(size, seen, top, figures))
    return Fit(figures=figures, findings=findings, verdict=("fail" if seen >= size else "warn") if findings else "ok")


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
        kind="tokenizer.beyond_vocabulary",
        title=title,
        where="",
        cost=exact(over.value + 1 - size, "count", over.n, "ids up to the largest, beyond the model's"),
        share=(over.value + 1 - size) / (over.value + 1),
        remedies=(
            Remedy(action="use the tokenizer that belongs to the model, or tokenise the data with it", predicted=None),
            Remedy(action="where tokens were added: model.resize_token_embeddings(len(tokenizer))", predicted=None),
        ),
        cites=tuple(figures),
    )
