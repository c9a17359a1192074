"""The run folder: raw evidence as it was written, a manifest that holds every file to its hash, and the report.

Evidence goes into the folder while the subject runs; ``seal`` hashes it afterwards, once. The report can be written
again at any time; sealed evidence never changes.
"""

import fcntl
import hashlib
import os
import re
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Literal

import msgspec

from stepprobe.errors import EvidenceError, StepprobeError, UsageError
from stepprobe.model.calibration import CALIBRATION, Pair, encode_pair, missing
from stepprobe.model.evidence import Evidence

MANIFEST_SCHEMA = 1
MANIFEST = "manifest.json"
REPORT_JSON = "report.json"
REPORT_HTML = "report.html"

_PART = ".part"  # a file that is still being written, before its rename
_DERIVED = (REPORT_JSON, REPORT_HTML)
_EVIDENCE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")  # how instruments name files; anything else is not evidence


class StoredFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file of the folder as it was when it was sealed."""

    sha256: str
    bytes: int


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a run folder holds. ``digest`` is the SHA-256 of this object with an empty digest."""

    schema: int
    state: Literal["running", "sealed"]
    probe: str
    command: str
    subject: str
    argv: tuple[str, ...]
    environment: dict[str, str]
    options: dict[str, str]
    status: str
    files: dict[str, StoredFile] = {}
    digest: str = ""


class _Schema(msgspec.Struct):
    schema: int


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
        _write_manifest(folder, manifest)
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
        _check_name(name)

    def write() -> None:
        for name, content in files.items():
            _replace(folder / name, content)

    _keep(folder, write)


def seal(folder: Path, status: str) -> None:
    """Hash all evidence of a folder and note how its subject ended. Sealing again changes nothing.

    Raises:
        EvidenceError: The folder cannot be read.
        StepprobeError: The manifest cannot be written; the evidence stays as it is.
    """
    manifest = read_manifest(folder)
    if manifest.state == "sealed":
        return
    files = {name: _describe_file(folder, name) for name in _evidence_names(folder)}
    _keep(folder, lambda: _write_manifest(folder, _changed(manifest, state="sealed", status=status, files=files)))


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
        files = {name: _read(folder, name) for name in _evidence_names(folder)}
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
            _replace(folder / name, content)
        if manifest.state == "sealed":
            described = {name: _describe(content) for name, content in contents.items()}
            _write_manifest(folder, _changed(manifest, files={**manifest.files, **described}))

    _keep(folder, write)


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


def read_manifest(folder: Path) -> Manifest:
    """Read and check the manifest of a run folder.

    Raises:
        EvidenceError: It is missing, half-written, changed, or of a newer schema.
    """
    data = _read(folder, MANIFEST)
    try:
        schema = msgspec.json.decode(data, type=_Schema).schema
        if schema > MANIFEST_SCHEMA:
            raise EvidenceError(
                f"{as_text(folder.name)} was written by a newer stepprobe (schema {schema}, this one reads up to "
                f"{MANIFEST_SCHEMA}); upgrade stepprobe"
            )
        manifest = msgspec.json.decode(data, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise EvidenceError(
            f"{as_text(folder.name)}/{MANIFEST} is damaged or half-written ({error}); the evidence beside it may be "
            "whole, but nothing vouches for it: restore the manifest from a copy, or run again"
        ) from error
    if manifest.digest != _digest(manifest):
        raise EvidenceError(
            f"{as_text(folder.name)}/{MANIFEST} was changed after it was written; restore it from a copy"
        )
    for name in manifest.files:
        _check_name(name)
    return manifest


def append_pairs(out: Path, pairs: Sequence[Pair]) -> int:
    """Append pairs to the calibration log of a folder of run folders, each once; return how many were new.

    Run folders are not touched. A lock is held from reading to writing, and each write is whole lines at the end, so
    comparisons at the same time lose and double nothing; a last line that was never finished is closed first.

    Raises:
        StepprobeError: The log cannot be written.
    """
    try:
        descriptor = os.open(
            out / CALIBRATION, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644
        )
        with open(descriptor, "r+b", buffering=0) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            content = file.readall()
            new = missing(content, pairs)
            if new:
                closing = b"\n" if content and not content.endswith(b"\n") else b""
                file.write(closing + b"".join(map(encode_pair, new)))
                os.fsync(file.fileno())
            return len(new)
    except OSError as error:
        raise StepprobeError(
            f"cannot write {as_text(str(out / CALIBRATION))}: {error.strerror}; the comparison is whole. "
            "Make the folder writable, then compare again"
        ) from error


def read_pairs(out: Path) -> bytes:
    """Return the calibration log of a folder of run folders; empty where there is none.

    Raises:
        UsageError: The folder or the log cannot be read.
    """
    try:
        if not out.is_dir():
            raise UsageError(f"{as_text(str(out))} is no folder; name the folder of run folders")
        descriptor = os.open(out / CALIBRATION, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise UsageError(f"cannot read {as_text(str(out / CALIBRATION))}: {error.strerror}") from error


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


def as_text(text: str) -> str:
    """Return text that can be encoded: what is no Unicode in a path or an argument is written as an escape."""
    return text.encode("utf-8", "backslashreplace").decode()


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
    ours = (name for name in names if _EVIDENCE.fullmatch(name) and not name.endswith(_PART))
    return (name for name in ours if name not in (MANIFEST, *_DERIVED))


def _check_name(name: str) -> None:
    if name != os.path.basename(name) or name in ("", ".", "..", MANIFEST) or "\0" in name:
        raise EvidenceError(f"the manifest names {name!r}, which is not a file of its own folder; it was changed")


def _read(folder: Path, name: str) -> bytes:
    with _opened(folder, name) as file:
        return file.read()


def _describe_file(folder: Path, name: str) -> StoredFile:
    """Hash a file piece by piece: evidence may be large."""
    with _opened(folder, name) as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return StoredFile(sha256=digest, bytes=file.tell())


@contextmanager
def _opened(folder: Path, name: str) -> Iterator[BufferedReader]:
    """Open a regular file of the folder; a link is not followed, since it could lead anywhere."""
    try:
        descriptor = os.open(folder / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise EvidenceError(f"{as_text(name)} in {as_text(folder.name)} is not a plain file")
            yield file
    except OSError as error:
        if name == MANIFEST and isinstance(error, FileNotFoundError | NotADirectoryError):
            raise EvidenceError(f"{as_text(str(folder))} is not a run folder: it holds no {MANIFEST}") from error
        raise EvidenceError(f"cannot read {as_text(name)} in {as_text(folder.name)}: {error.strerror}") from error


def _read_sealed(folder: Path, name: str, stored: StoredFile) -> bytes:
    content = _read(folder, name)
    if _describe(content) != stored:
        raise EvidenceError(
            f"{as_text(name)} is not what was sealed ({len(content)} bytes, {stored.bytes} sealed): "
            "it was changed afterwards; restore it from a copy, or run again"
        )
    return content


def _describe(content: bytes) -> StoredFile:
    return StoredFile(sha256=hashlib.sha256(content).hexdigest(), bytes=len(content))


def _changed(manifest: Manifest, **changes: object) -> Manifest:
    return msgspec.structs.replace(manifest, **changes)


def _digest(manifest: Manifest) -> str:
    return hashlib.sha256(msgspec.json.encode(_changed(manifest, digest=""), order="deterministic")).hexdigest()


def _write_manifest(folder: Path, manifest: Manifest) -> None:
    signed = _changed(manifest, digest=_digest(manifest))
    _replace(folder / MANIFEST, msgspec.json.format(msgspec.json.encode(signed), indent=1) + b"\n")


def _replace(path: Path, content: bytes) -> None:
    """Write by rename, so that a reader or a crash sees the old file or the new one, never half of it."""
    part = path.with_name(path.name + _PART)
    try:
        with open(part, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except OSError:
        part.unlink(missing_ok=True)
        raise


def _keep(folder: Path, write: Callable[[], None]) -> None:
    try:
        write()
    except OSError as error:
        raise StepprobeError(
            f"cannot write into {as_text(str(folder))}: {error.strerror}; the evidence there is kept. Make room, then: "
            f"stepprobe report {as_text(str(folder))} (or choose another place for the next run with --out DIR)"
        ) from error
