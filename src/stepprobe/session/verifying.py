"""A kept report held to its evidence: every hash, and every value derived again."""

import json
import math
from collections.abc import Iterator
from pathlib import Path

from stepprobe import store
from stepprobe.errors import AssertionFailed, EvidenceError
from stepprobe.model.estimate import exact
from stepprobe.model.report import Report
from stepprobe.session.kept import as_json, as_path, derive

_LOCAL = "run"  # where the folder lies is the one field of a report that does not come from evidence
_ULPS = 1e-12  # relative; another machine's math library may round the last bits otherwise


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
    derived = json.loads(as_json(derive(evidence, folder)))
    found = list(differences({**kept, _LOCAL: None}, {**derived, _LOCAL: None}))
    if found:
        more = f" (and {len(found) - 3} more)" if len(found) > 3 else ""
        raise AssertionFailed(
            f"the evidence does not give the report that is kept: {'; '.join(found[:3])}{more}. "
            "If another version of stepprobe wrote it, write it again with: stepprobe report RUN"
        )
    values = sum(1 for _ in _leaves(derived))
    return Report(
        command="verify",
        verdict="ok",
        title=evidence.subject,
        headline=f"{len(files):,} files have the hash they were sealed with; {values:,} values derive from them again.",
        figures={
            "verify.files": exact(len(files), "count", len(files), "counted"),
            "verify.values": exact(values, "count", values, "counted"),
        },
        environment=dict(evidence.environment),
        run=as_path(folder),
    )


def differences(kept: object, derived: object, place: str = "") -> Iterator[str]:
    """Name each place where two JSON values differ."""
    if isinstance(kept, dict) and isinstance(derived, dict):
        for key in [*kept, *(key for key in derived if key not in kept)]:
            yield from differences(kept.get(key), derived.get(key), f"{place}.{key}" if place else key)
    elif isinstance(kept, list) and isinstance(derived, list) and len(kept) == len(derived):
        for number, pair in enumerate(zip(kept, derived, strict=True)):
            yield from differences(*pair, f"{place}[{number}]")
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
