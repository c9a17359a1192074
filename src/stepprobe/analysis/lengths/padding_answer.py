"""From the lengths of a dataset to the report of ``stepprobe padding``."""

from collections.abc import Mapping

from stepprobe.analysis.controls import recover
from stepprobe.analysis.lengths import chunks, loss_report, padding_report
from stepprobe.analysis.lengths.beyond import Fit, vocabulary
from stepprobe.analysis.lengths.calibration import counts
from stepprobe.analysis.lengths.cost import model_sizes
from stepprobe.analysis.lengths.known import PADDING_EXPECTED, two_lengths
from stepprobe.analysis.lengths.options import Options, cut, read_options
from stepprobe.model.estimate import Estimate
from stepprobe.model.evidence import Evidence
from stepprobe.model.finding import Control
from stepprobe.model.lengths import About, Lengths, decode
from stepprobe.model.report import Report, Table, Verdict

TOLERANCE = 1e-6
"""Relative error of a known answer: the known dataset is large, not endless."""


def padding_answer(evidence: Evidence) -> Report:
    """Derive the report of a dataset, after recovering a known one.

    Raises:
        EvidenceError: The evidence is damaged.
        UsageError: An option makes no sense.
    """
    controls = recover(_figures(two_lengths("padding")), PADDING_EXPECTED, usual=TOLERANCE)
    lengths = decode(evidence.files)
    if lengths is None and evidence.options.get("oom"):
        return _oom_alone(evidence, controls)
    found = counts(lengths) if lengths else None
    options = read_options(evidence.options)
    seen = cut(found, options) if found else None
    if lengths is None or found is None or seen is None:
        return padding_report.nothing(evidence, lengths.about if lengths else None, controls)
    figures = padding_report.padding_figures(lengths.about, found, seen, options)
    loss, tables, said = _loss(evidence, lengths, int(figures["padding.worst_batch"].value), options)
    controls = (*controls, *loss_report.measured_controls(chunks.read_measured(evidence.files)))
    broken, held = [one.name for one in controls if not one.ok], _held(evidence, lengths.about)
    limits, sizes = padding_report.limit_rows(found, options), padding_report.size_rows(found, options)
    slot = loss["ce.bytes_peak"].value / loss["ce.rows"].value if loss else 0.0
    return Report(
        command=evidence.command,
        verdict="not measured" if broken else _verdict(lengths.about, held),
        title=evidence.subject,
        headline=_broken(broken) if broken else _headline(figures, options),
        figures={**figures, **held.figures, **loss},
        findings=held.findings,
        controls=controls,
        tables=(
            padding_report.source_table(lengths.about, found),
            padding_report.limit_table(limits, options, slot),
            padding_report.size_table(sizes, options, slot),
            *tables,
        ),
        charts=padding_report.charts(lengths.about, found, limits),
        notes=(*padding_report.notes(lengths.about, seen, found), *said),
        environment=dict(evidence.environment),
    )


def _held(evidence: Evidence, about: About) -> Fit:
    """Hold ids and labels to the model's vocabulary, where a model is named."""
    model = model_sizes(evidence.files)
    return vocabulary(model.vocabulary if model else 0, about)


def _figures(evidence: Evidence) -> dict[str, Estimate]:
    lengths = decode(evidence.files)
    if lengths is None:
        return {}
    found, options = counts(lengths), read_options(evidence.options)
    seen = cut(found, options)
    return padding_report.padding_figures(lengths.about, found, seen, options) if seen else {}


def _loss(
    evidence: Evidence, lengths: Lengths, rows: int, options: Options
) -> tuple[dict[str, Estimate], tuple[Table, ...], tuple[str, ...]]:
    """Return figures, tables and notes about the loss; a note alone where the vocabulary is not known."""
    sizes = model_sizes(evidence.files)
    vocabulary = sizes.vocabulary if sizes else lengths.about.vocabulary
    if not vocabulary:
        return {}, (), ("The loss was not sized: name the model with --model, or a tokenizer, to know its vocabulary.",)
    measured = chunks.read_measured(evidence.files)
    figures, choice = loss_report.loss_figures(int(rows), vocabulary, sizes, options, measured)
    said: list[str] = []
    if not sizes:
        said.append("The vocabulary is the tokenizer's; models pad their head to more. --model takes the model's own.")
    if measured is None:
        said.append("Bytes a logit and the chunk are predictions; stepprobe padding DATA --measure-loss runs it.")
    if message := evidence.options.get("oom"):
        found, sentence = loss_report.oom_figures(message, vocabulary, options.batch_size)
        figures.update(found)
        said.append(f"Out of memory: {sentence}.")
    return figures, (loss_report.chunk_table(choice, vocabulary, options.dtype),), tuple(said)


def _oom_alone(evidence: Evidence, controls: tuple[Control, ...]) -> Report:
    sizes = model_sizes(evidence.files)
    vocabulary = sizes.vocabulary if sizes else int(evidence.options.get("vocabulary") or 0)
    size = read_options(evidence.options).batch_size
    figures, sentence = loss_report.oom_figures(evidence.options["oom"], vocabulary, size)
    return Report(
        command=evidence.command,
        verdict="ok",
        title=evidence.subject,
        headline=sentence,
        figures=figures,
        controls=controls,
        environment=dict(evidence.environment),
    )


def _verdict(about: About, held: Fit) -> Verdict:
    return "warn" if held.findings or about.skipped_rows or about.unmasked_rows or about.padded_rows else "ok"


def _headline(figures: Mapping[str, Estimate], options: Options) -> str:
    waste, rows = figures["padding.waste_share"], int(figures["lengths.rows"].value)
    parts = [
        f"{waste.value:.1%} of each batch is padding in random order (batch size {options.batch_size})",
        f"{rows:,} {'row' if rows == 1 else 'rows'}, {figures['padding.tokens_total'].value:,.0f} tokens",
        f"worst batch {figures['padding.worst_batch'].value:,.0f} slots",
    ]
    if figures["padding.truncated_share"].value:
        parts.append(f"{figures['padding.truncated_share'].value:.2%} of the tokens are cut off")
    return " · ".join(parts)


def _broken(names: list[str]) -> str:
    return f"not measured: a control was not recovered ({', '.join(names)}); please report this"
