"""A run folder's life: made, filled, sealed, read back, and its report written."""

import os
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from stepprobe.errors import EvidenceError, UsageError
from stepprobe.model.evidence import Evidence
from stepprobe.store.files import MANIFEST, PART, StoredFile, as_text, describe, describe_file, read, replace, writing
from stepprobe.store.manifest import (
    MANIFEST_SCHEMA,
    Manifest,
    changed,
    check_name,
    read_manifest,
    write_manifest,
)

REPORT_JSON = "report.json"
REPORT_HTML = "report.html"

_DERIVED = (REPORT_JSON, REPORT_HTML)
_EVIDENCE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")  # how instruments name files; anything else is not evidence


def create(out: Path, name: str, evidence: Evidence, argv: tuple[str, ...]) -> Path:
    """Make a run folder for a measurement that is about to begin.

    Args:
        out: Folder of run folders; made when missing.
        name: What the run is called, any text.
        evidence: What is known before the first observation; its files are not written.
        argv: The command that is observed.

    Raises:
        UsageError: The folder cannot be made or written.
    """
    stem = f"{time.strftime('%Y%m%d-%H%M%S')}-{evidence.command}-{_plain(name)}"
    try:
        out.mkdir(parents=True, exist_ok=True)
        folder = _make_unique(out.resolve(), stem)
        manifest = Manifest(
            schema=MANIFEST_SCHEMA,
            state="running",
            probe=evidence.probe,
            command=evidence.command,
            subject=as_text(evidence.subject),
            argv=tuple(as_text(word) for word in argv),
            environment=_as_texts(evidence.environment),
            options=_as_texts(evidence.options),
            status="interrupted",
        )
        write_manifest(folder, manifest)
    except OSError as error:
        raise UsageError(
            f"cannot write a run folder under {as_text(str(out))}: {error.strerror}; "
            "choose a place that can be written with --out DIR"
        ) from error
    return folder


def keep(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write evidence that was gathered outside the folder into it, before it is sealed.

    Raises:
        StepprobeError: A file cannot be written.
    """
    for name in files:
        check_name(name)

    def write() -> None:
        for name, content in files.items():
            replace(folder / name, content)

    writing(folder, write)


def seal(folder: Path, status: str) -> None:
    """Hash all evidence of a folder and note how its subject ended. Sealing again changes nothing.

    Raises:
        EvidenceError: The folder cannot be read.
        StepprobeError: The manifest cannot be written; the evidence stays as it is.
    """
    manifest = read_manifest(folder)
    if manifest.state == "sealed":
        return
    files = {name: describe_file(folder, name) for name in _evidence_names(folder)}
    writing(folder, lambda: write_manifest(folder, changed(manifest, state="sealed", status=status, files=files)))


def load(folder: Path) -> Evidence:
    """Read evidence back; when it is sealed, each file must still have its hash.

    A folder that was never sealed (the run was killed, or still goes on) is read as it is, status ``interrupted``.

    Raises:
        EvidenceError: The manifest or a file is missing, damaged or of a newer schema.
    """
    manifest = read_manifest(folder)
    if manifest.state == "sealed":
        names = [name for name in manifest.files if name not in _DERIVED]
        files = {name: _read_sealed(folder, name, manifest.files[name]) for name in names}
    else:
        files = {name: read(folder, name) for name in _evidence_names(folder)}
    return Evidence(
        probe=manifest.probe,
        command=manifest.command,
        subject=manifest.subject,
        environment=manifest.environment,
        files=files,
        status=manifest.status,
        options=manifest.options,
    )


def write_report(folder: Path, documents: Mapping[str, str]) -> None:
    """Write ``report.json`` and ``report.html`` (by file name) beside the evidence, replacing earlier ones.

    Raises:
        EvidenceError: The folder's manifest cannot be read.
        StepprobeError: A file cannot be written; the evidence is untouched.
    """
    manifest = read_manifest(folder)
    contents = {name: documents[name].encode() for name in _DERIVED if name in documents}

    def write() -> None:
        for name, content in contents.items():
            replace(folder / name, content)
        if manifest.state == "sealed":
            described = {name: describe(content) for name, content in contents.items()}
            write_manifest(folder, changed(manifest, files={**manifest.files, **described}))

    writing(folder, write)


def read_sealed(folder: Path) -> dict[str, bytes]:
    """Return every file that the manifest holds, the report among them, each with its hash checked.

    Raises:
        EvidenceError: The folder is not sealed, a file was changed, removed or added, or there is no report.
    """
    manifest = read_manifest(folder)
    again = f"stepprobe report {as_text(str(folder))}"
    if manifest.state != "sealed":
        raise EvidenceError(
            f"{as_text(folder.name)} is not sealed: the run was killed or still goes on; first: {again}"
        )
    if REPORT_JSON not in manifest.files:
        raise EvidenceError(f"{as_text(folder.name)} holds no {REPORT_JSON}; write it with: {again}")
    if added := [name for name in _evidence_names(folder) if name not in manifest.files]:
        raise EvidenceError(f"{as_text(added[0])} was added after the run was sealed; move it out of the folder")
    return {name: _read_sealed(folder, name, stored) for name, stored in manifest.files.items()}


def newest(out: Path) -> Path:
    """Return the run folder under ``out`` that was made last: by the time in its name, then by its manifest.

    Raises:
        UsageError: There is none.
    """
    try:
        manifests = [
            (path.parent.name[:15], path.stat().st_mtime_ns, path.parent) for path in out.glob(f"*/{MANIFEST}")
        ]
    except OSError as error:
        raise UsageError(f"cannot read {as_text(str(out))}: {error.strerror}") from error
    if not manifests:
        raise UsageError(f"no run folder under {as_text(str(out))}; name one, or make one: stepprobe run -- CMD")
    return max(manifests)[2]


def _as_texts(values: Mapping[str, str]) -> dict[str, str]:
    return {as_text(name): as_text(value) for name, value in values.items()}


def _plain(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.]+", "-", name)[:40].strip("-.") or "unnamed"


def _make_unique(out: Path, stem: str) -> Path:
    number = 1
    while True:
        folder = out / (stem if number == 1 else f"{stem}-{number}")
        try:
            folder.mkdir()
        except FileExistsError:
            number += 1
        else:
            return folder


def _evidence_names(folder: Path) -> Iterator[str]:
    try:
        with os.scandir(folder) as entries:
            names = sorted(entry.name for entry in entries if not entry.is_dir(follow_symlinks=False))
    except OSError as error:
        raise EvidenceError(f"cannot read {as_text(str(folder))}: {error.strerror}") from error
    ours = (name for name in names if _EVIDENCE.fullmatch(name) and not name.endswith(PART))
    return (name for name in ours if name not in (MANIFEST, *_DERIVED))


def _read_sealed(folder: Path, name: str, stored: StoredFile) -> bytes:
    content = read(folder, name)
    if describe(content) != stored:
        raise EvidenceError(
            f"{as_text(name)} is not what was sealed ({len(content)} bytes, {stored.bytes} sealed): "
            "it was changed afterwards; restore it from a copy, or run again"
        )
    return content
