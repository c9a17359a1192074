"""Accelerate: moves batches to the device before the script sees them."""

from types import ModuleType

from stepprobe.instruments.attach.clock import INDEX
from stepprobe.instruments.attach.observer import Observer
from stepprobe.instruments.attach.patches import booked


def attach_data_loader(observer: Observer, data_loader: ModuleType) -> None:
    """Book the copy to the device."""
    observer.patches.replace(data_loader, "send_to_device", booked(observer.clock, observer.gate, INDEX["h2d"]))


ON_IMPORT = {"accelerate.data_loader": attach_data_loader}
