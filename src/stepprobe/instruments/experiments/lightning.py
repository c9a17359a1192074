"""The harness of a Lightning job: the strategy's ``training_step`` of the user's module, then its backward."""

from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

from stepprobe.instruments.experiments.captured import CapturedBatches, replaced


class LightningHarness:
    """Calls ``LightningModule.training_step`` on other batches (a ``model.harness.Harness``)."""

    source = "LightningModule.training_step"

    def __init__(
        self,
        torch: ModuleType,
        strategy: Any,
        training_step: Callable[..., Any],
        batches: CapturedBatches,
        arguments: tuple[Any, ...],
    ) -> None:
        self._torch = torch
        self._strategy = strategy
        self._step = training_step
        self._batches = batches
        self._arguments = arguments

    @property
    def others(self) -> list[Any]:
        """Objects that a step may count in."""
        return [getattr(self._strategy.lightning_module, "trainer", None)]

    def batch(self, rows: int, length: int, real: Sequence[int] | None = None) -> Any:
        """Return a batch of the run's own tokens.

        Raises:
            ValueError: It cannot have this shape, and why.
        """
        return self._batches.batch(rows, length, real)

    def step(self, batch: Any) -> Any:
        """Run training_step and backward as automatic optimization does; return the loss."""
        module = self._strategy.lightning_module
        loop: Any = getattr(getattr(module.trainer, "fit_loop", None), "epoch_loop", None)
        results = getattr(loop, "_results", None)
        if results is not None:
            loop._results = _empty(results)  # what the step logs is not the training's
        try:
            with self._torch.enable_grad():
                output = self._step(replaced(batch, {}), *self._arguments)
                self._strategy.backward(self.loss_of(output), None)
                return self.loss_of(output).detach()
        finally:
            if results is not None:
                loop._results = results

    def loss_of(self, output: Any) -> Any:
        """Return what backward is called on, from what training_step returned."""
        trainer = self._strategy.lightning_module.trainer
        loss: Any = output.get("loss") if isinstance(output, Mapping) else output
        return loss / (getattr(trainer, "accumulate_grad_batches", 1) or 1)

    def root(self) -> Any:
        """Return the user's module."""
        return self._strategy.lightning_module

    def trainable_modules(self) -> list[Any]:
        """Return the user's module."""
        return [self._strategy.lightning_module]


def _empty(results: Any) -> Any:
    """Return a collection of logged values that holds none, and knows the batch that the other knows."""
    empty = type(results)(results.training)
    vars(empty).update(vars(results))
    return empty
