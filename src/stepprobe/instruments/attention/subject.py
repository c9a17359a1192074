"""A model as a subject: what is asked of it, and the evidence that it gives."""

import re
from pathlib import Path
from typing import Any

import msgspec

from stepprobe.errors import UsageError
from stepprobe.instruments.attention import batches, models
from stepprobe.instruments.attention.configs import need_transformers, read_config, version_notes
from stepprobe.instruments.attention.in_run import config_of, model_of_folder, of_folder, way_of
from stepprobe.instruments.attention.observed import Observed, Way
from stepprobe.instruments.environment import environment
from stepprobe.instruments.uncollected import uncollected
from stepprobe.model.attention import CAPTURE, Capture, write_capture
from stepprobe.model.evidence import Evidence

OPTIONS = ("compile", "remote-code")
LENGTH = 4096


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked of a model."""

    model: str
    length: int = LENGTH
    size: int
    """Rows of a batch."""
    padding: str = "none"
    made: bool = False
    """Make a batch of this shape also where ``model`` is a run that kept its own."""
    card: str = ""
    command: str = "mask"
    dtype: str = ""
    """Element type in which the job computes; bfloat16, which is assumed, when empty."""
    dtype_from: str = "assumed"
    passes_cache_off: bool = True
    """Whether the loop passes ``use_cache=False``, as HF Trainer and TRL do."""
    options: tuple[str, ...] = ()
    """``compile``, ``remote-code``, or the name of an attention implementation."""

    @property
    def attention(self) -> str | None:
        """The attention implementation that was asked for."""
        return next((word for word in self.options if word not in OPTIONS), None)


class Model:
    """A config as a subject: ``observe`` builds it without weights and watches one forward pass."""

    def __init__(self, question: Question) -> None:
        self.question = question

    def observe(self) -> Evidence:
        """Return the capture.

        Raises:
            UsageError: There is no such model, or it cannot be built as asked.
            NotObserved: transformers is missing, or the class cannot be built.
        """
        asked = self.question
        if asked.padding not in batches.KINDS:
            raise UsageError(f"unknown padding {asked.padding!r}; there are: {', '.join(batches.KINDS)}")
        with uncollected():
            seen = self._observed(need_transformers())
        return msgspec.structs.replace(seen, options={**seen.options, "dtype_from": asked.dtype_from})

    def _observed(self, version: str) -> Evidence:
        asked = self.question
        run = (Path(asked.model) / "manifest.json").is_file()
        if run and not asked.made:
            return self._of_run()
        with models.quiet():
            attention, way = asked.attention, Way(compiled="compile" in asked.options)
            if run:
                model = model_of_folder(Path(asked.model))
                read, attention = config_of(model), attention or model.attention or None
                way = msgspec.structs.replace(way_of(model), compiled=way.compiled or model.compiled)
            else:
                read = read_config(asked.model, "remote-code" in asked.options)
            length, clamped = clamp(read.text, asked.length)
            batch = batches.make(asked.padding, asked.size, length)
            given = {"use_cache": False} if asked.passes_cache_off else {}
            notes = (*version_notes(version), *read.notes, *clamped)
            capture = Observed(read, attention, way, asked.dtype).capture(asked.padding, batch | given, notes)
        return as_evidence(capture, asked.model, asked.card, asked.command)

    def _of_run(self) -> Evidence:
        """Return the capture of a batch that a run folder kept."""
        with models.quiet():
            capture, device = of_folder(Path(self.question.model), self.question.dtype)
        evidence = as_evidence(capture, self.question.model, self.question.card, self.question.command)
        return msgspec.structs.replace(evidence, options={"device": device, **evidence.options})


def as_evidence(capture: Capture, subject: str, card: str, command: str = "mask") -> Evidence:
    """Return a capture as evidence."""
    return Evidence(
        probe="mask",
        command=command,
        subject=f"{subject} ({capture.model_class})",
        environment={**environment(), **_versions()},
        files={CAPTURE: write_capture(capture)},
        options={"card": card} if card else {},
    )


def clamp(text: Any, length: int) -> tuple[int, tuple[str, ...]]:
    """Return the length that the model's positions allow, and a note when that is less."""
    most = models.positions(text)
    if not most or length <= most:
        return length, ()
    return most, (f"Length {length:,} is more than the model's {most:,} positions; {most:,} was taken.",)


def _versions() -> dict[str, str]:
    import torch
    import transformers

    plain = re.sub(r"[^\w.+-]", "", str(torch.__version__))
    device = f"{torch.cuda.get_device_name(0)}" if torch.cuda.is_available() else "no CUDA device"
    return {"torch": plain, "transformers": str(transformers.__version__), "device": device}
