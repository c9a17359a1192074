"""Real tiny trainings, bare and under `stepprobe run`. A finished job is kept for the whole test session."""

import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from filelock import FileLock

EXAMPLES = Path(__file__).parents[2] / "examples"
TIMEOUT_S = 300
STEPS = 24
"""Enough for a trace in the middle; one number, so that tests share a finished job."""


@dataclass(frozen=True)
class Job:
    """A process that ended, and the run folder it left when it was attached to."""

    command: tuple[str, ...]
    returncode: int
    stdout: str
    stderr: str
    folder: Path | None

    @property
    def losses(self) -> list[str]:
        """Losses as the script printed them, digit by digit, on either stream, sorted (ranks print in any order)."""
        return sorted(re.findall(r"(?:rank \d+ )?(?:step \d+|final training) loss \S+", self.stdout + self.stderr))

    @property
    def document(self) -> dict:
        """The one JSON object of `--json`."""
        assert self.returncode == 0, self.stderr[-4000:]
        return json.loads(self.stdout)

    @property
    def figures(self) -> dict[str, float]:
        """Value by figure name."""
        return {name: figure["value"] for name, figure in self.document["figures"].items()}


@pytest.fixture(scope="session")
def environment() -> dict[str, str]:
    """Environment of every job: one CPU thread, no hub, quiet libraries."""
    # PYTHONUNBUFFERED would let the lines of two ranks run into each other
    left_out = ("PYTEST", "STEPPROBE", "PYTHONUNBUFFERED")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
    return {
        **kept,
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_VERBOSITY": "error",
        "TOKENIZERS_PARALLELISM": "false",
        "NO_COLOR": "1",
        "STEPPROBE_MASKS_S": "120",  # foretelling masks must not depend on how busy the machine is
    }


@pytest.fixture(scope="session")
def jobs_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where finished jobs are kept; the workers of pytest-xdist share it."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder = shared / "jobs"
    folder.mkdir(exist_ok=True)
    return folder


def example_command(script: str, *options: str, ranks: int = 0) -> list[str]:
    """Command line of an example script; with `ranks` through PyTorch's launcher."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)] if ranks else []
    return [sys.executable, *launcher, str(EXAMPLES / script), *options]


def run_once(folder: Path, command: list[str], environment: dict[str, str], attached: bool, attempt: int = 1) -> Job:
    """Run a command, or give back the job that ran it before in this session; a new attempt runs it anew."""
    place = folder / f"{hashlib.sha256(chr(0).join(command).encode()).hexdigest()[:16]}-{attempt}"
    with FileLock(f"{place}.lock"):
        if not (place / "job.json").is_file():
            place.mkdir(exist_ok=True)
            ended = subprocess.run(
                command, cwd=place, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
            )
            record = {"returncode": ended.returncode, "stdout": ended.stdout, "stderr": ended.stderr}
            (place / "job.json").write_text(json.dumps(record))
        record = json.loads((place / "job.json").read_text())
    runs = sorted(place.glob("stepprobe-runs/*/manifest.json"))
    assert len(runs) == attached or record["returncode"] != 0, f"{len(runs)} run folders: {record['stderr'][-4000:]}"
    return Job(command=tuple(command), folder=runs[0].parent if runs else None, **record)


@pytest.fixture(scope="session")
def bare(jobs_folder: Path, environment: dict[str, str]) -> Callable[..., Job]:
    """`bare("sft_trainer.py", "--steps", "6")` runs an example as it is; `ranks=2` starts it on two ranks."""

    def run_bare(script: str, *options: str, ranks: int = 0) -> Job:
        return run_once(jobs_folder, example_command(script, *options, ranks=ranks), environment, attached=False)

    return run_bare


@pytest.fixture
def attached(jobs_folder: Path, environment: dict[str, str], request: pytest.FixtureRequest) -> Callable[..., Job]:
    """Like `bare`, under `stepprobe run --json`; `run_options` go to `run`, for example `("--steps", "4")`."""
    attempt = getattr(request.node, "execution_count", 1)  # of a test that is tried again

    def run_attached(script: str, *options: str, ranks: int = 0, run_options: tuple[str, ...] = ()) -> Job:
        command = example_command(script, *options, ranks=ranks)
        command = [sys.executable, "-m", "stepprobe", "run", "--json", *run_options, "--", *command]
        return run_once(jobs_folder, command, environment, attached=True, attempt=attempt)

    return run_attached
