"""When a job has ended: foretell the masks of its first batches, in a process of its own with a limit of time."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from stepprobe.model.first_calls import UNTOLD

_ASKED_S = os.environ.get("STEPPROBE_MASKS_S", "")
LIMIT_S = float(_ASKED_S) if _ASKED_S.isascii() and _ASKED_S.isdigit() else 12.0
"""Time after which the user gets the report without; a slow machine may give more by ``STEPPROBE_MASKS_S``."""
_PACKAGE = Path(__file__).parents[2]
_FORETELL = "import sys; from stepprobe.instruments.attention.in_run import main; main(sys.argv[1])"


def foretell(
    folder: Path, *, asked: bool = True, without: str = "", limit_s: float = LIMIT_S, command: Sequence[str] = ()
) -> None:
    """Add the masks of the kept batches to a run folder, or why there are none; never fail.

    Args:
        folder: A run folder that is not sealed yet.
        asked: Whether anybody wants that; without, nothing is done.
        without: The option of the user's own command that leaves it out; empty where it has none.
        limit_s: Seconds after which the process that does it is ended.
        command: That process, for tests.
    """
    try:
        if asked and any(folder.glob("batches-*.jsonl")) and (told := _untold(folder, without, limit_s, command)):
            reason, again = told
            (folder / UNTOLD).write_text(json.dumps({"reason": reason[:500], "again": again}))
        for part in folder.glob("masks-*.part"):
            part.unlink()
    except OSError:
        return


def _untold(folder: Path, without: str, limit_s: float, command: Sequence[str]) -> tuple[str, bool] | None:
    """Return why masks were not foretold, and whether another try could do it; None when they were."""
    for package in ("torch", "transformers"):
        if find_spec(package) is None:
            return f"{package} is not installed where stepprobe is", True
    command = command or (sys.executable, "-c", _FORETELL, str(folder))
    _say(without, limit_s)
    try:
        ended = subprocess.run(
            command, env=_environment(), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            timeout=limit_s, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"it took longer than {limit_s:g} s", True
    except KeyboardInterrupt:
        return "it was interrupted", True
    except OSError as error:
        return f"it could not be started: {error.strerror}", True
    said = ended.stderr.decode("utf-8", "replace").strip().splitlines()
    return (said[-1] if said else f"its process ended with {ended.returncode}", False) if ended.returncode else None


def _say(without: str, limit_s: float) -> None:
    """Say why the report is not there yet."""
    leaves_out = f"; {without} leaves this out" if without else ""
    with contextlib.suppress(OSError, ValueError):  # nobody reads it
        if sys.stderr is not None:
            sys.stderr.write(
                "stepprobe: the job has ended; foretelling the attention masks of its first batches "
                f"(at most {limit_s:g} s{leaves_out})\n"
            )
            sys.stderr.flush()


def _environment() -> dict[str, str]:
    """Return our environment, with this stepprobe before any other, and without a device or a network."""
    paths = [str(_PACKAGE), *filter(None, [os.environ.get("PYTHONPATH")])]
    quiet = {"CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1", "PYTHONSAFEPATH": "1", "PYTHONWARNINGS": "ignore"}
    return {**os.environ, **quiet, "PYTHONPATH": os.pathsep.join(paths)}
