"""A run folder read again: its report, and what other commands take from it."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from stepprobe import store
from stepprobe.errors import EvidenceError
from stepprobe.session.kept import Result, as_path, derive, seal, write

if TYPE_CHECKING:
    from stepprobe.analysis.ledger.recorded import Recorded


def report(folder: Path) -> Result:
    """Derive the report of a run folder again and write it there.

    A run that was killed is sealed by this; one whose processes still live is read as it stands and left open.

    Raises:
        EvidenceError: The folder or a file in it is missing or damaged.
    """
    problems = seal(folder, "interrupted")
    evidence = store.load(folder)
    derived = derive(evidence, folder)
    problems += write(folder, derived)
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
        raise EvidenceError(f"{as_path(folder)} holds the columns of {len(held)} traces; --perfetto writes one")
    columns = decode_columns(*held[0])
    write_perfetto(paths[0], columns.header, segments(columns), target)
