"""``torch.distributed``: a collective called by the script is a wait for the other ranks."""

import sys
from types import ModuleType

from stepprobe.instruments.attach.clock import INDEX
from stepprobe.instruments.attach.observer import Observer
from stepprobe.instruments.attach.patches import booked, same

COLLECTIVES = (
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_object",
    "all_reduce",
    "barrier",
    "broadcast",
    "broadcast_object_list",
    "reduce_scatter_tensor",
)


def attach(observer: Observer, c10d: ModuleType) -> None:
    """Book the collectives as synchronisation, under both names by which scripts know them."""
    book = booked(observer.clock, observer.gate, INDEX["sync"])
    package = sys.modules.get("torch.distributed")
    for name in COLLECTIVES:
        if observer.patches.replace(c10d, name, book) and hasattr(package, name):
            observer.patches.replace(package, name, same(getattr(c10d, name)))


ON_IMPORT = {"torch.distributed.distributed_c10d": attach}
