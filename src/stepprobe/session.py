"""Measure, keep, derive, report: the only place where instruments, evidence and renderers meet."""

import json
import math
import traceback
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from stepprobe import probes, store
from stepprobe.analysis.unmeasured import unmeasured
from stepprobe.errors import AssertionFailed, EvidenceError, NotObserved, StepprobeError, UsageError
from stepprobe.launch import command, masks, script, stages
from stepprobe.model.calibration import CALIBRATION, Pair
from stepprobe.model.estimate import exact
from stepprobe.model.evidence import Evidence
from stepprobe.model.harness import Subject
from stepprobe.model.report import Report

if TYPE_CHECKING:
    from stepprobe.analysis.ledger.recorded import Recorded

_LOCAL = "run"  # where the folder lies is the one field of a report that does not come from evidence
_PATIENCE_S = 6  # a data worker whose parent was killed looks for it every 5 s, then ends
_ULPS = 1e-12  # relative; another machine's math library may round the last bits otherwise


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What a run found, and where it is kept."""

    report: Report
    folder: Path
    status: str
    """How the subject ended, as in ``Evidence.status``."""
    problems: tuple[str, ...] = ()
    """What could not be kept or drawn, each with the next step."""


def run(
    argv: Sequence[str],
    *,
    out: Path,
    steps: int | None = None,
    warmup: str = "auto",
    leave_out: Collection[str] = (),
    output_to_stderr: bool = False,
) -> Result:
    """Run a command under the ledger probe and report on it.

    Args:
        argv: The command, unchanged.
        out: Folder of run folders.
        steps: Measured steps after which the job is ended; None observes to its end.
        warmup: Steps to leave out, a number or ``auto``.
        leave_out: ``trace``: of a few steps; ``masks``: a few seconds at the end for those of the job's first batches.
        output_to_stderr: Send the script's standard output to standard error.

    Raises:
        UsageError: The command cannot be started, or the run folder cannot be made. Nothing was run.
    """
    planned = script.plan(argv, steps=steps, warmup=warmup, trace="trace" not in leave_out)
    return _observe(argv, planned, out, foretells="masks" not in leave_out, output_to_stderr=output_to_stderr)


def profile(
    argv: Sequence[str],
    *,
    out: Path,
    steps: int,
    experiments: Mapping[str, str],
    trace: bool = True,
    output_to_stderr: bool = False,
) -> Result:
    """Run a command, make experiments on its own training step, and report on both.

    Args:
        argv: The command, unchanged.
        out: Folder of run folders.
        steps: Steps that are observed before the experiments.
        experiments: ``harness`` (``module:factory`` or nothing), ``keep_training`` and ``anyway`` (``yes`` or
            ``no``) and ``seconds`` (what the experiments may take).
        trace: Take a trace of a few steps before them.
        output_to_stderr: Send the script's standard output to standard error.

    Raises:
        UsageError: The command cannot be started, or the run folder cannot be made. Nothing was run.
        NotObserved: The machine is plainly too busy to measure on, and ``anyway`` is ``no``. Nothing was run.
    """
    planned = script.plan(argv, steps=steps, warmup="auto", trace=trace, experiments=experiments)
    return _observe(argv, planned, out, foretells=True, output_to_stderr=output_to_stderr)


def _observe(argv: Sequence[str], planned: Evidence, out: Path, *, foretells: bool, output_to_stderr: bool) -> Result:
    command.check(argv)
    script.check_machine(planned)
    folder = store.create(out, command.name(argv), planned, tuple(argv))
    subject = script.Script(argv=tuple(argv), folder=folder, planned=planned, output_to_stderr=output_to_stderr)
    evidence = probes.load(planned.probe).measure(subject)
    if not folder.is_dir():
        gone = (
            f"{_path(folder)} was removed while the script ran, and all that was observed with it; name a place that "
            "the script leaves alone: --out DIR"
        )
        return Result(report=_not_measured(evidence, folder, gone), folder=folder, status=evidence.status, problems=())
    masks.foretell(folder, asked=foretells and evidence.status == "finished")
    try:
        problems = _seal(folder, evidence.status, patience_s=_PATIENCE_S)
        if store.read_manifest(folder).state == "sealed":
            evidence = store.load(folder)
    except EvidenceError as error:  # the script has touched the run folder
        problems = [str(error)]
    try:
        derived = _derive(evidence, folder)
    except Exception as error:  # the script has run: its evidence and its exit code still count
        derived = _not_measured(evidence, folder, _tell(error))
    problems += _write(folder, derived)
    return Result(report=derived, folder=folder, status=evidence.status, problems=tuple(problems))


def ask(subject: Subject, probe: str, *, out: Path, name: str, argv: Sequence[str]) -> Result:
    """Let a probe observe a subject that is not a running job, keep the evidence and report on it.

    Args:
        subject: What is observed.
        probe: Name of the probe.
        out: Folder of run folders.
        name: What the run is called.
        argv: The command that asked.

    Raises:
        UsageError: The subject does not exist, or the run folder cannot be made.
        NotObserved: The subject cannot be observed here.
    """
    module = probes.load(probe)
    evidence = module.measure(subject)
    derived = module.derive(evidence)
    folder = store.create(out, name, evidence, tuple(argv))
    store.keep(folder, evidence.files)
    problems = _seal(folder, evidence.status)
    derived = msgspec.structs.replace(derived, run=_path(folder))
    problems += _write(folder, derived)
    return Result(report=derived, folder=folder, status=evidence.status, problems=tuple(problems))


def trace_track(folder: Path, paths: Sequence[Path], target: Path) -> None:
    """Write a copy of a trace with the accounts of its run folder as a track.

    Raises:
        EvidenceError: The folder holds no columns of one trace.
        UsageError: A file cannot be read or written.
    """
    from stepprobe.analysis.trace.track import segments
    from stepprobe.instruments.trace.export import write_perfetto
    from stepprobe.model.trace import SUFFIX, decode_columns

    held = [(name, content) for name, content in store.load(folder).files.items() if name.endswith(SUFFIX)]
    if len(held) != 1 or len(paths) != 1:
        raise EvidenceError(f"{_path(folder)} holds the columns of {len(held)} traces; --perfetto writes one")
    columns = decode_columns(*held[0])
    write_perfetto(paths[0], columns.header, segments(columns), target)


def report(folder: Path) -> Result:
    """Derive the report of a run folder again and write it there.

    A run that was killed is sealed by this; one whose processes still live is read as it stands and left open.

    Raises:
        EvidenceError: The folder or a file in it is missing or damaged.
    """
    problems = _seal(folder, "interrupted")
    evidence = store.load(folder)
    derived = _derive(evidence, folder)
    problems += _write(folder, derived)
    return Result(report=derived, folder=folder, status=evidence.status, problems=tuple(problems))


def fit(folder: Path) -> bytes:
    """Return the fit of a profile's run folder as ``padding --fit`` and ``bucket --fit`` read it.

    Raises:
        EvidenceError: The folder or a file in it is missing or damaged.
        UsageError: It holds no experiments, or they give no fit.
    """
    from stepprobe.analysis.profile.growth import fit_of

    return fit_of(store.load(folder))


def recorded(folder: Path) -> "Recorded":
    """Return what a run folder says about the batches of its job.

    Raises:
        EvidenceError: The folder or a file in it is missing or damaged.
    """
    from stepprobe.analysis.ledger.recorded import recorded as read

    return read(store.load(folder))


def verify(folder: Path) -> Report:
    """Check every hash of a run folder, derive its report again and compare it with the one that is kept.

    Raises:
        EvidenceError: A file is missing, damaged or was changed.
        AssertionFailed: The evidence does not give the report that is kept.
    """
    files = store.read_sealed(folder)
    try:
        kept = json.loads(files[store.REPORT_JSON])
    except ValueError as error:
        raise EvidenceError(f"{store.REPORT_JSON} is no JSON: {error}; write it again: stepprobe report RUN") from error
    if not isinstance(kept, dict):
        raise EvidenceError(f"{store.REPORT_JSON} is no report; write it again: stepprobe report RUN")
    evidence = store.load(folder)
    derived = json.loads(_as_json(_derive(evidence, folder)))
    differences = list(_differences({**kept, _LOCAL: None}, {**derived, _LOCAL: None}))
    if differences:
        more = f" (and {len(differences) - 3} more)" if len(differences) > 3 else ""
        raise AssertionFailed(
            f"the evidence does not give the report that is kept: {'; '.join(differences[:3])}{more}. "
            "If another version of stepprobe wrote it, write it again with: stepprobe report RUN"
        )
    values = sum(1 for _ in _leaves(derived))
    return Report(
        command="verify",
        verdict="ok",
        title=evidence.subject,
        headline=f"{len(files)} files have the hash they were sealed with; {values} values derive from them again.",
        figures={
            "verify.files": exact(len(files), "count", len(files), "counted"),
            "verify.values": exact(values, "count", values, "counted"),
        },
        environment=dict(evidence.environment),
        run=_path(folder),
    )


def compare(before: Path, after: Path) -> Report:
    """Compare two run folders by account; hold the first to what it promised, and log that beside the run folders.

    The two folders are only read.

    Raises:
        UsageError: Both are one run, or one cannot be compared.
        EvidenceError: A folder or a file in it is missing or damaged.
        NotObserved: One of them holds no step.
    """
    from stepprobe.analysis.outcome import comparison
    from stepprobe.analysis.outcome.log import pairs_of

    runs = store.load(before), store.load(after)
    if before.resolve() == after.resolve():
        raise UsageError(f"{_path(before)} is named twice; name the run before a change and the run after it")
    compared, found = comparison.examine(*runs)
    pairs = pairs_of(found, runs, (before.resolve().name, after.resolve().name))
    return msgspec.structs.replace(compared, notes=(*compared.notes, *_log(before.resolve().parent, pairs)))


def _log(out: Path, pairs: Sequence[Pair]) -> Iterator[str]:
    """Append to the calibration log and say so; where that fails, the comparison still counts."""
    if not pairs:
        return
    try:
        new = store.append_pairs(out, pairs)
    except StepprobeError as error:
        yield str(error)
        return
    said = f"{new} predictions with their outcome" if new else "nothing new (this pair was there)"
    yield f"{said} written to {_path(out / CALIBRATION)}; all of them: stepprobe report --calibration"


def calibration(out: Path) -> Report:
    """Report on all predictions of a folder of run folders that have an outcome.

    Raises:
        UsageError: The folder or its log cannot be read.
        NotObserved: There is no outcome yet.
    """
    from stepprobe.analysis.outcome import log

    return log.calibration(store.read_pairs(out), _path(out))


def _seal(folder: Path, status: str, *, patience_s: float = 0) -> list[str]:
    """Seal a run unless it still goes on; return why that could not be done."""
    if store.read_manifest(folder).state == "sealed":
        return []
    if living := script.living(folder, patience_s=patience_s):
        return [f"process {living[0]} of this run still lives; when it has ended: stepprobe report {_path(folder)}"]
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


def _derive(evidence: Evidence, folder: Path) -> Report:
    """Derive the report, and say how far the script came when it shows no step."""
    try:
        derived = probes.load(evidence.probe).derive(evidence)
    except NotObserved:
        return _not_measured(evidence, folder, stages.explain(evidence))
    if (
        (evidence.command == "run" or (evidence.command == "profile" and not _has_any(evidence, derived)))
        and derived.verdict == "not measured"
        and all(control.ok for control in derived.controls)
    ):
        derived = msgspec.structs.replace(derived, headline=stages.explain(evidence))
    return msgspec.structs.replace(derived, run=_path(folder))


def _has_any(evidence: Evidence, derived: Report) -> bool:
    """Return whether a profile saw a step or made an experiment."""
    return bool(derived.ledger) or any(name.startswith("experiments-") for name in evidence.files)


def _not_measured(evidence: Evidence, folder: Path, reason: str) -> Report:
    return msgspec.structs.replace(unmeasured(evidence, reason), run=_path(folder))


def _tell(error: Exception) -> str:
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


def _path(folder: Path) -> str:
    return store.as_text(str(folder.resolve()))


def _as_json(derived: Report) -> str:
    from stepprobe.report import json as report_json

    return report_json.render(derived)


def _write(folder: Path, derived: Report) -> list[str]:
    """Write the report files; return what went wrong, since a report that is on screen must not be lost over it."""
    from stepprobe.report import html

    documents, problems = {store.REPORT_JSON: _as_json(derived)}, []
    try:
        documents[store.REPORT_HTML] = html.render(derived)
    except Exception as error:  # the other forms of the report, and the script's exit code, still count
        problems.append(f"{store.REPORT_HTML} was not drawn: {_tell(error)}")
    try:
        store.write_report(folder, documents)
    except StepprobeError as error:
        problems.append(str(error))
    return problems


def _differences(kept: object, derived: object, place: str = "") -> Iterator[str]:
    """Name each place where two JSON values differ."""
    if isinstance(kept, dict) and isinstance(derived, dict):
        for key in [*kept, *(key for key in derived if key not in kept)]:
            yield from _differences(kept.get(key), derived.get(key), f"{place}.{key}" if place else key)
    elif isinstance(kept, list) and isinstance(derived, list) and len(kept) == len(derived):
        for number, pair in enumerate(zip(kept, derived, strict=True)):
            yield from _differences(*pair, f"{place}[{number}]")
    elif not _same(kept, derived):
        yield f"{place}: kept {_short(kept)}, derived {_short(derived)}"


def _same(kept: object, derived: object) -> bool:
    if isinstance(kept, float) and isinstance(derived, float):
        return math.isclose(kept, derived, rel_tol=_ULPS)
    return type(kept) is type(derived) and kept == derived


def _short(value: object) -> str:
    text = json.dumps(value, ensure_ascii=True)
    return text if len(text) <= 60 else f"{text[:57]}…"


def _leaves(value: object) -> Iterator[object]:
    if isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _leaves(part)
    else:
        yield value
