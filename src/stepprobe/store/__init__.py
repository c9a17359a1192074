"""The run folder: raw evidence as it was written, a manifest that holds every file to its hash, and the report.

Evidence goes into the folder while the subject runs; ``seal`` hashes it afterwards, once. The report can be written
again at any time; sealed evidence never changes.
"""

from stepprobe.store.files import MANIFEST, as_text
from stepprobe.store.folder import (
    REPORT_HTML,
    REPORT_JSON,
    create,
    keep,
    load,
    newest,
    read_sealed,
    seal,
    write_report,
)
from stepprobe.store.manifest import read_manifest
from stepprobe.store.pairs import append_pairs, read_pairs

__all__ = [
    "MANIFEST",
    "REPORT_HTML",
    "REPORT_JSON",
    "append_pairs",
    "as_text",
    "create",
    "keep",
    "load",
    "newest",
    "read_manifest",
    "read_pairs",
    "read_sealed",
    "seal",
    "write_report",
]
