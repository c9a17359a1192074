"""From the evidence of ``stepprobe trace`` to its report."""

from collections.abc import Mapping, Sequence

import msgspec

from stepprobe.analysis.trace.figures import all_steps, figures, ledger
from stepprobe.analysis.trace.findings import find
from stepprobe.analysis.trace.ranks import Ranks, compare, ordered
from stepprobe.analysis.trace.reservations import notes
from stepprobe.analysis.trace.summary import TraceSummary, summarise
from stepprobe.analysis.trace.tables import TOP, charts, tables
from stepprobe.analysis.unmeasured import unmeasured
from stepprobe.errors import EvidenceError
from stepprobe.model.device import DEVICE_LABELS
from stepprobe.model.estimate import Estimate
from stepprobe.model.evidence import Evidence
from stepprobe.model.finding import Control
from stepprobe.model.report import Report
from stepprobe.model.trace import SUFFIX, SUMMARY_SUFFIX, UNREAD, decode_columns

_SUMMARIES = msgspec.json.Decoder(list[TraceSummary])


def trace_report(evidence: Evidence, controls: tuple[Control, ...] = ()) -> Report:
    """Derive the report.

    Raises:
        EvidenceError: A file of the evidence is damaged.
    """
    summaries = ordered(read_summaries(evidence.files))
    if not summaries:
        said = f"not measured: no trace was read ({evidence.status}); name one: stepprobe trace FILE"
        return unmeasured(evidence, said, controls=controls)
    ranks = compare(summaries) if len(summaries) > 1 else None
    found = figures(summaries, ranks)
    text = evidence.options.get("top", "")
    top = int(text) if text.isascii() and text.isdigit() else TOP
    missing = unread(evidence.files)
    steps = all_steps(summaries)
    losses = missing or any(one.losses for one in summaries)
    return Report(
        command=evidence.command,
        verdict="warn" if losses or not len(steps) else "ok",
        title=evidence.subject,
        headline=_headline(summaries, found, ranks),
        figures=found,
        ledger=ledger(steps),
        findings=find(summaries, found, ranks),
        controls=controls,
        tables=tables(summaries, ranks, top),
        charts=charts(summaries, ranks),
        notes=(*missing, *notes(summaries, ranks)),
        environment=dict(evidence.environment),
    )


def read_summaries(files: Mapping[str, bytes]) -> list[TraceSummary]:
    """Return the summaries that evidence holds or gives.

    Raises:
        EvidenceError: A file is damaged, or is no evidence of this probe.
    """
    found: list[TraceSummary] = []
    for name, content in files.items():
        if name.endswith(SUFFIX):
            found += summarise(decode_columns(name, content))
        elif name.endswith(SUMMARY_SUFFIX):
            try:
                found += _SUMMARIES.decode(content)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise EvidenceError(f"{name}: damaged, or of a newer schema ({error}); read the trace again") from error
        elif name != UNREAD:
            raise EvidenceError(f"{name} is no evidence of stepprobe trace; move it out of the folder")
    return found


def unread(files: Mapping[str, bytes]) -> tuple[str, ...]:
    """Return a note for each trace that was there and could not be read.

    Raises:
        EvidenceError: The file that names them is damaged.
    """
    try:
        told = msgspec.json.decode(files.get(UNREAD, b"[]"), type=list[str])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise EvidenceError(f"{UNREAD}: damaged ({error}); read the traces again") from error
    return tuple(f"not read: {reason}" for reason in told)


def _headline(summaries: Sequence[TraceSummary], found: Mapping[str, Estimate], ranks: Ranks | None) -> str:
    parts = [f"{'step' if all(one.marked for one in summaries) else 'trace'} {found['trace.step_wall'].value:,.1f} ms"]
    if busy := found.get("trace.busy_share"):
        parts.append(f"device busy {busy.value:.1%} of it, idle {1 - busy.value:.1%}")
        idle = {name: found[f"trace.device.{name}"].value for name in DEVICE_LABELS if name.startswith("idle")}
        dearest = max(idle, key=lambda name: idle[name])
        if idle[dearest] > 0:
            part = "most of that" if 2 * idle[dearest] > sum(idle.values()) else "the largest part of that"
            parts.append(f"{part}: {DEVICE_LABELS[dearest].partition(' · ')[2]} ({idle[dearest]:,.1f} ms)")
    else:
        parts.append("no device rows: nothing can be said of the device")
    if "trace.dataloader" in found:
        data, walls = sum(one.data_ns for one in summaries), sum(sum(one.step_walls_ns) for one in summaries)
        parts.append(f"DataLoader {data / 1e6:,.1f} of {walls / 1e6:,.1f} ms in all steps")
    if ranks is not None and "trace.straggler" in found:
        parts.append(f"the others wait for {ranks.labels[int(found['trace.straggler'].value)]}")
    return " · ".join(parts)
