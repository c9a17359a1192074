"""The questions. One file, one probe; the file's name is the probe's name.

A third party adds one through the entry-point group ``stepprobe.probes``.
"""

import importlib
import pkgutil
from collections.abc import Iterator
from importlib.metadata import entry_points
from typing import Protocol, cast

from stepprobe.errors import UsageError
from stepprobe.model.evidence import Evidence
from stepprobe.model.harness import Subject
from stepprobe.model.report import Report

ENTRY_POINTS = "stepprobe.probes"


class Probe(Protocol):
    """What a probe module offers."""

    SUMMARY: str
    """The question, in a few words."""

    def measure(self, subject: Subject) -> Evidence:
        """Observe the subject; interpret nothing."""
        ...

    def derive(self, evidence: Evidence) -> Report:
        """Turn evidence into a report: pure, so that it can be done again on a kept record."""
        ...

    def control(self) -> tuple[Evidence, dict[str, float]]:
        """Return evidence whose answer is known, and that answer by figure name."""
        ...


def names() -> list[str]:
    """Return the names of all probes, our own and those of third parties."""
    own = {module.name for module in pkgutil.iter_modules(__path__)}
    return sorted(own | {point.name for point in entry_points(group=ENTRY_POINTS)})


def load(name: str) -> Probe:
    """Import one probe.

    Raises:
        UsageError: No such probe.
    """
    if name in {module.name for module in pkgutil.iter_modules(__path__)}:
        return cast(Probe, importlib.import_module(f"stepprobe.probes.{name}"))
    for point in entry_points(group=ENTRY_POINTS, name=name):
        return cast(Probe, point.load())
    raise UsageError(f"no probe named {name!r}; there are: {', '.join(names())}")


def load_all() -> Iterator[tuple[str, Probe]]:
    """Import every probe in turn."""
    return ((name, load(name)) for name in names())
