"""The part of the padding report about the loss: bytes of logits, the chunk to compute, the out-of-memory message."""

from collections.abc import Mapping
from typing import Any

from stepprobe.analysis.lengths import chunks
from stepprobe.analysis.lengths.options import Options
from stepprobe.analysis.limits.decoder import Decoder
from stepprobe.model.estimate import Estimate, exact
from stepprobe.model.finding import Control
from stepprobe.model.report import Column, Table

PEAK_ERROR = 0.15
"""Relative error within which a measured peak confirms the predicted one."""
TIME_ERROR = 0.10


def loss_figures(
    rows: int, vocabulary: int, sizes: Decoder | None, options: Options, measured: Mapping[str, Any] | None
) -> tuple[dict[str, Estimate], chunks.Choice]:
    """Return figures about the loss of the largest batch, which has ``rows`` rows of logits."""
    made = _fit(measured)
    hidden = sizes.hidden if sizes else 0
    head = chunks.Head(vocabulary=vocabulary, hidden=hidden, dtype=options.dtype, trained=options.trained_head)
    choice = chunks.choose(rows, head, made, float(options.budget) if options.budget else None)
    kind = "fp32" if options.dtype == "fp32" else "16-bit"
    usual, low, high = (each * rows * vocabulary for each in chunks.BYTES_PER_LOGIT[options.dtype])
    figures = {
        "ce.rows": exact(rows, "tokens", 1, "slots of the largest batch"),
        "ce.bytes_peak": Estimate(
            value=usual,
            unit="bytes",
            low=low,
            high=high,
            n=1,
            method=f"unfused {kind} loss: rows × vocabulary of {vocabulary:,} × bytes a logit at the peak",
        ),
        "ce.chunk_rows": exact(choice.chunk, "count", 1, f"chosen: {choice.reason}"),
        "ce.bytes_peak_chunked": exact(choice.chunked, "bytes", 1, "the same in chunks, gradients included"),
    }
    if made:
        figures["ce.seconds_per_chunk"] = exact(made.fixed, "s", made.checked + 2, "fitted on two chunk sizes")
        figures["ce.seconds_per_row"] = exact(made.each, "s", made.checked + 2, "fitted on two chunk sizes")
        figures["ce.time_residual"] = exact(made.residual, "1", made.checked, "largest error at the other chunk sizes")
    return figures, choice


def _fit(measured: Mapping[str, Any] | None) -> chunks.Fit | None:
    if measured is None:
        return None
    return chunks.fit(int(measured["rows"]), [(chunk, seconds) for chunk, seconds, _ in measured["points"]])


def measured_controls(measured: Mapping[str, Any] | None) -> tuple[Control, ...]:
    """Return what a measurement of the loss has to recover: equal losses, the third point, the predicted peak."""
    if measured is None:
        return ()
    found = []
    losses = [float(one) for one in measured["losses"]]
    found.append(_control("ce.loss", losses[0], max(losses, key=lambda one: abs(one - losses[0])), 1e-4))
    norms = [float(one) for one in measured["gradients"]]
    found.append(_control("ce.gradient", norms[0], max(norms, key=lambda one: abs(one - norms[0])), 1e-3))
    made = _fit(measured)
    if made:
        rows = int(measured["rows"])
        between = sorted(measured["points"])[1:-1]
        chunk, seconds, _ = max(between, key=lambda one: abs(made.time(rows, one[0]) / one[1] - 1))
        found.append(_control("ce.third_point_s", seconds, made.time(rows, chunk), TIME_ERROR))
    if plain := measured.get("plain_peak_bytes"):
        logits = int(measured["rows"]) * int(measured["vocabulary"])
        dtype, item = str(measured["dtype"]), chunks.ITEM[str(measured["dtype"])]
        of_head = item * int(measured["vocabulary"]) * int(measured["hidden"]) if measured["trained_head"] else 0
        predicted = max(logits * chunks.BYTES_PER_LOGIT[dtype][0], logits * 2 * item + of_head)
        found.append(_control("ce.peak_bytes", float(plain), predicted, PEAK_ERROR))
    return tuple(found)


def _control(name: str, expected: float, recovered: float, allowed: float) -> Control:
    ok = abs(recovered - expected) <= allowed * abs(expected)
    return Control(name=name, expected=expected, recovered=recovered, ok=ok)


def chunk_table(choice: chunks.Choice, vocabulary: int, dtype: str) -> Table:
    """Return the lines that set the chunk; the caption says what the peak of the loss is made of."""
    usual, low, high = chunks.BYTES_PER_LOGIT[dtype]
    rows: tuple[tuple[str, str], ...]
    if choice.chunk >= choice.rows:
        rows = (("any", f"no chunking is needed: {choice.reason}"),)
    else:
        rows = (
            (
                "torch ≥ 2.13",
                f"F.linear_cross_entropy(…, options=LinearCrossEntropyOptions(batch_chunk_size={choice.chunk}))",
            ),
            ("Liger", f"num_chunks = {-(-choice.rows // choice.chunk)} of {choice.rows:,} rows"),
            ("TRL", f"_CHUNKED_LOGPROB_CHUNK_SIZE = {choice.chunk}"),
        )
    return Table(
        name="loss",
        title="Rows of logits at once",
        columns=(Column(title="where"), Column(title="what to set", code=True)),
        rows=rows,
        caption=f"{choice.rows:,} rows × {vocabulary:,} logits; unfused, the peak takes {usual:g} bytes a logit "
        f"({low:g} to {high:g}). Only labelled rows need any.",
    )


def oom_figures(message: str, vocabulary: int, batch_size: int | None) -> tuple[dict[str, Estimate], str]:
    """Return the rows of logits that a failed allocation held, and a sentence about it.

    Raises:
        UsageError: The message names no size.
    """
    found = chunks.read_oom(message)
    figures = {"ce.oom_bytes": _estimate(found.bytes, found.half_width, "bytes")}
    parts = []
    for name, item in (("fp32", 4), ("16bit", 2)):
        rows, fewest, most = found.rows(vocabulary, item)
        figures[f"ce.oom_rows_{name}"] = _estimate(rows, (most - fewest) / 2, "count")
        parts.append(f"{rows:,.0f} rows of {'fp32' if item == 4 else '16-bit'} logits")
    sentence = f"an allocation of {found.bytes / 2**30:,.2f} GiB is {' or '.join(parts)} over {vocabulary:,} entries"
    whole = chunks.whole_batches(found, vocabulary, batch_size) if batch_size else []
    if whole:
        sentence += (
            "; at batch size "
            + f"{batch_size}: "
            + " or ".join(f"{length:,} tokens a row ({kind})" for kind, length in whole)
        )
    return figures, sentence


def _estimate(value: float, half: float, unit: Any) -> Estimate:  # noqa: ANN401 - a literal of units
    method = "the size in the message; the interval is its last printed digit"
    return Estimate(value=value, unit=unit, low=value - half, high=value + half, n=1, method=method)
