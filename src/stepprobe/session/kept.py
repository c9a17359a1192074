"""What becomes of evidence, whichever way it came: sealed, derived, and written as a report."""

import traceback
from collections.abc import Sequence
from pathlib import Path

import msgspec

from stepprobe import probes, store
from stepprobe.analysis.unmeasured import unmeasured
from stepprobe.errors import EvidenceError, NotObserved, StepprobeError
from stepprobe.launch import script, stages
from stepprobe.model.evidence import Evidence
from stepprobe.model.report import Report


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What a run found, and where it is kept."""

    report: Report
    folder: Path
    status: str
    """How the subject ended, as in ``Evidence.status``."""
    problems: tuple[str, ...] = ()
    """What could not be kept or drawn, each with the next step."""
    living: tuple[int, ...] = ()
    """Processes of the subject that went on when it had ended."""


def seal(folder: Path, status: str) -> list[str]:
    """Seal a run unless it still goes on; return why that could not be done."""
    if store.read_manifest(folder).state == "sealed":
        return []
    if living := script.living(folder):
        return [f"process {living[0]} of this run still lives; when it has ended: stepprobe report {as_path(folder)}"]
    from stepprobe.instruments.trace import window

    problems = []
    try:
        window.gather(folder)
    except OSError as error:
        problems.append(f"the trace could not be kept with the rest: {error.strerror}")
    try:
        store.seal(folder, status)
    except EvidenceError:
        raise
    except StepprobeError as error:
        problems.append(str(error))
    return problems


def derive(evidence: Evidence, folder: Path, *, living: Sequence[int] = ()) -> Report:
    """Derive the report, and say how far the script came when it shows no step.

    Args:
        evidence: What was observed.
        folder: Where it is kept.
        living: Processes of the script that go on.
    """
    try:
        derived = probes.load(evidence.probe).derive(evidence)
    except NotObserved:
        return not_measured(evidence, folder, stages.explain(evidence, living))
    if (
        (evidence.command == "run" or (evidence.command == "profile" and not _has_any(evidence, derived)))
        and derived.verdict == "not measured"
        and all(control.ok for control in derived.controls)
    ):
        derived = msgspec.structs.replace(derived, headline=stages.explain(evidence, living))
    return msgspec.structs.replace(derived, run=as_path(folder))


def _has_any(evidence: Evidence, derived: Report) -> bool:
    """Return whether a profile saw a step or made an experiment."""
    return bool(derived.ledger) or any(name.startswith("experiments-") for name in evidence.files)


def not_measured(evidence: Evidence, folder: Path, reason: str) -> Report:
    """Return the report of a run in which nothing was measured, and why."""
    return msgspec.structs.replace(unmeasured(evidence, reason), run=as_path(folder))


def tell(error: Exception) -> str:
    """Say what happened and the next step, also for an error that nobody expected."""
    if isinstance(error, StepprobeError):
        return str(error)
    if isinstance(error, ImportError):
        return f"{error}; install what is missing, then: stepprobe report RUN"
    place = traceback.extract_tb(error.__traceback__)[-1]
    return (
        f"{type(error).__name__}: {error} ({Path(place.filename).name}:{place.lineno}). This is a defect of stepprobe; "
        "the evidence is kept. Please report it, and after an upgrade: stepprobe report RUN"
    )


def as_path(folder: Path) -> str:
    """Return a folder as it is shown."""
    return store.as_text(str(folder.resolve()))


def as_json(derived: Report) -> str:
    """Return a report as it is kept."""
    from stepprobe.report import json as report_json

    return report_json.render(derived)


def write(folder: Path, derived: Report) -> list[str]:
    """Write the report files; return what went wrong, since a report that is on screen must not be lost over it."""
    from stepprobe.report import html

    documents, problems = {store.REPORT_JSON: as_json(derived)}, []
    try:
        documents[store.REPORT_HTML] = html.render(derived)
    except Exception as error:  # the other forms of the report, and the script's exit code, still count
        problems.append(f"{store.REPORT_HTML} was not drawn: {tell(error)}")
    try:
        store.write_report(folder, documents)
    except StepprobeError as error:
        problems.append(str(error))
    return problems
