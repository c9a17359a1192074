"""Which changes were made to what is computed, and to what the host does around it."""

from stepprobe.analysis.findings.host import excess
from stepprobe.analysis.findings.ranks import most_uneven, unevenness
from stepprobe.analysis.findings.tokens import HEAD
from stepprobe.analysis.ledger.process import Process
from stepprobe.analysis.ledger.tokens import observed
from stepprobe.analysis.outcome.gains import LESS, Gains
from stepprobe.analysis.outcome.sign import Sign, Undecided, cheaper, from_to, function_of, rarer, setting, turned_on
from stepprobe.analysis.statistics import difference
from stepprobe.model.finding import Finding, Remedy

VANISHED = 0.05
"""Part of a cost that may remain where a change has taken it out."""
HALF = 0.5
MISSED = 3.0
"""Samples that a line must have been due for, so that it is not missing from them by chance (5 %)."""


def labelled_rows(gains: Gains, *_: object) -> Sign:
    """A slot costs less of the head, and the loss got fewer targets for it; in chunks it gets all of them."""
    said = _head(gains)
    before, after = (_loss_rows(one) for one in (gains.first, gains.second))
    if said and before and after:
        return f"{said}, loss of {after:.0%} of the slots" if after <= (1 - LESS) * before else ""
    return Undecided(f"{said}: a loss in chunks could have done it, since its targets were not counted") if said else ""


def chunked(gains: Gains, *_: object) -> Sign:
    """A slot costs less of the head, and its loss comes in more calls; or all slots have a label."""
    said = _head(gains)
    if not said:
        return ""
    before, after = (_loss_rows(one) for one in (gains.first, gains.second))
    if before and after:
        calls = [one.counter("losses").value for one in (gains.first, gains.second)]
        more = calls[1] / _micro_steps(gains.second) >= calls[0] / _micro_steps(gains.first) / HALF
        return f"{said}, {calls[0]:.3g} → {calls[1]:.3g} losses a step" if more else ""
    labelled = gains.first
    if not (observed(labelled, "labelled") and observed(labelled, "slots")):
        return ""
    if labelled.counter("labelled").value / labelled.counter("slots").value > 1 - LESS:
        return said
    return Undecided(f"{said}: a loss over labelled rows could have done it, since its targets were not counted")


def _head(gains: Gains) -> str:
    """Return what a slot costs of the head, where it is decidedly less: fewer slots alone do not show as this."""
    if not all(observed(one, "slots") for one in (gains.first, gains.second)):
        return ""
    before, after = (
        one.ratio(
            lambda entry: sum(entry.accounts.get(name, 0) for name in HEAD),
            lambda entry: entry.counters.get("slots", 0),
        )
        for one in (gains.first, gains.second)
    )
    low = difference(after, before)[1]
    if low is None or low <= 0 or after.value > (1 - LESS) * before.value:
        return ""
    return f"head and loss {before.value / 1000:.3g} → {after.value / 1000:.3g} µs a slot"


def _loss_rows(process: Process) -> float:
    """Return the targets that the loss got for a slot; 0 where they were not counted."""
    return process.counter("loss_rows").value / max(1.0, process.counter("slots").value)


def _micro_steps(process: Process) -> float:
    return process.counter("backwards").value or 1.0


def not_recomputed(gains: Gains, *_: object) -> str:
    """Nothing is computed twice any more."""
    after = gains.second.account("recompute").value
    return f"recompute {from_to(gains, ('recompute',))}" if after <= VANISHED * gains.before("recompute") else ""


def fewer_forwards(gains: Gains, *_: object) -> str:
    """Fewer forwards train nothing."""
    without = rarer(gains, "no_grad_forwards", lambda one: one.counter("no_grad_forwards").value)
    return without or rarer(gains, "extra forwards", _extra_forwards)


def _extra_forwards(process: Process) -> float:
    return process.counter("forwards").value - process.counter("backwards").value


def optimizer(gains: Gains, *_: object) -> str:
    """The same optimizer steps all parameters at once."""
    return "" if setting(gains, "optimizer") else turned_on(gains, "optimizer_foreach", "optimizer_fused")


def walks(gains: Gains, *_: object) -> str:
    """Fewer walks through all modules."""
    return rarer(gains, "train_walks", lambda one: one.counter("train_walks").value)


def scaler(gains: Gains, *_: object) -> str:
    """Fewer steps are skipped, and not since the scaler went without bfloat16 in its place."""
    skipped = rarer(gains, "amp_skipped", lambda one: one.counter("amp_skipped").value)
    alone = setting(gains, "fp16") and not gains.second.facts.get("bf16")
    return "" if alone or not skipped else turned_on(gains, "bf16") or skipped


def fewer_syncs(gains: Gains, *_: object) -> str:
    """The host waits for results less often."""
    if gains.first.unmasked != gains.second.unmasked:  # models ask a mask on the host whether it hides anything
        return ""
    return rarer(gains, "syncs", lambda one: one.counter("syncs").value)


def site_gone(gains: Gains, finding: Finding, _: Remedy) -> str:
    """The calls at the site are gone or rarer; the line's number may have moved."""
    return rarer(gains, f"calls in {function_of(finding.where)}", lambda one: _calls(one, finding.where), HALF)


def _calls(process: Process, where: str) -> float:
    sites = process.records.sites.syncs if process.records.sites else []
    return sum(calls for place, _, calls, _, _ in sites if function_of(place) == function_of(where)) / process.sited


def line_gone(gains: Gains, finding: Finding, _: Remedy) -> str:
    """The sampler finds the line no more; or far less often, and the account takes decidedly less."""
    hits, taken = (_hits(one, finding.where) for one in (gains.first, gains.second))
    if not taken[0] and hits[1] and hits[0] / hits[1] * taken[1] >= MISSED:
        return f"{finding.where} in none of the samples"
    there = sum(gains.second.sampled(("unattributed",)).values())
    left = gains.second.account("unattributed").value * (taken[0] / there if there else 1.0)
    least = HALF * (finding.cost.value - left) / max(gains.before("unattributed"), 1e-9)
    if left > finding.cost.value * (1 - LESS) or not gains.less("unattributed", least=least):
        return ""
    return f"{finding.where} {finding.cost.value:.3g} → {left:.3g} ms"


def _hits(process: Process, where: str) -> tuple[int, int]:
    """Return the samples that found a line outside of all accounts, and all samples."""
    lines = process.sampled(("unattributed",))
    hits = sum(count for line, count in lines.items() if function_of(line) == function_of(where))
    sites = process.records.sites
    return hits, sum(sample[3] for sample in sites.samples) if sites else 0


def spikes_gone(gains: Gains, finding: Finding, _: Remedy) -> str:
    """Steps of twice what their slots explain take less above that."""
    before, after = (excess(one)[1] for one in (gains.first, gains.second))
    return f"slow steps {before:.3g} → {after:.3g} ms a step above the others" if after <= HALF * before else ""


def evened(gains: Gains, finding: Finding, _: Remedy) -> Sign:
    """The rank exceeds the others less in the account that was named; that all of them take less does not count."""
    before, after = gains.ranks
    if len(before) < 2 or len(after) < 2:
        return ""
    slow, account = most_uneven(before, waits=finding.kind == "rank.straggler")
    was = unevenness(before, slow, account)
    now = max(unevenness(after, rank.rank, account) for rank in after)
    return f"rank {slow} above the others in {account} {was:.3g} → {now:.3g} ms" if now <= HALF * was else ""


class Occasional:
    """Sees that something is done less often: by its setting, or by the steps in which it is done.

    Args:
        account: Where its time goes.
        name: The setting that says every how many steps it is done.
    """

    def __init__(self, account: str, name: str) -> None:
        self.account, self.name = account, name

    def __call__(self, gains: Gains, finding: Finding, remedy: Remedy) -> Sign:
        """Return what shows it."""
        said = cheaper(gains, finding, remedy)
        values = [one.facts.get(self.name) for one in (gains.first, gains.second)]
        if all(isinstance(one, (int, float)) for one in values) and values[0] != values[1]:
            return setting(gains, self.name) if said and float(values[1] or 0) > float(values[0] or 0) else ""
        before, after = (self._steps(one) for one in (gains.first, gains.second))
        if not said or before is None or after is None or before == 1.0:
            return said
        if after <= (1 - LESS) * before:
            return f"{self.account} in {before:.1%} → {after:.1%} of the steps"
        return Undecided(f"{said}, as often as before: less of it each time, or a faster way, could have done it")

    def _steps(self, process: Process) -> float | None:
        """Return the share of steps kept in full in which it is done; None without such steps."""
        full = [entry for entry in process.entries if entry.weight == 1]
        return sum(bool(entry.accounts.get(self.account)) for entry in full) / len(full) if full else None
