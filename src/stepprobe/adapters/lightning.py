"""Lightning: its strategy runs the user's ``training_step``; around it come callbacks, logging and evaluation."""

from collections.abc import Callable
from threading import get_ident
from types import ModuleType
from typing import Any

from stepprobe.instruments.attach.callers import unseen
from stepprobe.instruments.attach.clock import INDEX
from stepprobe.instruments.attach.observer import Observer
from stepprobe.instruments.attach.patches import booked, swallowed

PACKAGES = ("lightning.pytorch", "pytorch_lightning")
"""The two names under which it is installed."""
LOGGED = ("on_batch_start", "on_batch_end", "update_train_step_metrics", "update_train_epoch_metrics")


def attach_strategy(observer: Observer, strategy: ModuleType) -> None:
    """Book moving a batch and the user's training_step, and let that be taken over for experiments."""
    cls, take_over = strategy.Strategy, observer.take_over
    observer.patches.replace(cls, "batch_to_device", booked(observer.clock, observer.gate, INDEX["h2d"]))
    step = _forward(observer)
    met = step if take_over is None else lambda training_step: take_over.strategy_found(step(training_step))
    observer.patches.replace(cls, "training_step", met)


def _forward(observer: Observer) -> Callable[[Any], Any]:
    """Return a decorator that books the forward pass: where a module calls its parts one by one, none is a root."""
    clock, gate = observer.clock, observer.gate

    def decorate(training_step: Any) -> Any:
        @unseen(training_step)
        def forward(*args: Any, **kwargs: Any) -> Any:
            if not gate.open or get_ident() != clock.owner:
                return training_step(*args, **kwargs)
            depth = clock.push(observer.forward_part)
            try:
                return training_step(*args, **kwargs)
            finally:
                clock.pop_to(depth)

        return forward

    return decorate


def attach_hooks(observer: Observer, call: ModuleType) -> None:
    """Book the callbacks."""
    book = booked(observer.clock, observer.gate, INDEX["callbacks"])
    observer.patches.replace(call, "_call_callback_hooks", book)


def attach_results(observer: Observer, result: ModuleType) -> None:
    """Book what ``self.log`` does."""
    book = booked(observer.clock, observer.gate, INDEX["logging"])
    observer.patches.replace(result._ResultCollection, "log", book)


def attach_connector(observer: Observer, connector: ModuleType) -> None:
    """Book what becomes of the values that were logged."""
    book = booked(observer.clock, observer.gate, INDEX["logging"])
    for name in LOGGED:
        observer.patches.replace(connector._LoggerConnector, name, book)


def attach_evaluation(observer: Observer, evaluation: ModuleType) -> None:
    """Book validation with all that happens in it."""
    book = swallowed(observer.clock, observer.gate, INDEX["eval"])
    observer.patches.replace(evaluation._EvaluationLoop, "run", book)


_ATTACHED: dict[str, Callable[[Observer, ModuleType], None]] = {
    "strategies.strategy": attach_strategy,
    "trainer.call": attach_hooks,
    "trainer.connectors.logger_connector.result": attach_results,
    "trainer.connectors.logger_connector.logger_connector": attach_connector,
    "loops.evaluation_loop": attach_evaluation,
}
ON_IMPORT = {f"{package}.{name}": attach for package in PACKAGES for name, attach in _ATTACHED.items()}
