"""A model under a batch, observed: its attention calls at real size, and its twin."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from stepprobe.errors import UsageError
from stepprobe.instruments.attention import batches, models, twin
from stepprobe.instruments.attention.configs import Config, need_transformers, read_config, version_notes
from stepprobe.instruments.attention.layers import declared_layers
from stepprobe.instruments.attention.lean import leave_out
from stepprobe.instruments.environment import environment
from stepprobe.instruments.uncollected import uncollected
from stepprobe.model.attention import CAPTURE, Batch, Capture, Influence, write_capture
from stepprobe.model.evidence import Evidence

OPTIONS = ("compile", "remote-code")
LENGTH = 4096


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked of a model."""

    model: str
    length: int = LENGTH
    size: int = 2
    padding: str = "none"
    made: bool = False
    """Make a batch of this shape also where ``model`` is a run that kept its own."""
    card: str = ""
    command: str = "mask"
    passes_cache_off: bool = True
    """Whether the loop passes ``use_cache=False``, as HF Trainer and TRL do."""
    options: tuple[str, ...] = ()
    """``compile``, ``remote-code``, or the name of an attention implementation."""

    @property
    def attention(self) -> str | None:
        """The attention implementation that was asked for."""
        return next((word for word in self.options if word not in OPTIONS), None)


class Way(msgspec.Struct, frozen=True, kw_only=True):
    """How the job runs the model, as far as masks depend on it."""

    compiled: bool = False
    """Under ``torch.compile``."""
    checkpointing: bool = False
    """With activations recomputed."""


PLAIN = Way()


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
            return self._observed(need_transformers())

    def _observed(self, version: str) -> Evidence:
        asked = self.question
        run = (Path(asked.model) / "manifest.json").is_file()
        if run and not asked.made:
            return self._of_run()
        with models.quiet():
            read = _config_of_run(asked.model) if run else read_config(asked.model, "remote-code" in asked.options)
            length, clamped = clamp(read.text, asked.length)
            batch = batches.make(asked.padding, asked.size, length)
            given = {"use_cache": False} if asked.passes_cache_off else {}
            notes = (*version_notes(version), *read.notes, *clamped)
            capture = observe(
                read, asked.padding, batch | given, asked.attention, Way(compiled="compile" in asked.options), notes
            )
        return as_evidence(capture, asked.model, asked.card, asked.command)

    def _of_run(self) -> Evidence:
        """Return the capture of a batch that a run folder kept."""
        from stepprobe.instruments.attention.in_run import of_folder

        with models.quiet():
            capture, device = of_folder(Path(self.question.model))
        evidence = as_evidence(capture, self.question.model, self.question.card, self.question.command)
        return msgspec.structs.replace(evidence, options={"device": device, **evidence.options})


def _config_of_run(folder: str) -> Config:
    from stepprobe.instruments.attention.in_run import config_of, kept_calls

    return config_of(kept_calls(Path(folder))[0].model)


class Observed:
    """A config's model without storage, to be watched under one batch or several.

    Args:
        read: The config.
        attention: Attention implementation; None lets transformers choose.
        way: How the job runs the model.
        dtype: Name of the element type of floats; bfloat16 when empty.

    Raises:
        UsageError: The attention implementation is not known or not installed.
        NotObserved: The class cannot be built from this config.
    """

    def __init__(self, read: Config, attention: str | None = None, way: Way = PLAIN, dtype: str = "") -> None:
        import torch

        self._read, self._way = read, way
        self._model = models.build(read, attention, getattr(torch, dtype, None) if dtype else None)
        if way.checkpointing:
            self._model.gradient_checkpointing_enable()
        self._attention = _chosen(self._model)
        self._position_kind = models.position_kind(self._model)
        mixers, _ = leave_out(self._model)
        self._slow = models.slow_parts(self._model, mixers)
        self._twins: dict[object, tuple[Influence, ...]] = {}

    def capture(self, kind: str, inputs: Mapping[str, Any], notes: tuple[str, ...] = ()) -> Capture:
        """Return what the model does with a batch.

        Args:
            kind: What the batch is called.
            inputs: The batch as the loop passes it.
            notes: What has been said already.
        """
        batch = batches.describe(kind, inputs)
        if batch.use_cache is None and getattr(self._read.text, "use_cache", None) is False:
            batch = msgspec.structs.replace(batch, use_cache=False)
        seen = _watched(self._model, inputs, self._way.compiled)
        return Capture(
            model_type=str(getattr(self._read.config, "model_type", "")),
            model_class=type(self._model).__name__,
            attention=self._attention,
            compiled=self._way.compiled,
            parameters=models.parameters(self._model),
            batch=batch,
            layers=declared_layers(self._read.text),
            twin=self._twin(batch, inputs),
            slow=self._slow,
            positions=models.positions(self._read.text),
            position_kind=self._position_kind,
            vocabulary=models.whole(self._read.text, "vocab_size"),
            notes=(*notes, *seen.pop("notes", ())),
            **seen,
        )

    def _twin(self, batch: Batch, inputs: Mapping[str, Any]) -> tuple[Influence, ...]:
        """Ask the twin for what the batch does in small, with the loop's word about the cache; once for each kind."""
        given = {name: value for name, value in inputs.items() if name == "use_cache"}
        kind = twin.small_kind(batch)
        key = (kind, given.get("use_cache"), "use_cache" in given)
        if key not in self._twins:
            self._twins[key] = twin.observe_twin(
                self._read.text, self._attention, kind, given, self._way.checkpointing, type(self._model)
            )
        return self._twins[key]


def observe(
    read: Config,
    kind: str,
    inputs: Mapping[str, Any],
    attention: str | None = None,
    way: Way = PLAIN,
    notes: tuple[str, ...] = (),
) -> Capture:
    """Return what a model of this config does with a batch (see ``Observed``)."""
    return Observed(read, attention, way).capture(kind, inputs, notes)


def _watched(model: Any, inputs: Mapping[str, Any], compiled: bool) -> dict[str, Any]:
    """Return the fields of a capture that one forward pass gives, or why it failed."""
    from stepprobe.instruments.attention.calls import watch

    try:
        calls = watch(model, inputs, compiled)
    except Exception as error:  # whatever the model raises is the answer
        return {"failed": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}
    notes = tuple(
        f"{count} values of floats were asked for ({name}) and answered with zero; the calls may depend on them."
        for name, count in calls.reads.counts.items()
    )
    return {"calls": tuple(calls.made), "masks": tuple(calls.caught.masks.values()), "notes": notes}


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


def _chosen(model: Any) -> str:
    text = model.config.get_text_config()
    return str(getattr(text, "_attn_implementation", None) or getattr(model.config, "_attn_implementation", None))


def _versions() -> dict[str, str]:
    import torch
    import transformers

    plain = re.sub(r"[^\w.+-]", "", str(torch.__version__))
    device = f"{torch.cuda.get_device_name(0)}" if torch.cuda.is_available() else "no CUDA device"
    return {"torch": plain, "transformers": str(transformers.__version__), "device": device}
