"""TRL: its trainers override parts of HF's, and its fused loss runs in kernels of its own."""

import inspect
from types import ModuleType

from stepprobe.instruments.attach.clock import INDEX
from stepprobe.instruments.attach.observer import Observer
from stepprobe.instruments.attach.patches import booked


def attach_sft(observer: Observer, sft: ModuleType) -> None:
    """Book what ``SFTTrainer`` overrides."""
    observer.patches.replace(sft.SFTTrainer, "compute_loss", observer.part("other"))
    observer.patches.replace(sft.SFTTrainer, "log", booked(observer.clock, observer.gate, INDEX["logging"]))
    observer.facts["framework"] = "trl"


def attach_kernels(observer: Observer, kernels: ModuleType) -> None:
    """Book the public functions of a kernel module as loss."""
    for name, member in list(vars(kernels).items()):
        if inspect.isfunction(member) and member.__module__ == kernels.__name__ and not name.startswith("_"):
            observer.patches.replace(kernels, name, observer.part("loss"))


ON_IMPORT = {
    "trl.trainer.sft_trainer": attach_sft,
    "trl.kernels.chunked_logprob": attach_kernels,
    "trl.kernels.logprob_entropy": attach_kernels,
}
