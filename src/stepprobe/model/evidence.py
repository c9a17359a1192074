"""Evidence: what a probe saw, raw, so that every claim can be derived from it again."""

from collections.abc import Mapping

import msgspec


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """Raw observations of one probe on one subject: named files and the environment."""

    probe: str
    """Name of the probe that derives a report from it."""
    command: str
    """The command that gathered it, for example ``"run"``."""
    subject: str
    """What was observed, for a person (the script's command line, a model, a dataset)."""
    environment: Mapping[str, str]
    """Versions, machine and settings at the time."""
    files: Mapping[str, bytes]
    """Raw bytes by file name, as they lie in the run folder."""
    status: str = "finished"
    """How the subject ended: ``finished``, ``exit 3``, ``signal 9``, ``interrupted`` (nobody saw the end)."""
    options: Mapping[str, str] = {}
    """Options of the command that the derivation needs (``warmup``)."""
