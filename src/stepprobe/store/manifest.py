"""What a run folder holds, as it was sealed: a name and a hash for each file, and a digest over all of them."""

import hashlib
import os
from pathlib import Path
from typing import Literal

import msgspec

from stepprobe.errors import EvidenceError
from stepprobe.store.files import MANIFEST, StoredFile, as_text, read, replace

MANIFEST_SCHEMA = 1


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


def read_manifest(folder: Path) -> Manifest:
    """Read and check the manifest of a run folder.

    Raises:
        EvidenceError: It is missing, half-written, changed, or of a newer schema.
    """
    data = read(folder, MANIFEST)
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
        check_name(name)
    return manifest


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write a manifest with its digest."""
    signed = changed(manifest, digest=_digest(manifest))
    replace(folder / MANIFEST, msgspec.json.format(msgspec.json.encode(signed), indent=1) + b"\n")


def changed(manifest: Manifest, **changes: object) -> Manifest:
    """Return a manifest with other fields."""
    return msgspec.structs.replace(manifest, **changes)


def check_name(name: str) -> None:
    """Raise an EvidenceError for a name that is no file of evidence in the folder itself."""
    if name != os.path.basename(name) or name in ("", ".", "..", MANIFEST) or "\0" in name:
        raise EvidenceError(f"the manifest names {name!r}, which is not a file of its own folder; it was changed")


def _digest(manifest: Manifest) -> str:
    return hashlib.sha256(msgspec.json.encode(changed(manifest, digest=""), order="deterministic")).hexdigest()
