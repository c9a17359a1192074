"""What the second of two runs saves, account by account, for the same work."""

from collections.abc import Sequence

import msgspec

from stepprobe.analysis.ledger.attribution import Entry
from stepprobe.analysis.ledger.process import NS_PER_MS, Process
from stepprobe.analysis.ledger.tokens import observed
from stepprobe.analysis.outcome.repeats import how
from stepprobe.analysis.statistics import Mean, difference
from stepprobe.model.estimate import Estimate

SAME_WORK = 0.005
"""Relative difference in tokens per step up to which two steps do the same work."""
LESS = 0.2
"""Part of an account that must be gone before a change is taken as the reason: less comes of itself between runs."""


class Gains:
    """Two runs of the same job, the time of the second taken for the work that a step of the first did.

    Args:
        first: The run before; without the time in which it was put aside where the machine was busy.
        second: The run after, likewise.
        calm: Whether that time was left out.
        ranks: One process per rank of either, the two among them.
        repeats: Further runs of the training before, likewise.
    """

    def __init__(
        self,
        first: Process,
        second: Process,
        *,
        calm: bool,
        ranks: tuple[Sequence[Process], Sequence[Process]] = ((), ()),
        repeats: Sequence[Process] = (),
    ) -> None:
        self.first, self.second, self.calm, self.ranks = first, second, calm, ranks
        self._before = (first, *repeats)
        self.counted = next(
            (kind for kind in ("real", "slots") if observed(first, kind) and observed(second, kind)), ""
        )
        """The tokens by which work is compared; empty where none were counted in both."""
        self.tokens = tuple(one.counter(self.counted).value if self.counted else 0.0 for one in (first, second))
        """Tokens of a step, before and after."""
        self.same_work = not self.counted or abs(self.tokens[1] / self.tokens[0] - 1) <= SAME_WORK

    @property
    def method(self) -> str:
        """How gains are taken, in words."""
        said = "before − after, interval from the block means of both runs (Welch)"
        if not self.same_work:
            kind = "real tokens" if self.counted == "real" else "slots"
            said = (
                f"time per {kind[:-1]} before − after, times the {self.tokens[0]:,.1f} {kind} of a step before (Welch)"
            )
        return said + how(self._before[1:]) + self.left_out

    @property
    def left_out(self) -> str:
        """What was left out, in words; empty where nothing was."""
        return "; without the time in which the thread was put aside while it computed" if self.calm else ""

    def saved(self, *accounts: str) -> Estimate:
        """Return ms per step that were saved, in some accounts or, where none is named, in the whole step."""
        before, after = self._time(self.first, accounts), self._time(self.second, accounts)
        value, low, high = difference(after, before, [self._time(one, accounts) for one in self._before])
        if accounts and not after.value and low is None:
            low, high = before.low, before.high  # nothing is left, and nothing has no spread
        scale = 1.0 if self.same_work else self.tokens[0]
        low, high = (None if end is None else end * scale for end in (low, high))
        n = before.n + after.n
        return Estimate(value=value * scale, unit="ms", low=low, high=high, n=n, method=self.method)

    def saved_between(self, accounts: Sequence[str]) -> Estimate:
        """Return ms saved in the whole step; on a busy machine, from there to what was saved in some accounts.

        A machine that is busy with other things makes all of a step slower, in one run more than in the other, and
        CPU time shows that, too. So what changed outside of the accounts of a change may be its doing or not.
        """
        whole, own = self.saved(), self.saved(*accounts)
        if not self.calm or not accounts or None in (whole.low, whole.high, own.low, own.high):
            return whole
        low, high = min(whole.low or 0.0, own.low or 0.0), max(whole.high or 0.0, own.high or 0.0)
        method = f"{whole.method}; to what was saved in the accounts of the change, {own.value:.3g} ms"
        return msgspec.structs.replace(whole, low=low, high=high, method=method)

    def before(self, *accounts: str) -> float:
        """Return ms per step that the first run spent in some accounts."""
        return self.first.account(*accounts).value

    def less(self, *accounts: str, least: float = LESS) -> bool:
        """Return whether decidedly less time, by at least ``least`` of it, goes to some accounts.

        In a step and for its work: what comes once a step costs less for each token where a step holds more of them,
        and what comes with the tokens less in a step that holds fewer, without any change.
        """
        saved = self.saved(*accounts)
        alike = [one.account(*accounts) for one in self._before]
        value, _, high = difference(self.first.account(*accounts), self.second.account(*accounts), alike)
        before = self.before(*accounts)
        whole = not self.second.account(*accounts).value or (high is not None and high < 0 and -value >= least * before)
        return saved.low is not None and saved.low > 0 and saved.value >= least * before and whole

    def _time(self, process: Process, accounts: tuple[str, ...]) -> Mean:
        def spent(entry: Entry) -> float:
            ns = sum(entry.accounts.get(name, 0) for name in accounts) if accounts else entry.wall_ns
            return ns / NS_PER_MS

        if self.same_work:
            return process.mean(spent)
        return process.ratio(spent, lambda entry: entry.counters.get(self.counted, 0))
