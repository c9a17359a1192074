"""Protocols of what is observed and of what is driven. Who implements them is decided elsewhere."""

from collections.abc import Sequence
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


class Harness(Protocol):
    """The user's own micro-step (forward, loss, backward), to be driven at chosen shapes and never re-implemented.

    An adapter makes one from what the script runs; a user may name one: ``--harness module:factory``, where
    ``factory()`` returns an object with these members.
    """

    def batch(self, rows: int, length: int, real: Sequence[int] | None = None) -> object:
        """Return a batch of the run's own tokens.

        Args:
            rows: Sequences.
            length: Slots of each row.
            real: Tokens of each row that are no padding; None for no padding at all.

        Raises:
            ValueError: The batch cannot have this shape; why, for a person.
        """
        ...

    def step(self, batch: object) -> object:
        """Run forward, loss and backward of one micro-step as the script does; return the loss (a 0-d tensor)."""
        ...

    def root(self) -> object:
        """Return the module whose forward the micro-step calls."""
        ...

    def trainable_modules(self) -> Sequence[object]:
        """Return the modules whose parameters and buffers the micro-step may touch."""
        ...
