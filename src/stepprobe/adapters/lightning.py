"""Lightning: its strategy runs the user's ``training_step``."""

from types import ModuleType

from stepprobe.instruments.attach.observer import Observer


def attach_strategy(observer: Observer, strategy: ModuleType) -> None:
    """Let the user's training_step be taken over for experiments; a plain observation needs nothing of Lightning."""
    if observer.take_over is not None:
        observer.patches.replace(strategy.Strategy, "training_step", observer.take_over.strategy_found)


ON_IMPORT = {
    "lightning.pytorch.strategies.strategy": attach_strategy,
    "pytorch_lightning.strategies.strategy": attach_strategy,
}
"""The two names under which it is installed."""
