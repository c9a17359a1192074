"""What costs time, found by small rules: each looks at one run and speaks of one cause."""

import re
from collections.abc import Callable, Sequence

import msgspec

from stepprobe.analysis.findings import batching, compute, host, loading, ranks, tokens
from stepprobe.analysis.findings.view import Rule, View, most_of
from stepprobe.analysis.ledger.process import Process
from stepprobe.model.finding import Finding

LAYERS = re.compile(r"layers ([\d–, …]+) \(")
"""Where a finding about layers lies: ``layers 0–3, 5 (Qwen3Attention)``; ``…`` stands for more of them."""

RULES: tuple[Rule, ...] = (
    *loading.RULES,
    *compute.RULES,
    *tokens.RULES,
    *batching.RULES,
    *host.RULES,
    *ranks.RULES,
)


def find(
    process: Process, processes: Sequence[Process], wrong: Sequence[Finding] = (), more: Sequence[Finding] = ()
) -> tuple[Finding, ...]:
    """Return all findings of a run, the most expensive first.

    A cost of which only the bounds are known is placed by its upper end: it may be the most expensive of all, and is to
    be ruled out first. The others are placed by their value.

    Args:
        process: The process whose ledger is shown.
        processes: One process per rank, that one among them.
        wrong: Findings about wrong results rather than time; they come first.
        more: Findings that other evidence gives.
    """
    view = View(process, processes)
    ranked = [*more, *(finding for rule in RULES for finding in rule(view))]
    return arranged(ranked, process, first=wrong)


def worst(finding: Finding) -> float:
    """Return what a finding may cost, in the unit of its cost: its value, or the upper end where only that is known."""
    return most_of(finding.cost)


def arranged(
    findings: Sequence[Finding],
    process: Process,
    *,
    first: Sequence[Finding] = (),
    rank: Callable[[Finding], float] = worst,
) -> tuple[Finding, ...]:
    """Return findings in their order, each with its largest account first and the others that it overlaps.

    Args:
        findings: In any order.
        process: The process whose ledger is shown.
        first: Findings that come before all others, as they are.
        rank: By what they are placed, the largest first; those whose cost is no time come last.
    """
    found = list(first) + sorted(
        (_largest_account_first(finding, process) for finding in findings),
        key=lambda finding: (finding.cost.unit != "ms", -rank(finding), finding.kind, finding.where),
    )
    return tuple(_with_overlaps(finding, found) for finding in found)


def _largest_account_first(finding: Finding, process: Process) -> Finding:
    """A renderer puts a finding beside its first account, so that one must be where most of the time is."""
    ordered = sorted(finding.accounts, key=lambda account: -process.account(account).value)
    return msgspec.structs.replace(finding, accounts=tuple(ordered))


def _with_overlaps(finding: Finding, found: Sequence[Finding]) -> Finding:
    """Say which other findings may speak of the same nanoseconds.

    Findings of one kind split an account by line, so they do not overlap; those about layers of the model do where one
    batch and another lose the same layers in another way.
    """
    shared = tuple(
        number
        for number, other in enumerate(found, 1)
        if other is not finding
        and set(other.accounts) & set(finding.accounts)
        and (other.kind != finding.kind or _share_layers(other.where, finding.where))
    )
    return msgspec.structs.replace(finding, overlaps=shared)


def _share_layers(where: str, other: str) -> bool:
    """Return whether two places name the same layer, or may."""
    named = [found[1] for found in (LAYERS.match(where), LAYERS.match(other)) if found]
    if len(named) < 2 or any("…" in one for one in named):
        return len(named) == 2
    first, second = (
        {layer for run in one.split(", ") for layer in range(int(run.split("–")[0]), int(run.split("–")[-1]) + 1)}
        for one in named
    )
    return bool(first & second)
