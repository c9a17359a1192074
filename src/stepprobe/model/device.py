"""The accounts of the device ledger: every nanosecond of a step, on one device, in exactly one of them."""

BUSY = ("compute", "communication", "copy", "carried_over")
"""The device works. Where rows overlap, the first in this order counts: communication is what compute leaves bare."""

IDLE = ("idle.data", "idle.sync", "idle.launch", "idle.python", "idle.queued")
"""The device stands still, by cause."""

DEVICE_ACCOUNTS = (*BUSY, *IDLE)
"""All accounts, in the order in which they are shown."""

DEVICE_LABELS = {
    "compute": "device · compute",
    "communication": "device · communication, bare",
    "copy": "device · copies, bare",
    "carried_over": "device · carried over",
    "idle.data": "idle · host waits for data",
    "idle.sync": "idle · host synchronises",
    "idle.launch": "idle · host still launching",
    "idle.python": "idle · host in Python",
    "idle.queued": "idle · work queued, not running",
}
"""The words for each account that a person reads."""
