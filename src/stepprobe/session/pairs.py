"""Two run folders compared, and the log of what such pairs said of the predictions."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from stepprobe import store
from stepprobe.errors import StepprobeError, UsageError
from stepprobe.model.calibration import CALIBRATION, Pair
from stepprobe.model.report import Report
from stepprobe.session.kept import as_path


def compare(before: Path, after: Path, again: Sequence[Path] = ()) -> Report:
    """Compare two run folders by account; hold the first to what it promised, and log that beside the run folders.

    The folders are only read.

    Args:
        before: The run before a change.
        after: The run after it.
        again: Further runs of the training before.

    Raises:
        UsageError: Two of them are one run, or one cannot be compared.
        EvidenceError: A folder or a file in it is missing or damaged.
        NotObserved: One of them holds no step.
    """
    from stepprobe.analysis.outcome import comparison
    from stepprobe.analysis.outcome.log import pairs_of

    folders = [before, after, *again]
    first, second, *others = (store.load(folder) for folder in folders)
    places = [folder.resolve() for folder in folders]
    for folder, place in zip(folders, places, strict=True):
        if places.count(place) > 1:
            repeats = ", and other runs as repeats" if again else ""
            raise UsageError(
                f"{as_path(folder)} is named twice; name the run before a change and the run after it{repeats}"
            )
    compared, found = comparison.examine(first, second, others)
    pairs = pairs_of(found, (first, second), (before.resolve().name, after.resolve().name))
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
    said = (
        f"{new} prediction{'' if new == 1 else 's'} with their outcome" if new else "nothing new (this pair was there)"
    )
    yield f"{said} written to {as_path(out / CALIBRATION)}; all of them: stepprobe report --calibration"


def calibration(out: Path) -> Report:
    """Report on all predictions of a folder of run folders that have an outcome.

    Raises:
        UsageError: The folder or its log cannot be read.
        NotObserved: There is no outcome yet.
    """
    from stepprobe.analysis.outcome import log

    return log.calibration(store.read_pairs(out), as_path(out))
