"""The device ledger of many steps: a column for each quantity, since a trace may hold very many of them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from stepprobe.errors import LedgerError
from stepprobe.model.device import DEVICE_ACCOUNTS, IDLE

if TYPE_CHECKING:
    from stepprobe.model.trace import Ints

QUANTITIES = ("wall", "launched", "communicated", "hidden", "head", "tail")
"""Columns beside the accounts; ``DeviceStep`` says what they are."""


class DeviceStep(msgspec.Struct, frozen=True, kw_only=True):
    """One step on one device, in ns."""

    step: str
    device: str
    wall_ns: int
    accounts_ns: dict[str, int]
    launched_ns: int
    """Union of the rows that this step launched, whenever they ran."""
    communication_ns: int
    """Union of communication in the step."""
    hidden_ns: int
    """Part of it that compute runs beside."""
    head_ns: int
    """From the step's start to the first row in it."""
    tail_ns: int
    """From the last row that the step launched to the step's end; negative: the device ran on after it."""


class DeviceSteps(msgspec.Struct, frozen=True, kw_only=True):
    """The ledger of steps on one device.

    Raises:
        LedgerError: The accounts of a step do not sum to its wall time.
    """

    device: str
    """Its name; empty for the steps of several."""
    columns: dict[str, bytes]
    """ns of each step by account or other quantity, little-endian 8-byte integers."""

    def __post_init__(self) -> None:
        import numpy as np

        wrong = self.column("wall").copy()
        below = np.zeros(len(wrong), bool)
        for account in DEVICE_ACCOUNTS:
            spent = self.column(account)
            wrong -= spent
            below |= spent < 0
        for place in np.flatnonzero((wrong != 0) | below)[:1].tolist():
            step = f"step {place + 1} of {len(wrong)} on device {self.device}"
            raise LedgerError(f"{step} does not close: {wrong[place]} ns of {self.column('wall')[place]} ns")

    def __len__(self) -> int:
        return len(self.columns["wall"]) // 8

    def column(self, name: str) -> "Ints":
        """Return one quantity of every step, in ns."""
        import numpy as np

        return np.frombuffer(self.columns[name], "<i8")

    @property
    def idle(self) -> "Ints":
        """How long the device stood still in each step, in ns."""
        spent: Ints = sum(self.column(account) for account in IDLE)  # type: ignore[assignment]
        return spent

    def steps(self, names: Sequence[str]) -> Iterator[DeviceStep]:
        """Yield the steps one by one, each with its name."""
        columns = {name: self.column(name) for name in (*QUANTITIES, *DEVICE_ACCOUNTS)}
        for place, name in enumerate(names):
            found = {column: int(values[place]) for column, values in columns.items()}
            yield DeviceStep(
                step=name,
                device=self.device,
                wall_ns=found["wall"],
                accounts_ns={account: found[account] for account in DEVICE_ACCOUNTS},
                launched_ns=found["launched"],
                communication_ns=found["communicated"],
                hidden_ns=found["hidden"],
                head_ns=found["head"],
                tail_ns=found["tail"],
            )


def booked(device: str, columns: "Mapping[str, Ints]") -> DeviceSteps:
    """Return the ledger that these columns make.

    Raises:
        LedgerError: It does not close.
    """
    kept = {name: values.astype("<i8", copy=False).tobytes() for name, values in columns.items()}
    return DeviceSteps(device=device, columns=kept)


def together(ledgers: Iterable[DeviceSteps], device: str = "") -> DeviceSteps:
    """Return the steps of several ledgers as one."""
    found = list(ledgers)
    names = (*QUANTITIES, *DEVICE_ACCOUNTS)
    return DeviceSteps(device=device, columns={name: b"".join(one.columns[name] for one in found) for name in names})
