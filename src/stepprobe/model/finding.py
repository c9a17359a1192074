"""Findings and remedies: what costs time, what to change, what that should gain, what it did gain."""

import msgspec

from stepprobe.model.estimate import Estimate


class Remedy(msgspec.Struct, frozen=True, kw_only=True):
    """A change and what it should gain."""

    action: str
    """The change, as an instruction: the line or the setting."""
    predicted: Estimate | None
    """ms per step that the change should save, a ceiling where it is a ``bound``; None where nothing can be told."""
    fixed: Estimate | None = None
    """ms per step of the same accounts that the change cannot touch (the term that Amdahl's law asks for)."""
    outcome: Estimate | None = None
    """ms per step that it did save, measured on the same instrument; None until a comparison has measured it."""
    name: str = ""
    """Stable dotted name, for example ``"loader.workers"``, by which a comparison looks whether the change was made."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that costs time, with the observations that show it."""

    kind: str
    """Stable dotted name, for example ``"data.slow"``."""
    title: str
    """One sentence for a person."""
    where: str
    """``file:line`` or module that causes it; empty where it has no single place."""
    cost: Estimate
    """ms per step."""
    share: float
    """``cost`` over the wall time of the step, 0..1."""
    accounts: tuple[str, ...] = ()
    """Accounts in which this cost lies; a renderer puts the finding beside the first."""
    remedies: tuple[Remedy, ...] = ()
    """Changes, best first."""
    cites: tuple[str, ...] = ()
    """Figures and evidence records that show it."""
    overlaps: tuple[int, ...] = ()
    """Numbers, from 1, of findings of the same report in which the same time may lie: their costs do not add up."""


class Control(msgspec.Struct, frozen=True, kw_only=True):
    """A question with a known answer, asked before the unknown one."""

    name: str
    expected: float
    recovered: float
    ok: bool
    tolerance: float = 0.0
    """Relative error up to which it counts as recovered."""
