"""The verdict before a job: masks and kernels, the bytes of the loss, padding and cut rows, in one report."""

import json
from collections.abc import Iterator, Mapping

import msgspec

from stepprobe.analysis.attention.derive import mask_answer
from stepprobe.analysis.lengths import loss_report
from stepprobe.analysis.lengths.beyond import Fit, fit
from stepprobe.analysis.lengths.cost import MODEL, model_sizes
from stepprobe.analysis.lengths.options import read_options
from stepprobe.analysis.lengths.padding_answer import padding_answer
from stepprobe.analysis.limits.decoder import Decoder
from stepprobe.analysis.wording import size
from stepprobe.errors import EvidenceError
from stepprobe.model.attention import CAPTURE, KEPT, Batch, read_capture
from stepprobe.model.estimate import Estimate
from stepprobe.model.evidence import Evidence
from stepprobe.model.finding import Finding, Remedy
from stepprobe.model.lengths import ABOUT, ARRAYS, decode
from stepprobe.model.report import Report, Table, Verdict

WASTE = 0.1
"""Part of the slots that is padding from which on it is a finding."""
LARGE_LOSS = 1 << 30
"""Bytes of the loss from which on chunks are a finding."""
_SETTINGS = ("batch_size", "length", "padding", "max_length")
_BY_ROWS = "from the lengths of the rows"
_ORDER: tuple[Verdict, ...] = ("not measured", "fail", "warn", "ok")


def check_report(evidence: Evidence) -> Report:
    """Return the joined report.

    Raises:
        EvidenceError: A file is damaged.
        UsageError: An option makes no sense.
    """
    sizes, vocabulary = _sizes(evidence.files)
    known = evidence.files if sizes else {name: held for name, held in evidence.files.items() if name != MODEL}
    mask = mask_answer(evidence)
    counted = ARRAYS in known or ABOUT in known
    data = padding_answer(msgspec.structs.replace(evidence, files=known)) if counted else None
    loss, tables = _loss(evidence, data, sizes, vocabulary)
    beyond = _fit(evidence) if data and data.verdict != "not measured" else Fit()
    figures = {**mask.figures, **(data.figures if data else {}), **loss, **beyond.figures}
    findings = (*beyond.findings, *mask.findings, *_findings(figures))
    verdict = min((mask.verdict, beyond.verdict, *([data.verdict] if data else [])), key=_ORDER.index)
    return msgspec.structs.replace(
        mask,
        verdict="warn" if verdict == "ok" and findings else verdict,
        headline=" · ".join([mask.headline, *_headline(figures, data)]),
        figures=figures,
        findings=findings,
        controls=(*mask.controls, *(data.controls if data else ())),
        tables=(*mask.tables, *(data.tables if data else ()), *tables),
        charts=(*mask.charts, *(data.charts if data else ())),
        notes=(
            *_asked(evidence, figures, counted),
            *mask.notes,
            *(data.notes if data else _without_data(loss)),
        ),
    )


def _asked(evidence: Evidence, figures: Mapping[str, Estimate], counted: bool) -> Iterator[str]:
    """Say what was asked about, and where each setting comes from."""
    options = evidence.options
    batch_size, length, padding, cut = (options.get(f"{name}_from") for name in _SETTINGS)
    if not batch_size:
        return
    rows = int(options["length"])
    if not counted:
        said, usual = f"rows of {rows:,} tokens ({length})", "the default, set it: --padding"
    elif options.get("max_length"):
        said, usual = f"rows cut to {int(options['max_length']):,} tokens ({cut})", _BY_ROWS
    else:
        said, usual = "rows as long as they are (nothing says where they are cut, set it: --max-length)", _BY_ROWS
    padded = f"padding {options['padding']} ({padding or usual})"
    dtype = f", {options.get('dtype') or 'bfloat16'} ({source})" if (source := options.get("dtype_from")) else ""
    yield f"Asked with batch size {int(options['batch_size']):,} ({batch_size}), {said}, {padded}{dtype}."
    if (batch := _kept(evidence.files)) is not None:
        yield f"The masks were asked of one batch that the run kept: {batch.size:,} x {batch.length:,} tokens."
        return
    longest = figures["lengths.max"].value if "lengths.max" in figures else 0
    if rows < min(longest, int(options["max_length"] or longest)):
        yield f"The masks were asked at {rows:,} tokens, not at the longest row; --length asks at another."


def _kept(files: Mapping[str, bytes]) -> Batch | None:
    """Return the batch of a run that the masks were asked of; None where one was made to ask."""
    batch = read_capture(files[CAPTURE]).batch if CAPTURE in files else None
    return batch if batch is not None and batch.kind == KEPT else None


def _sizes(files: Mapping[str, bytes]) -> tuple[Decoder | None, int]:
    """Return the sizes of the model where its config has the usual names, and its vocabulary."""
    try:
        sizes = model_sizes(files)
    except EvidenceError:
        sizes = None
    if sizes is not None or MODEL not in files:
        return sizes, sizes.vocabulary if sizes else 0
    config = json.loads(files[MODEL])
    text = config.get("text_config", config)
    found = text.get("vocab_size") if isinstance(text, dict) else None
    return None, found if isinstance(found, int) else 0


def _fit(evidence: Evidence) -> Fit:
    """Hold the dataset to what the model has room for."""
    lengths = decode(evidence.files)
    if lengths is None or CAPTURE not in evidence.files:
        return Fit()
    return fit(read_capture(evidence.files[CAPTURE]), lengths, read_options(evidence.options))


def _loss(
    evidence: Evidence, data: Report | None, sizes: Decoder | None, vocabulary: int
) -> tuple[dict[str, Estimate], tuple[Table, ...]]:
    """Return figures and table of the loss where the dataset's report does not hold them already."""
    if (data is not None and "ce.rows" in data.figures) or not vocabulary or (data and data.verdict == "not measured"):
        return {}, ()
    options = read_options(evidence.options)
    length = int(evidence.options.get("length") or 0)
    slots = data.figures["padding.worst_batch"].value if data else options.batch_size * length
    if not slots:
        return {}, ()
    figures, choice = loss_report.loss_figures(int(slots), vocabulary, sizes, options, None)
    return figures, (loss_report.chunk_table(choice, vocabulary, options.dtype),)


def _findings(figures: Mapping[str, Estimate]) -> Iterator[Finding]:
    peak = figures.get("ce.bytes_peak")
    if peak is not None and peak.value >= LARGE_LOSS and figures["ce.chunk_rows"].value < figures["ce.rows"].value:
        yield _loss_finding(peak, figures)
    waste = figures.get("padding.waste_share")
    if waste is not None and waste.value >= WASTE:
        yield _of_data(
            "padding.waste",
            f"{waste.value:.1%} of the slots are padding in random order.",
            waste,
            "sort by length, bucket or pack: stepprobe bucket DATA says what each gains",
            ("padding.waste_share", "padding.expected_longest"),
        )
    lost = figures.get("padding.truncated_share")
    if lost is not None and lost.value > 0:
        rows = figures["padding.truncated_rows"].value
        yield _of_data(
            "padding.truncated",
            f"{rows:,.0f} rows are longer than the length they are cut to: {lost.value:.2%} of all tokens are lost.",
            lost,
            "raise the length (the table of limits says what each cuts), or split rows",
            ("padding.truncated_share", "padding.truncated_rows", "lengths.max"),
        )


def _loss_finding(peak: Estimate, figures: Mapping[str, Estimate]) -> Finding:
    rows, chunk, chunked = (figures[f"ce.{name}"].value for name in ("rows", "chunk_rows", "bytes_peak_chunked"))
    title = (
        f"The loss of the largest batch takes {size(peak.value)} at its peak: all of its {rows:,.0f} rows of "
        "logits at once."
    )
    action = f"compute the loss in chunks of {chunk:,.0f} rows: {size(chunked)} (the table of the loss says how)"
    saved = Estimate(
        value=peak.value - chunked, unit="bytes", n=peak.n, method="bytes at the peak, less those in chunks"
    )
    return Finding(
        kind="loss.bytes",
        title=title,
        where="",
        cost=peak,
        share=1.0,
        remedies=(Remedy(action=action, predicted=saved),),
        cites=("ce.bytes_peak", "ce.bytes_peak_chunked", "ce.chunk_rows"),
    )


def _of_data(kind: str, title: str, cost: Estimate, action: str, cites: tuple[str, ...]) -> Finding:
    remedies = (Remedy(action=action, predicted=None),)
    return Finding(kind=kind, title=title, where="", cost=cost, share=cost.value, remedies=remedies, cites=cites)


def _headline(figures: Mapping[str, Estimate], data: Report | None) -> Iterator[str]:
    if peak := figures.get("ce.bytes_peak"):
        yield f"loss {size(peak.value)} at its peak"
    if data is None:
        return
    if data.verdict == "not measured":
        yield data.headline
        return
    yield f"{figures['padding.waste_share'].value:.1%} padding"
    beyond = figures.get("positions.rows_beyond")
    if beyond is not None and beyond.value:
        rows = "1 row is" if beyond.value == 1 else f"{beyond.value:,.0f} rows are"
        yield f"{rows} longer than the model's {figures['positions.model'].value:,.0f} positions"
    if figures["padding.truncated_share"].value:
        yield f"{figures['padding.truncated_share'].value:.2%} of the tokens cut off"


def _without_data(loss: Mapping[str, Estimate]) -> tuple[str, ...]:
    said = ["Padding and cut rows were not looked at: name a dataset with --data."]
    if not loss:
        said.append("The loss was not sized: the config names no vocab_size.")
    return tuple(said)
