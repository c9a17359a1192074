"""A job or another subject observed: its evidence kept, derived and reported on."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import msgspec

from stepprobe import probes, store
from stepprobe.errors import EvidenceError
from stepprobe.launch import command, masks, script
from stepprobe.model.evidence import Evidence
from stepprobe.model.harness import Subject
from stepprobe.session.kept import Result, as_path, derive, not_measured, seal, tell, write

_PATIENCE_S = 6  # a data worker whose parent was killed looks for it every 5 s, then ends


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
    command.check(argv, planned.command)
    script.check_machine(planned)
    folder = store.create(out, command.name(argv), planned, tuple(argv))
    subject = script.Script(argv=tuple(argv), folder=folder, planned=planned, output_to_stderr=output_to_stderr)
    evidence = probes.load(planned.probe).measure(subject)
    if not folder.is_dir():
        gone = (
            f"{as_path(folder)} was removed while the script ran, and all that was observed with it; name a place that "
            "the script leaves alone: --out DIR"
        )
        return Result(report=not_measured(evidence, folder, gone), folder=folder, status=evidence.status, problems=())
    without = "run --no-masks" if planned.command == "run" else ""
    masks.foretell(folder, asked=foretells and evidence.status == "finished", without=without)
    if living := tuple(script.living(folder, patience_s=_PATIENCE_S)):
        evidence = msgspec.structs.replace(evidence, files=script.written(folder))
    try:
        problems = seal(folder, evidence.status)
        if store.read_manifest(folder).state == "sealed":
            evidence = store.load(folder)
    except EvidenceError as error:  # the script has touched the run folder
        problems = [str(error)]
    try:
        derived = derive(evidence, folder, living=living)
    except Exception as error:  # the script has run: its evidence and its exit code still count
        derived = not_measured(evidence, folder, tell(error))
    problems += write(folder, derived)
    return Result(report=derived, folder=folder, status=evidence.status, problems=tuple(problems), living=living)


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
    problems = seal(folder, evidence.status)
    derived = msgspec.structs.replace(derived, run=as_path(folder))
    problems += write(folder, derived)
    return Result(report=derived, folder=folder, status=evidence.status, problems=tuple(problems))
