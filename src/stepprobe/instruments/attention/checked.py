"""A model and, if there is one, a dataset: what is asked before a job, as one subject."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from stepprobe.instruments.attention.subject import Model, Question
from stepprobe.model.evidence import Evidence
from stepprobe.model.lengths import Lengths, decode

MODEL = "model.json"
MASK_MOST = 1 << 17
"""Tokens at which masks are asked at the most where no length is given: longer ones look alike and take minutes."""


class _Lengths(Protocol):
    def observe(self) -> Evidence: ...


@dataclass(frozen=True, kw_only=True)
class Checked:
    """A model under the batches that a dataset makes (a ``model.harness.Subject``)."""

    question: Question
    """What is asked of the model."""
    config: bytes
    """The model's ``config.json``."""
    data: _Lengths | None = None
    max_length: int | None = None
    """Tokens after which rows of the dataset are cut; None cuts nothing."""
    decides_padding: bool = True
    """Nobody says how batches are padded: the dataset decides."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """Where the settings come from, as options of the evidence (``batch_size_from``)."""

    def observe(self) -> Evidence:
        """Count the dataset, then watch the model under the longest batch that it makes.

        Raises:
            UsageError: There is no such model or dataset, or one cannot be used as asked.
            NotObserved: One of them cannot be observed.
        """
        counted = self.data.observe() if self.data is not None else None
        question = self.question if counted is None else self._longest_batch(decode(counted.files))
        seen = Model(question).observe()
        files = {**seen.files, MODEL: self.config, **(counted.files if counted is not None else {})}
        asked = {
            "batch_size": str(question.size),
            "length": str(question.length),
            "max_length": str(self.max_length or ""),
            "padding": question.padding,
            "dtype": question.dtype,
            **self.sources,
        }
        subject = seen.subject if counted is None else f"{seen.subject}, {counted.subject}"
        return msgspec.structs.replace(
            seen, probe="check", command="check", subject=subject, files=files, options={**asked, **seen.options}
        )

    def _longest_batch(self, lengths: Lengths | None) -> Question:
        """Return the question at the longest row of the dataset, padded where its rows are of different lengths."""
        found = _row_lengths(lengths) if lengths is not None else []
        if not found:
            return self.question
        longest = max(2, min(max(found), self.max_length or MASK_MOST))  # one token has no mask to speak of
        uneven = min(found) < longest and self.question.size > 1
        padding = ("right" if uneven else "none") if self.decides_padding else self.question.padding
        return msgspec.structs.replace(self.question, length=longest, padding=padding)


def _row_lengths(lengths: Lengths) -> list[int]:
    """Return the different lengths that rows were seen to have, rows without a token left out."""
    known = (lengths.cells[:, 1], lengths.sample[:, 2], lengths.longest[:, 2])
    return sorted({int(one) for column in known for one in column if one > 0})
