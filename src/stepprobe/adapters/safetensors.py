"""safetensors: saving is a checkpoint, whoever asks for it."""

from types import ModuleType

from stepprobe.instruments.attach.clock import INDEX
from stepprobe.instruments.attach.observer import Observer
from stepprobe.instruments.attach.patches import swallowed


def attach(observer: Observer, safetensors: ModuleType) -> None:
    """Book saving, with all that happens inside."""
    for name in ("save_file", "save_model"):
        observer.patches.replace(safetensors, name, swallowed(observer.clock, observer.gate, INDEX["checkpoint"]))


ON_IMPORT = {"safetensors.torch": attach}
