"""TRL: its trainers override parts of HF's, and its fused loss runs in kernels of its own."""

import inspect
from types import ModuleType

from stepprobe.instruments.attach.clock import INDEX
from stepprobe.instruments.attach.observer import Observer
from stepprobe.instruments.attach.patches import booked


def attach_sft(observer: Observer, sft: ModuleType) -> None:
    """Book what ``SFTTrainer`` overrides."""
    for name in ("training_step", "compute_loss"):
        observer.patches.replace(sft.SFTTrainer, name, observer.part("other"))
    observer.patches.replace(sft.SFTTrainer, "log", booked(observer.clock, observer.gate, INDEX["logging"]))
    observer.facts["framework"] = "trl"


def attach_kernels(observer: Observer, kernels: ModuleType) -> None:
    """Book the public functions and autograd functions of a kernel module as loss."""
    loss = observer.part("loss")
    for name, member in list(vars(kernels).items()):
        if name.startswith("_") or getattr(member, "__module__", "") != kernels.__name__:
            continue
        if inspect.isfunction(member):
            observer.patches.replace(kernels, name, loss)
        elif inspect.isclass(member) and hasattr(member, "apply"):
            observer.patches.replace(member, "apply", loss, inherited=True)


ON_IMPORT = {
    "trl.trainer.sft_trainer": attach_sft,
    "trl.kernels.chunked_logprob": attach_kernels,
    "trl.kernels.logprob_entropy": attach_kernels,
}
