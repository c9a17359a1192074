"""What shows that a change was made, in words; or why the evidence cannot tell who did it."""

from collections.abc import Callable, Sequence

import msgspec

from stepprobe.analysis.ledger.process import Process
from stepprobe.analysis.outcome.gains import LESS, Gains
from stepprobe.model.accounts import LABELS
from stepprobe.model.finding import Finding, Remedy

NOT_SAID = (
    *("loader_batch_size", "loader_prefetch", "per_device_train_batch_size", "device", "framework", "optimizer"),
    *("max_length", "logging_steps", "eval_steps", "save_steps"),
)
"""Settings that say nothing where they are absent or zero.

A sampler of the user's own may make the batches, and evidence of an earlier version does not hold all of them."""


class Undecided(msgspec.Struct, frozen=True):
    """Something changed that a remedy would have changed, and so would something else."""

    why: str


Sign = str | Undecided
"""What shows that a remedy was made; empty where nothing does."""

Detector = Callable[[Gains, Finding, Remedy], Sign]


def setting(gains: Gains, *names: str) -> str:
    """Return ``gradient_checkpointing True → False`` for the first of some settings that changed; empty for none."""
    for name in names:
        before, after = (one.facts.get(name) for one in (gains.first, gains.second))
        unknown = name in NOT_SAID and not (before and after)
        if not unknown and (before or None) != (after or None):
            return f"{name} {before} → {after}"
    return ""


def turned_on(gains: Gains, *names: str) -> str:
    """Return the same for the first of some settings that was off, or not said, and is on."""
    return next((said for name in names if gains.second.facts.get(name) and (said := setting(gains, name))), "")


def cheaper(gains: Gains, finding: Finding, _: Remedy) -> str:
    """The accounts of the finding take decidedly less."""
    names = tuple(name for name in finding.accounts if name in LABELS)
    if not names or not gains.less(*names, least=min(LESS, finding.cost.value / max(gains.before(*names), 1e-9) / 2)):
        return ""
    return f"{named(names)} {from_to(gains, names)}"


def rarer(gains: Gains, name: str, count: Callable[[Process], float], part: float = 1 - LESS) -> str:
    """Return ``syncs 40 → 2 a step`` where something is counted less often in a step and in a micro-step.

    Fewer micro-steps in a step are no reason: each of them counts as before.
    """
    before, after = count(gains.first), count(gains.second)
    micro_steps = [one.counter("backwards").value or 1.0 for one in (gains.first, gains.second)]
    if not before or after > part * before or after / micro_steps[1] > part * before / micro_steps[0]:
        return ""
    return f"{name} {before:.3g} → {after:.3g} a step"


def named(names: Sequence[str]) -> str:
    """Return the first of some accounts and how many more there are."""
    short = [name for name in names if name in LABELS]
    return short[0] if len(short) == 1 else f"{short[0]} and {len(short) - 1} more"


def from_to(gains: Gains, names: Sequence[str]) -> str:
    """Return ``40 → 4 ms``."""
    before = gains.before(*names)
    return f"{before:.3g} → {before - gains.saved(*names).value:.3g} ms"


def function_of(place: str) -> str:
    """Return ``file function`` of ``folder/file.py:88 function``: an edit elsewhere moves the number of a line."""
    file, _, function = place.partition(" ")
    return f"{file.rpartition('/')[2].partition(':')[0]} {function}"
