"""A model and, if there is one, a dataset: what is asked before a job, as one subject."""

from dataclasses import dataclass
from typing import Protocol

import msgspec

from stepprobe.instruments.attention.subject import Model, Question
from stepprobe.model.evidence import Evidence
from stepprobe.model.lengths import decode

MODEL = "model.json"


class _Lengths(Protocol):
    def observe(self) -> Evidence: ...


@dataclass(frozen=True, kw_only=True)
class Checked:
    """A model under the batches that a dataset makes (a ``model.harness.Subject``)."""

    question: Question
    """What is asked of the model; an empty ``padding`` lets the dataset decide."""
    config: bytes
    """The model's ``config.json``."""
    data: _Lengths | None = None

    def observe(self) -> Evidence:
        """Count the dataset, then watch the model under the longest batch that it makes.

        Raises:
            UsageError: There is no such model or dataset, or one cannot be used as asked.
            NotObserved: One of them cannot be observed.
        """
        counted = self.data.observe() if self.data is not None else None
        question, notes = self.question, {}
        if counted is not None and (lengths := decode(counted.files)) is not None and len(lengths.cells):
            longest = min(int(lengths.cells[:, 1].max()), question.length)
            uneven = int(lengths.cells[:, 1].min()) < longest
            padding = question.padding or ("right" if uneven and question.size > 1 else "none")
            question = msgspec.structs.replace(question, length=max(1, longest), padding=padding)
            notes = {"max_length": str(self.question.length)}
        seen = Model(msgspec.structs.replace(question, padding=question.padding or "none")).observe()
        files = {**seen.files, MODEL: self.config, **(counted.files if counted is not None else {})}
        asked = {"batch_size": str(question.size), "length": str(question.length), **notes}
        subject = seen.subject if counted is None else f"{seen.subject}, {counted.subject}"
        return msgspec.structs.replace(
            seen, probe="check", command="check", subject=subject, files=files, options={**asked, **seen.options}
        )
