"""The harness of HF Trainer and of what is derived from it: the trainer's own, possibly overridden, training_step."""

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from stepprobe.instruments.experiments.captured import IGNORED, CapturedBatches, replaced


class TrainerHarness:
    """Calls ``training_step`` on other batches (a ``model.harness.Harness``)."""

    source = "Trainer.training_step"

    def __init__(
        self,
        torch: ModuleType,
        trainer: Any,
        training_step: Callable[..., Any],
        call: tuple[Any, ...],
        batches: CapturedBatches,
    ) -> None:
        self._torch = torch
        self._trainer = trainer
        self._step = training_step
        self._model, _, *rest = call
        self._num_items = rest[0] if rest else None
        self._rest = tuple(rest[1:])
        self._takes_items = bool(rest)
        self._batches = batches

    @property
    def others(self) -> list[Any]:
        """Objects that a step may count in."""
        accelerator = getattr(self._trainer, "accelerator", None)
        return [self._trainer, accelerator]

    def batch(self, rows: int, length: int, real: Sequence[int] | None = None) -> Any:
        """Return a batch of the run's own tokens.

        Raises:
            ValueError: It cannot have this shape, and why.
        """
        return self._batches.batch(rows, length, real)

    def step(self, batch: Any) -> Any:
        """Run the trainer's training_step; return its loss."""
        return self._run(batch, self._items_in(batch))

    def again(self, batch: Any) -> Any:
        """Run the trainer's training_step as the script just did, with the number of items that it was given."""
        return self._run(batch, self._num_items)

    def _run(self, batch: Any, num_items: Any) -> Any:
        inputs = replaced(batch, {})  # a trainer may take labels out of what it is given
        items = (num_items,) if self._takes_items else ()
        return self._step(self._model, inputs, *items, *self._rest)

    def root(self) -> Any:
        """Return the model that the trainer calls."""
        return self._model

    def trainable_modules(self) -> list[Any]:
        """Return the model."""
        return [self._model]

    def _items_in(self, batch: Any) -> Any:
        """Return the labelled tokens of a step whose micro-batches are all like this one, as the trainer counts."""
        labels = batch.get("labels") if hasattr(batch, "get") else None
        if self._num_items is None or labels is None or labels.dim() < 2:
            return self._num_items
        micro_steps = getattr(self._trainer, "current_gradient_accumulation_steps", 1) or 1
        count = (labels[..., 1:] != IGNORED).sum() * micro_steps
        return count.to(self._num_items.device) if hasattr(self._num_items, "device") else int(count)
