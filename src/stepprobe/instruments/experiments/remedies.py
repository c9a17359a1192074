"""What can be switched in place and put back: the same micro-step with it on, beside the one without.

A switch is turned outside the clocks, before each repetition, and turned back after it, whatever happens in between.
A remedy that does not give the loss of the plain step is no remedy: the driver drops it.
"""

import dataclasses
import functools
from types import ModuleType
from typing import Any

from stepprobe.instruments.experiments.bench import Bench, Case, labelled_in
from stepprobe.instruments.experiments.description import sliding_window
from stepprobe.instruments.experiments.loss import IGNORED, model_with_loss, output_layer
from stepprobe.instruments.experiments.plan import Point

NONE = "none"
CHECKPOINTING_OFF = "checkpointing_off"
CHECKPOINTING_ON = "checkpointing_on"
LABELLED_ROWS = "labelled_rows"
BELOW_WINDOW = "below_window"
_ABSENT: Any = object()


class Switch:
    """Attributes that are set to turn something on, and what they held before."""

    def __init__(self, name: str, settings: list[tuple[Any, str, Any]]) -> None:
        self.name = name
        self._settings = settings
        self._before: list[tuple[Any, str, Any]] = []

    def on(self) -> None:
        """Set the attributes."""
        for owner, name, value in self._settings:
            self._before.append((owner, name, vars(owner).get(name, _ABSENT)))
            setattr(owner, name, value)

    def off(self) -> None:
        """Put back what was there, in the opposite order."""
        while self._before:
            owner, name, value = self._before.pop()
            if value is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, value)


class LabelledRows(Switch):
    """Lets the output layer see only the rows that have a label, and the loss take those."""

    def __init__(self, torch: ModuleType, model: Any, layer: Any) -> None:
        self._torch = torch
        self._model = model
        self._layer = layer
        self._plain = model.loss_function
        self._labels: Any = None
        self._handles: list[Any] = []
        super().__init__(LABELLED_ROWS, [(model, "_loss_function", self._loss)])

    def on(self) -> None:
        """Put the hooks in place."""
        super().on()
        self._handles = [
            self._model.register_forward_pre_hook(self._noting, with_kwargs=True),
            self._layer.register_forward_pre_hook(self._choosing),
        ]

    def off(self) -> None:
        """Take the hooks away."""
        super().off()
        for handle in self._handles:
            handle.remove()
        self._handles, self._labels = [], None

    def _noting(self, _: Any, __: Any, named: Any) -> None:
        self._labels = named.get("labels")

    def _choosing(self, _: Any, given: Any) -> Any:
        states, labels = given[0], self._labels
        if labels is None or tuple(states.shape[:2]) != tuple(labels.shape):
            self._labels = None
            return None
        labels = labels.to(states.device)
        kept = labels[:, 1:] != IGNORED
        self._labels = labels[:, 1:][kept]
        return (states[:, :-1][kept].unsqueeze(0), *given[1:])

    def _loss(self, logits: Any, labels: Any, vocab_size: int, num_items_in_batch: Any = None, **more: Any) -> Any:
        wanted = self._labels
        if wanted is None:
            return self._plain(logits, labels, vocab_size, num_items_in_batch=num_items_in_batch, **more)
        how = "mean" if num_items_in_batch is None else "sum"
        loss = self._torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), wanted, reduction=how)
        return loss if num_items_in_batch is None else loss / num_items_in_batch


def cases(bench: Bench, shape: Point) -> list[Case]:
    """Return the micro-step at a shape as it is, with each remedy that can be switched in place, and below a window.

    Rows one token shorter than a sliding window need no switch: a shape is all that this remedy changes.
    """
    root = bench.harness.root()
    switches: list[Switch | None] = [checkpointing(root, bench.torch), labelled_rows(root, bench, shape)]
    found = [_step(bench, shape, None), *(_step(bench, shape, switch) for switch in switches if switch)]
    rows, length = shape
    window = sliding_window(root)
    if window is not None and 1 < window <= length:
        found.append(dataclasses.replace(bench.step("remedy", rows, window - 1), variant=BELOW_WINDOW))
    return found


def _step(bench: Bench, shape: Point, switch: Switch | None) -> Case:
    plain = dataclasses.replace(bench.step("remedy", *shape), variant=NONE, gradient=bench.norm)
    return dataclasses.replace(plain, variant=switch.name, enter=switch.on, leave=switch.off) if switch else plain


def checkpointing(root: Any, torch: ModuleType) -> Switch | None:
    """Return the switch of gradient checkpointing of a Transformers model: off where it is on, else on; None if none.

    The layers' own attributes are set, as the model's methods do, but no hook is added.
    """
    models = [module for module in root.modules() if getattr(module, "supports_gradient_checkpointing", False)]
    layers = [module for module in root.modules() if isinstance(getattr(module, "gradient_checkpointing", None), bool)]
    if not models or not layers:
        return None
    used = [layer for layer in layers if layer.gradient_checkpointing]
    if used:
        return Switch(CHECKPOINTING_OFF, [(layer, "gradient_checkpointing", False) for layer in used])
    run = functools.partial(torch.utils.checkpoint.checkpoint, use_reentrant=False)
    settings: list[tuple[Any, str, Any]] = []
    for layer in layers:
        settings += [(layer, "gradient_checkpointing", True), (layer, "_gradient_checkpointing_func", run)]
    # a cache is of no use then, and the model would say so on standard error
    configs = {id(model.config): model.config for model in models if getattr(model.config, "use_cache", False)}
    return Switch(CHECKPOINTING_ON, [*settings, *((config, "use_cache", False) for config in configs.values())])


def labelled_rows(root: Any, bench: Bench, shape: Point) -> Switch | None:
    """Return the switch that leaves rows without a label out of output layer and loss; None where it cannot be.

    It needs a Transformers model whose loss is the causal one, and at the shape a row without a label.
    """
    rows, length = shape
    if labelled_in(bench.harness.batch(rows, length)) in (None, rows * (length - 1)):
        return None
    model, layer = model_with_loss(root), output_layer(root, bench.plan.vocabulary)
    if model is None or layer is None or not hasattr(type(model), "loss_function"):
        return None
    return LabelledRows(bench.torch, model, layer)
