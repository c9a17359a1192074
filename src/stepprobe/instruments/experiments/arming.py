"""What the adapters tell: which frameworks the script has, so that its step is met where it really runs."""

import json
from collections.abc import Callable
from types import ModuleType
from typing import Any

from stepprobe.instruments.attach.observer import Observer
from stepprobe.instruments.attach.window import Window
from stepprobe.instruments.experiments.sources import LightningSource, RootSource, TrainerSource
from stepprobe.instruments.experiments.takeover import Settings, TakeOver


class Meeting:
    """Stands between the adapters and the taking over of one process."""

    def __init__(self, take_over: TakeOver) -> None:
        self.take_over = take_over
        self._torch: ModuleType | None = None

    def torch_imported(self, torch: ModuleType) -> None:
        """The script has imported torch."""
        self._torch = torch
        RootSource(self.take_over, torch)

    def trainer_begins(self, trainer: Any) -> None:
        """A trainer of transformers, or one derived from it, begins its loop."""
        if self._torch is not None and self.take_over.phase != "over":
            TrainerSource(self.take_over, self._torch, trainer)

    def strategy_found(self, training_step: Callable[..., Any]) -> Callable[..., Any]:
        """Return Lightning's ``Strategy.training_step`` with the taking over in it."""
        if self._torch is None:
            return training_step
        return LightningSource(self.take_over, self._torch).wrap(training_step)

    def script_ends(self) -> None:
        """The script ends by itself."""
        self.take_over.script_ends()

    def forked(self) -> None:
        """This process is a fork: it takes nothing over."""
        self.take_over.forked()


def arm(observer: Observer, folder: str, asked: str, window: "Window | None" = None) -> None:
    """Prepare the taking over.

    Args:
        observer: The observation of this process.
        folder: The run folder.
        asked: The JSON that ``stepprobe profile`` put into the environment.
        window: Steps that are traced before.

    Raises:
        ValueError: It is no such JSON.
        TypeError: It lacks a field, or has one too many.
    """
    observer.take_over = Meeting(TakeOver(observer, folder, Settings(**json.loads(asked)), window))
