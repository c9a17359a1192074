"""A model that somebody holds, or a config, under the batch that their loop passes to it."""

from collections.abc import Mapping
from typing import Any

from stepprobe.errors import UsageError
from stepprobe.instruments.attach.first_calls import unwrapped
from stepprobe.instruments.attention import models
from stepprobe.instruments.attention.configs import Config, need_transformers, read_config, version_notes
from stepprobe.instruments.attention.observed import Way, observe
from stepprobe.instruments.attention.subject import as_evidence
from stepprobe.model.evidence import Evidence

_LABELS = ("labels", "num_items_in_batch")


def observe_given(model: Any, batch: Mapping[str, Any], card: str = "") -> Evidence:
    """Return the capture of a model or config under a batch.

    Args:
        model: A model, plain or wrapped by PEFT, DDP or ``torch.compile``; a config; a path or a cached hub id.
        batch: The arguments of one call, tensors on any device; labels are left out.
        card: Card for which kernels are predicted.

    Raises:
        UsageError: It is none of these, or the batch holds no ``input_ids``.
        NotObserved: transformers is missing, or the class cannot be built.
    """
    import torch

    version = need_transformers()
    if not isinstance(batch, Mapping) or not isinstance(batch.get("input_ids"), torch.Tensor):
        raise UsageError("the batch has no input_ids; pass the arguments of one call as the loop does")
    passed = {name: value for name, value in batch.items() if name not in _LABELS and value is not None}
    inputs = {  # a copy: XGLM of transformers 4 adds to the positions that it is given
        name: value.to("cpu", copy=True) if isinstance(value, torch.Tensor) else value for name, value in passed.items()
    }
    with models.quiet():
        read, attention, way, name = _read(model)
        capture = observe(read, "given", inputs, attention, way, (*version_notes(version), *read.notes))
    return as_evidence(capture, name, card)


def _read(model: Any) -> tuple[Config, str | None, Way, str]:
    """Return the config, the attention implementation, how it is run, and what to call it."""
    import torch
    from transformers import PretrainedConfig

    if isinstance(model, PretrainedConfig):
        return Config(model), getattr(model, "_attn_implementation_internal", None), Way(), type(model).__name__
    if isinstance(model, torch.nn.Module):
        inner, compiled = unwrapped(model)
        config = getattr(inner, "config", None)
        if not isinstance(config, PretrainedConfig):
            raise UsageError(f"{type(inner).__name__} has no config of transformers; its masks cannot be foretold")
        way = Way(compiled=compiled, checkpointing=_recomputes(inner))
        return Config(config), getattr(config, "_attn_implementation", None), way, type(inner).__name__
    if isinstance(model, str):
        return read_config(model), None, Way(), model
    raise UsageError(f"a {type(model).__name__} is neither a model nor a config nor a path; pass one of them")


def _recomputes(model: Any) -> bool:
    """Tell whether a model recomputes activations; the property that says so has another name in each version."""
    return any(getattr(module, "gradient_checkpointing", False) for module in model.modules())
