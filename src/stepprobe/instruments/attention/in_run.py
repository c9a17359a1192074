"""The masks of a job that has ended, from the batches that were kept of it. Run in a process of its own."""

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from stepprobe.errors import NotObserved, StepprobeError, UsageError
from stepprobe.instruments.attention import models
from stepprobe.instruments.attention.configs import Config, need_transformers, read_raw
from stepprobe.instruments.attention.observed import Observed, Way
from stepprobe.instruments.uncollected import uncollected
from stepprobe.model.attention import KEPT, Capture, write_capture
from stepprobe.model.first_calls import FORETOLD, KeptCall, ModelLine, element_type, read_first_calls, values

MOST = 2
"""Calls whose masks are foretold: the time is the user's, who waits for the report."""


def main(folder: str) -> None:
    """Write a capture for each call of a run folder that is worth one; leave with a message where none can be made."""
    place = Path(folder)
    try:
        with uncollected(), models.quiet():
            for number, capture in foretell(worth(_kept(place))):
                part = place / (FORETOLD.format(number=number) + ".part")
                part.write_bytes(write_capture(capture))
                part.rename(part.with_suffix(""))
    except StepprobeError as error:
        sys.exit(str(error))


def of_folder(folder: Path, dtype: str = "") -> tuple[Capture, str]:
    """Return the capture of the first batch of a run that is worth one, and what it trained on.

    Args:
        folder: The run.
        dtype: Element type of floats; what the kept calls say when empty.

    Raises:
        UsageError: The run kept no batch.
        NotObserved: Its masks cannot be foretold here.
        EvidenceError: What it kept is damaged.
    """
    kept = worth(kept_calls(folder))
    for _, capture in foretell(kept[:1], dtype):
        return capture, kept[0].model.card
    raise AssertionError("each kept call is foretold")


def kept_calls(folder: Path) -> tuple[KeptCall, ...]:
    """Return the calls that a run kept, a call of its training among them.

    Raises:
        UsageError: There is none.
        EvidenceError: What it kept is damaged.
    """
    kept = _kept(folder)
    if not worth(kept):
        raise UsageError(
            f"{folder} is a run that kept no batch of a transformers model; name a model, a config.json or a hub id"
        )
    return kept


def model_of_folder(folder: Path) -> ModelLine:
    """Return the model that a run kept batches of.

    Raises:
        UsageError: It kept none.
        EvidenceError: What it kept is damaged.
    """
    return kept_calls(folder)[0].model


def _kept(folder: Path) -> tuple[KeptCall, ...]:
    return read_first_calls({path.name: path.read_bytes() for path in folder.glob("batches-*.jsonl")})


def worth(kept: tuple[KeptCall, ...]) -> tuple[KeptCall, ...]:
    """Return the calls to look at: of the first model, the one whose attention was counted first, then unlike ones."""
    same = [one for one in kept if one.call.model == kept[0].call.model and one.call.training]
    ordered = sorted(same, key=lambda one: (one.call.attended is None, one.number))
    distinct = {json.dumps(_shape(one), sort_keys=True): one for one in reversed(ordered)}
    return tuple(one for one in ordered if one in distinct.values())[:MOST]


def _shape(one: KeptCall) -> dict[str, Any]:
    return {name: [told.shape, told.rows, told.value] for name, told in one.call.arguments.items()}


def foretell(kept: tuple[KeptCall, ...], dtype: str = "") -> Iterator[tuple[int, Capture]]:
    """Yield the capture of each call with its number, in an element type or, when that is empty, in their own.

    Raises:
        NotObserved: The model's class is not to be had here as it was there, or what masks depend on was not kept.
    """
    if not kept:
        return
    model = kept[0].model
    observed = Observed(config_of(model), model.attention or None, way_of(model), dtype or element_type(kept[0])[0])
    said = ("The batch is one that the job passed, without its text.",)
    for one in kept:
        yield one.number, observed.capture(KEPT, inputs_of(one), said)


def way_of(model: ModelLine) -> Way:
    """Return how the job ran its model."""
    return Way(compiled=model.compiled, checkpointing=model.checkpointing)


def config_of(model: ModelLine) -> Config:
    """Return the config that the job's model had.

    Raises:
        NotObserved: It cannot be had here.
    """
    here = need_transformers()
    if not model.known:
        raise NotObserved(f"{model.name} is not one of transformers' own classes; only those are built here")
    if not model.config:
        raise NotObserved(f"the config of {model.name} was too long to be kept")
    raw = json.loads(model.config)
    there = str(raw.get("transformers_version") or here)
    if there != here:
        raise NotObserved(
            f"the job ran with transformers {there} and stepprobe has {here}; install stepprobe where the job runs"
        )
    return read_raw(raw)


def inputs_of(one: KeptCall) -> dict[str, Any]:
    """Return the arguments of a kept call as tensors, ids of ones in place of the text.

    Raises:
        NotObserved: Masks depend on something that was not kept.
    """
    import torch

    told: Mapping[str, Any] = one.call.arguments
    lost = [f"{name} ({argument.cut})" for name, argument in told.items() if argument.cut]
    if (mask := told.get("attention_mask")) is not None and mask.shape is None:
        lost.append(f"attention_mask ({mask.kind})")
    if lost:
        raise NotObserved(f"the batch passes what was not kept: {', '.join(lost)}")
    if "input_ids" not in told or told["input_ids"].shape is None:
        raise NotObserved("the model was called without input_ids")
    inputs: dict[str, Any] = {"input_ids": torch.ones(told["input_ids"].shape, dtype=torch.long)}
    for name, argument in told.items():
        if argument.rows is not None:
            flat = torch.tensor([values(row) for row in argument.rows], dtype=getattr(torch, argument.kind))
            inputs[name] = flat.reshape(argument.shape)
        elif argument.value is not None:
            inputs[name] = bool(argument.value) if argument.kind == "bool" else argument.value
    return inputs
