"""What costs time, found by small rules: each looks at one run and speaks of one cause."""

from collections.abc import Iterable, Sequence

import msgspec

from stepprobe.analysis.findings import batching, compute, host, loading, ranks, tokens
from stepprobe.analysis.findings.view import Rule, View
from stepprobe.analysis.process import Process
from stepprobe.model.finding import Finding

RULES: tuple[Rule, ...] = (
    *loading.RULES,
    *compute.RULES,
    *tokens.RULES,
    *batching.RULES,
    *host.RULES,
    *ranks.RULES,
)


def find(process: Process, processes: Sequence[Process]) -> tuple[Finding, ...]:
    """Return all findings of a run, dearest first.

    Args:
        process: The process whose ledger is shown.
        processes: One process per rank, that one among them.
    """
    view = View(process, processes)
    found = sorted(
        (_largest_account_first(finding, process) for rule in RULES for finding in rule(view)),
        key=lambda finding: (-finding.cost.value, finding.kind, finding.where),
    )
    return tuple(_with_overlaps(finding, found) for finding in found)


def _largest_account_first(finding: Finding, process: Process) -> Finding:
    """A renderer puts a finding beside its first account, so that one must be where most of the time is."""
    ordered = sorted(finding.accounts, key=lambda account: -process.account(account).value)
    return msgspec.structs.replace(finding, accounts=tuple(ordered))


def _with_overlaps(finding: Finding, found: Iterable[Finding]) -> Finding:
    """Say which other findings may speak of the same nanoseconds.

    Findings of one kind split an account by line, so they do not overlap.
    """
    shared = sorted(
        {other.kind for other in found if other.kind != finding.kind and set(other.accounts) & set(finding.accounts)}
    )
    if not shared:
        return finding
    remark = f"may hold the same time as {', '.join(shared)}: do not add the costs up"
    return msgspec.structs.replace(finding, cites=(*finding.cites, remark))
