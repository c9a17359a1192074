"""Lightning: its strategy runs the user's ``training_step``; around it come callbacks, logging and evaluation."""

from collections.abc import Callable
from types import ModuleType

from stepprobe.instruments.attach.clock import INDEX
from stepprobe.instruments.attach.observer import Observer
from stepprobe.instruments.attach.patches import booked, swallowed

PACKAGES = ("lightning.pytorch", "pytorch_lightning")
"""The two names under which it is installed."""
LOGGED = ("on_batch_start", "on_batch_end", "update_train_step_metrics", "update_train_epoch_metrics")


def attach_strategy(observer: Observer, strategy: ModuleType) -> None:
    """Book moving a batch, and let the user's training_step be taken over for experiments."""
    cls = strategy.Strategy
    observer.patches.replace(cls, "batch_to_device", booked(observer.clock, observer.gate, INDEX["h2d"]))
    if observer.take_over is not None:
        observer.patches.replace(cls, "training_step", observer.take_over.strategy_found)


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
