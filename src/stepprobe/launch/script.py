"""Runs a command as the shell would have, with our injection on its PYTHONPATH, and waits for it.

The parent must change nothing that the script could notice. Signals that it is sent alone it passes on; those that
the terminal, or anybody else, sends to the whole process group have reached the script already.
"""

import os
import resource
import shlex
import signal
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from stepprobe.errors import NotObserved, UsageError
from stepprobe.instruments.environment import environment
from stepprobe.instruments.experiments import quiet
from stepprobe.launch.command import check
from stepprobe.launch.witness import Witness
from stepprobe.model.evidence import Evidence

INJECT = Path(__file__).parent / "inject"
"""Holds the ``sitecustomize`` that arms a training process."""

_PASSED_ON = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGCONT,
    signal.SIGTSTP,
)
_JOB_CONTROL = (signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)
_WAITED_FOR = {*_PASSED_ON, *_JOB_CONTROL, signal.SIGCHLD}
_LOOK_AGAIN_S = 0.05
_RESET = (signal.SIGPIPE, signal.SIGXFSZ)  # Python ignores these two for itself; a shell's child does not


def plan(
    argv: Sequence[str],
    *,
    steps: int | None,
    warmup: str,
    trace: bool = True,
    experiments: Mapping[str, str] | None = None,
) -> Evidence:
    """Return what is known of a run before it begins: evidence without files.

    Args:
        argv: The command.
        steps: Measured steps after which the job ends; None observes to its end.
        warmup: Steps to leave out, a number or ``auto``.
        trace: Take a trace of a few steps.
        experiments: Options of the experiments that follow the measured steps; None makes none.
    """
    return Evidence(
        probe="ledger" if experiments is None else "profile",
        command="run" if experiments is None else "profile",
        subject=shlex.join(argv),
        environment=environment(),
        files={},
        status="interrupted",
        options={
            "steps": "" if steps is None else str(steps),
            "warmup": warmup,
            "trace": "on" if trace else "off",
            **(experiments or {}),
        },
    )


def check_machine(planned: Evidence) -> None:
    """Look whether a step could be measured now, where experiments are planned that are not to be made anyway.

    Raises:
        NotObserved: Others leave no room for one.
    """
    if planned.options.get("anyway") == "no" and (why := quiet.before_start()):
        raise NotObserved(f"not started: {why}")


@dataclass(frozen=True, kw_only=True)
class Script:
    """A user's command, to be run once and observed (a ``model.harness.Subject``)."""

    argv: tuple[str, ...]
    folder: Path
    """Where its processes write their evidence."""
    planned: Evidence
    """What ``plan`` returned for it."""
    output_to_stderr: bool = False
    """Send the script's standard output to standard error."""

    def observe(self) -> Evidence:
        """Run the command to its end and return what its processes wrote.

        Raises:
            UsageError: The command cannot be started.
        """
        program = check(self.argv, self.planned.command)
        if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:  # then a child's end could not be waited for
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        caller_mask = signal.pthread_sigmask(signal.SIG_BLOCK, _WAITED_FOR)
        try:
            child = self._start(program, caller_mask)
            witness = Witness(self.argv)
            try:
                status = _wait(child, witness)
            finally:
                witness.end()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, caller_mask)
        return msgspec.structs.replace(self.planned, files=written(self.folder), status=status)

    def _start(self, program: str, mask: Iterable[int]) -> int:
        try:
            return os.posix_spawn(
                program,
                self.argv,
                _child_environment(self.folder, self.planned),
                file_actions=[(os.POSIX_SPAWN_DUP2, 2, 1)] if self.output_to_stderr else [],
                setsigmask=mask,
                setsigdef=_RESET,
            )
        except OSError as error:
            raise UsageError(
                f"{program} cannot be started: {error.strerror}; check its first line (#!…), or name its interpreter: "
                f"stepprobe {self.planned.command} -- python {shlex.join(self.argv)}"
            ) from error


def _child_environment(folder: Path, planned: Evidence) -> dict[str, str]:
    inherited = os.environ.get("PYTHONPATH")
    options, profiles = planned.options, planned.probe == "profile"
    return {
        **os.environ,
        "PYTHONPATH": f"{INJECT}{os.pathsep}{inherited}" if inherited else str(INJECT),
        "STEPPROBE_RUN": str(folder),
        # the job of a profile ends behind its experiments, not behind its steps
        "STEPPROBE_STEPS": "" if profiles else options["steps"],
        "STEPPROBE_WARMUP": options["warmup"],
        "STEPPROBE_TRACE": options.get("trace", "on"),
        "STEPPROBE_PROFILE": _experiments(options) if profiles else "",
    }


def _experiments(options: Mapping[str, str]) -> str:
    """Return what the process of the training is told of the experiments, as JSON."""
    asked = {
        "steps": int(options["steps"]),
        "warmup": max(1, min(10, int(options["steps"]) // 4)),
        "harness": options["harness"],
        "keep_training": options["keep_training"] == "yes",
        "anyway": options["anyway"] == "yes",
        "seconds": float(options["seconds"]),
    }
    return msgspec.json.encode(asked).decode()


def _wait(child: int, witness: Witness) -> str:
    """Wait for the child, passing on what it would have received in our place; return how it ended."""
    while True:
        # with a limit: another thread of this process, which does not block SIGCHLD, may have taken it
        received = signal.sigtimedwait(_WAITED_FOR, _LOOK_AGAIN_S)
        if received is None:
            witness.rest()
        elif received.si_signo != signal.SIGCHLD:
            number = received.si_signo
            alone = not witness.saw(number)
            if alone and number in _PASSED_ON and received.si_code <= 0:  # sent by a process
                os.kill(child, number)
            continue
        pid, wait_status = os.waitpid(child, os.WNOHANG | os.WUNTRACED)
        if pid == 0:
            continue
        if not os.WIFSTOPPED(wait_status):
            return _status(os.waitstatus_to_exitcode(wait_status))
        if os.WSTOPSIG(wait_status) in _JOB_CONTROL:
            os.kill(os.getpid(), signal.SIGSTOP)  # the shell that waits for us must see its job stop


def _status(code: int) -> str:
    if code < 0:
        return f"signal {-code}"
    return f"exit {code}" if code else "finished"


def written(folder: Path) -> dict[str, bytes]:
    """Return what the processes of a run have written up to now, by file name."""
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.jsonl")) if path.is_file()}


def living(folder: Path, *, patience_s: float = 0) -> list[int]:
    """Return the processes of a run that still live and may still write (none where there is no ``/proc``).

    Args:
        folder: The run folder.
        patience_s: How long to wait for them to end, in seconds.
    """
    mark = b"STEPPROBE_RUN=" + os.fsencode(folder.resolve())
    deadline = time.monotonic() + patience_s
    while True:
        found = [int(path.parent.name) for path in Path("/proc").glob("[0-9]*/environ") if mark in _environ(path)]
        if not found or time.monotonic() >= deadline:
            return found
        time.sleep(_LOOK_AGAIN_S)


def _environ(path: Path) -> list[bytes]:
    try:
        return path.read_bytes().split(b"\0")
    except OSError:  # another user's, or gone
        return []


def mirror_exit(status: str) -> int:
    """End this process as the script ended: die of the same signal, or return the exit code to leave with."""
    how, _, number = status.partition(" ")
    if how != "signal":
        return int(number or 0)
    fatal = int(number)
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))  # no second core file
    if fatal not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(fatal, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {fatal})
    os.kill(os.getpid(), fatal)
    return 128 + fatal
