"""One training process as the derivations see it: decoded, its warm-up cut, its steps divided among the accounts."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from functools import cached_property

import msgspec

from stepprobe.analysis.ledger.attribution import PARTS, Entry, Observation, attribute, closure_ns, detailed_shares
from stepprobe.analysis.statistics import Blocks, Mean, warmup_cut
from stepprobe.model.accounts import UNDIVIDED
from stepprobe.model.estimate import Estimate, Unit
from stepprobe.model.records import ProcessRecords, Step, Summary

NS_PER_MS = 1_000_000

ELSEWHERE = ("", "(other places)")
"""What the sampler writes where there was no line of the user's, or no room for one."""
PLUMBING = ("torch/nn/", "torch/autograd/", "torch/_ops.py", "torch/_tensor.py", "torch/utils/_contextlib.py")
"""Innermost lines that name no cause: all of PyTorch's work passes through them."""


class Process:
    """Steps of one process. All means are per optimizer step over the steady steps.

    Args:
        records: What the process wrote.
        warmup: Steps to cut, or ``"auto"`` to let the data decide.

    Raises:
        LedgerError: A step does not close.
    """

    def __init__(self, records: ProcessRecords, warmup: str = "auto") -> None:
        self.records = records
        self._accounts: dict[tuple[str, ...], Mean] = {}
        self.facts = records.facts
        self.rank = records.header.rank
        steps = sorted(records.steps, key=lambda step: step.index)
        self.aside: tuple[Step, ...] = tuple(step for step in steps if step.aside)
        """Steps unlike the others, such as those under the profiler: counted, and in no mean, quantile or warm-up."""
        ordinary = [step for step in steps if not step.aside]
        self.finished: tuple[Step, ...] = tuple(step for step in ordinary if step.end != "exit")
        """Ordinary steps in full whose end was seen."""
        self.open_steps = len(ordinary) - len(self.finished)
        """Steps that the end of the script ended: counted, not averaged."""
        self.warmup = self._cut(warmup)
        steady_from = self.finished[self.warmup].index if self.finished else 0
        self.steady: tuple[Step, ...] = self.finished[self.warmup :]
        """Steps in full after the warm-up cut."""
        self.summaries: tuple[Summary, ...] = tuple(s for s in records.summaries if s.first >= steady_from and s.count)
        self.observed: tuple[Observation, ...] = (*self.steady, *self.summaries)
        """What the means are taken over."""
        self.everything: tuple[Observation, ...] = (*steps, *records.summaries)
        """That, the warm-up, steps set aside, and a last step whose end was not seen."""
        self.borrowed_detail = not any(one.detail for one in self.observed) and any(one.detail for one in self.finished)
        """True: only warm-up steps were observed in detail, so the division is theirs."""
        self.shares = detailed_shares(self.finished if self.borrowed_detail else self.observed)
        self.entries: tuple[Entry, ...] = attribute(self.observed, self.shares)

    def _cut(self, warmup: str) -> int:
        if not self.finished:
            return 0
        if warmup == "auto":
            return warmup_cut([step.wall_ns / NS_PER_MS for step in self.finished])
        return min(int(warmup), len(self.finished) - 1)

    @property
    def unmasked(self) -> bool:
        """Whether the model got no attention mask, so that padding could not be told from tokens."""
        return str(self.records.facts.get("counts.real", "")).startswith("no attention mask")

    @property
    def count(self) -> int:
        """Optimizer steps that were seen, in full or in sums, warm-up included."""
        return len(self.records.steps) + sum(summary.count for summary in self.records.summaries)

    @property
    def sited(self) -> int:
        """Steps that the table of call sites covers."""
        return (self.records.sites.step if self.records.sites else 0) or self.count

    @property
    def measured(self) -> int:
        """Steps behind each mean."""
        return self.blocks.n

    @property
    def closure_ns(self) -> int:
        """Largest gap between a step's wall time and the sum of its accounts, over everything observed."""
        return max((closure_ns(one) for one in self.everything), default=0)

    @cached_property
    def blocks(self) -> Blocks:
        """Blocks of neighbouring steady steps."""
        return Blocks([entry.weight for entry in self.entries])

    @cached_property
    def wall(self) -> Mean:
        """Wall time of a steady step in ms."""
        return self.mean(lambda entry: entry.wall_ns / NS_PER_MS)

    @cached_property
    def cpu(self) -> Mean:
        """CPU time of the training thread in a steady step in ms."""
        return self.mean(lambda entry: entry.cpu_ns / NS_PER_MS)

    def mean(self, total: Callable[[Entry], float]) -> Mean:
        """Return the mean per step of something that an entry holds the total of."""
        return self.blocks.mean([total(entry) for entry in self.entries])

    def ratio(self, numerator: Callable[[Entry], float], denominator: Callable[[Entry], float]) -> Mean:
        """Return the ratio of two totals."""
        return self.blocks.ratio([numerator(e) for e in self.entries], [denominator(e) for e in self.entries])

    def account(self, *names: str) -> Mean:
        """Return ms per step in some accounts together."""
        if names not in self._accounts:
            self._accounts[names] = self.mean(
                lambda entry: sum(entry.accounts.get(name, 0) for name in names) / NS_PER_MS
            )
        return self._accounts[names]

    def counter(self, name: str) -> Mean:
        """Return a count per step; 0 where the process never counted it."""
        return self.mean(lambda entry: entry.counters.get(name, 0))

    def undisturbed(self, computing: Iterable[str]) -> "Process":
        """Return the same process without the time in which it was off the CPU in some accounts."""
        calm, names = copy(self), frozenset(computing)
        calm.entries = tuple(_undisturbed(entry, names) for entry in self.entries)
        calm._accounts = {}
        for derived in ("wall", "cpu"):
            calm.__dict__.pop(derived, None)
        return calm

    def divided_from(self, account: str) -> str:
        """Return the undivided account that a part of this one's time was booked in; empty where all was seen."""
        return next((whole for whole in self._wholes if account in PARTS[whole]), "")

    @cached_property
    def _wholes(self) -> tuple[str, ...]:
        return tuple(whole for whole in UNDIVIDED if any(whole in one.accounts for one in self.observed))

    @property
    def detailed(self) -> int:
        """Steady steps that were observed in detail."""
        return sum(entry.weight for entry in self.entries if entry.detail)

    def hottest(self, accounts: Iterable[str], matching: str = "", fewest: int = 1) -> str:
        """Return the line that was sampled most in some accounts, and at least ``fewest`` times; see ``place``."""
        lines = self.sampled(accounts, matching)
        named = [line for line in sorted(lines.keys() - {"", *ELSEWHERE}) if lines[line] >= fewest]
        return max(named, key=lines.__getitem__, default="")

    def own_line(self, accounts: Iterable[str]) -> str:
        """Return the line of the user's own code that was sampled most in some accounts; empty where none was."""
        wanted = set(accounts)
        lines: Counter[str] = Counter()
        for account, user_line, _, samples in self.records.sites.samples if self.records.sites else ():
            if account in wanted and user_line not in ELSEWHERE and user_line not in self._starters:
                lines[user_line] += samples
        return max(sorted(lines), key=lines.__getitem__, default="")

    def sampled(self, accounts: Iterable[str], matching: str = "") -> Mapping[str, int]:
        """Return samples by line in some accounts, of those whose innermost line holds ``matching``."""
        wanted = set(accounts)
        lines: Counter[str] = Counter()
        for account, user_line, innermost, samples in self.records.sites.samples if self.records.sites else ():
            if account in wanted and matching in innermost:
                lines[self.place(user_line, innermost)] += samples
        return lines

    def place(self, user_line: str, innermost: str) -> str:
        """Return which of two sampled lines names a cause: the user's own, unless it only starts the training.

        Empty where it is only PyTorch's own plumbing, which every training passes through.
        """
        if user_line not in ELSEWHERE and user_line not in self._starters:
            return user_line
        return "" if innermost.startswith(PLUMBING) else innermost

    @cached_property
    def _starters(self) -> frozenset[str]:
        """Lines like ``trainer.train()``: on the stack during the backward pass and during other work alike."""
        inside: dict[bool, set[str]] = {True: set(), False: set()}
        for account, user_line, _, _ in self.records.sites.samples if self.records.sites else ():
            if account != "unattributed":
                inside[account.startswith("backward")].add(user_line)
        return frozenset(inside[True] & inside[False])


def estimate(mean: Mean, unit: Unit, method: str, floor: float | None = 0.0) -> Estimate:
    """Return a mean as an estimate; an interval does not reach below ``floor`` (nothing here can be negative)."""
    low = mean.low if mean.low is None or floor is None else max(floor, mean.low)
    method = method if mean.low is not None else f"{method}; too few steps for an interval"
    return Estimate(value=mean.value, unit=unit, low=low, high=mean.high, n=mean.n, method=method)


def _undisturbed(entry: Entry, names: frozenset[str]) -> Entry:
    off = {name: spent for name, spent in entry.off_cpu.items() if name in names}
    accounts = {name: spent - off.get(name, 0) for name, spent in entry.accounts.items()}
    kept = {name: spent for name, spent in entry.off_cpu.items() if name not in off}
    wall_ns = entry.wall_ns - sum(off.values())
    return msgspec.structs.replace(entry, wall_ns=wall_ns, accounts=accounts, off_cpu=kept)
