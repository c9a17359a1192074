"""A config's model without storage, watched under one batch or several: its attention calls at real size, its twin."""

from collections.abc import Mapping
from typing import Any

import msgspec

from stepprobe.instruments.attention import batches, models, twin
from stepprobe.instruments.attention.configs import Config
from stepprobe.instruments.attention.layers import declared_layers
from stepprobe.instruments.attention.lean import leave_out
from stepprobe.model.attention import Batch, Capture, Influence


class Way(msgspec.Struct, frozen=True, kw_only=True):
    """How the job runs the model, as far as masks depend on it."""

    compiled: bool = False
    """Under ``torch.compile``."""
    checkpointing: bool = False
    """With activations recomputed."""


PLAIN = Way()


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


def _chosen(model: Any) -> str:
    text = model.config.get_text_config()
    return str(getattr(text, "_attn_implementation", None) or getattr(model.config, "_attn_implementation", None))
