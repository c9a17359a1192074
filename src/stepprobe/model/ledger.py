"""The ledger: every nanosecond of a step booked exactly once, or no ledger."""

from collections.abc import Mapping

import msgspec

from stepprobe.errors import LedgerError
from stepprobe.model.accounts import BOOKED
from stepprobe.model.estimate import Estimate


class Ledger(msgspec.Struct, frozen=True, kw_only=True):
    """Accounts that sum to the wall time, in integer nanoseconds.

    Raises:
        LedgerError: An account is unknown or negative, or the sum is not the wall time.
    """

    wall_ns: int
    """Wall time of the step (or of all steps that were added up)."""
    accounts_ns: Mapping[str, int]
    """Nanoseconds by account; accounts without time may be absent."""

    def __post_init__(self) -> None:
        for account, spent_ns in self.accounts_ns.items():
            if account not in BOOKED:
                raise LedgerError(f"unknown account {account!r}: the evidence is damaged or of a newer stepprobe")
            if spent_ns < 0:
                raise LedgerError(f"account {account!r} holds {spent_ns} ns: time cannot be negative")
        if closure_ns := self.wall_ns - sum(self.accounts_ns.values()):
            raise LedgerError(f"the ledger does not close: {closure_ns} ns of {self.wall_ns} ns are not booked")


class LedgerRow(msgspec.Struct, frozen=True, kw_only=True):
    """One account as a person reads it."""

    account: str
    """Name from ``model.accounts.ACCOUNTS``."""
    time: Estimate
    """ms per optimizer step."""
    share: float
    """Part of the step's wall time, 0..1."""
    off_cpu: float | None
    """Part of this account's time in which the thread was off the CPU, 0..1; None where it was not observed."""
    where: str = ""
    """The hottest line of this account, ``file:line function``; empty where nothing was sampled."""
