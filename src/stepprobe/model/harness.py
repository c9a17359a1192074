"""Protocols of what is observed. Probes speak to these; who implements them is decided in ``session``."""

from typing import Protocol

from stepprobe.model.evidence import Evidence


class Subject(Protocol):
    """Something that can be observed: a script, a model config, a dataset, a trace."""

    def observe(self) -> Evidence:
        """Observe once and return the raw evidence.

        Raises:
            NotObserved: Nothing could be seen.
        """
        ...
