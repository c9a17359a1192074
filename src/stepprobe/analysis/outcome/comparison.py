"""Two runs side by side: which account changed, by how much, and whether that is more than chance."""

from collections.abc import Iterator, Mapping

from stepprobe.analysis.ledger.contention import BUSY_SHARE, aside_share
from stepprobe.analysis.ledger.job import Job, read_job
from stepprobe.analysis.ledger.process import Process
from stepprobe.analysis.ledger.reservations import run_notes
from stepprobe.analysis.ledger.settings import settings
from stepprobe.analysis.ledger.tokens import TokenRate, token_rates
from stepprobe.analysis.outcome.outcome import Outcome, outcome
from stepprobe.analysis.statistics import Mean, difference
from stepprobe.analysis.wording import ends, signed
from stepprobe.errors import NotObserved, UsageError
from stepprobe.model.accounts import ACCOUNTS, LABELS
from stepprobe.model.estimate import Estimate, Unit
from stepprobe.model.evidence import Evidence
from stepprobe.model.report import Column, Report, Table, Verdict

WELCH = "after − before, interval from the block means of both runs (Welch)"

COMPARED = ("ledger", "profile")
"""The probes whose evidence holds the steps of a job."""


ASIDE_APART = 0.05
"""Difference in the off-CPU part of the computing from which two runs had different machines under them."""
AGREES = 0.5
"""Part of a difference in wall time that the CPU time must show, too, where the machine was busy."""

SMALL_SHARE = 0.0005
"""Accounts that are below this part of the step in both runs are left out of the table."""


def compare(before: Evidence, after: Evidence) -> Report:
    """Compare two runs by account.

    The verdict is ``ok`` when the second run is decidedly faster, ``fail`` when it is decidedly slower, and
    ``undecided`` when the interval of the difference spans zero or cannot be given, or when the machine was busy and
    the CPU time does not show the difference that the wall time shows.

    Raises:
        UsageError: The two were observed by different probes, or by one whose evidence cannot be compared.
        NotObserved: One of them holds no finished step.
        EvidenceError: One of them is damaged.
    """
    return examine(before, after)[0]


def examine(before: Evidence, after: Evidence) -> tuple[Report, Outcome]:
    """Compare two runs as ``compare`` does, and return the outcome of what the first one promised beside the report."""
    jobs = [_read(before, "first"), _read(after, "second")]
    first, second = jobs[0].main, jobs[1].main
    wall = _difference(first.wall, second.wall, "ms")
    cpu = _difference(first.cpu, second.cpu, "ms")
    figures = {"compare.step.wall": wall, "compare.step.cpu": cpu} | {
        f"compare.ledger.{account}": _difference(first.account(account), second.account(account), "ms")
        for account in ACCOUNTS
    }
    rates = list(zip(token_rates(first, jobs[0].ranks), token_rates(second, jobs[1].ranks), strict=True))
    figures |= dict(_rate_figures(rates))
    busy = _busy(first, second)
    verdict = _verdict(wall, cpu, busy)
    came = outcome((before, after), jobs, busy=bool(busy))
    report = Report(
        command="compare",
        verdict=verdict,
        reason=_reason(wall, verdict, busy),
        title=f"{before.subject} → {after.subject}",
        headline=_headline(first, verdict, figures, busy),
        figures=figures | came.figures,
        findings=came.findings,
        tables=(
            *came.tables,
            _accounts(first, second, figures),
            *_rates(rates, figures),
            *_environment(before, after, first, second),
        ),
        notes=(*came.notes, *_notes(jobs, (before, after))),
        environment=settings(after, second),
    )
    return report, came


def _read(evidence: Evidence, which: str) -> Job:
    if evidence.probe not in COMPARED:
        raise UsageError(
            f"{evidence.subject}: observed by probe {evidence.probe!r}; compare needs runs of stepprobe run or profile"
        )
    job = read_job(evidence)
    if not job.ranks:
        raise NotObserved(f"the {which} run holds no finished step ({evidence.status}): nothing to compare")
    return job


def _difference(before: Mean, after: Mean, unit: Unit) -> Estimate:
    value, low, high = difference(before, after)
    return Estimate(value=value, unit=unit, low=low, high=high, n=before.n + after.n, method=WELCH)


def decided(change: Estimate) -> bool:
    """Return whether an interval leaves zero out."""
    return change.low is not None and change.high is not None and (change.low > 0 or change.high < 0)


def _busy(first: Process, second: Process) -> str:
    """Say how busy the machine was where that can be what differs; empty where both runs had it to themselves."""
    shares = aside_share(first), aside_share(second)
    if max(shares) < BUSY_SHARE and abs(shares[0] - shares[1]) < ASIDE_APART:
        return ""
    return f"the training thread was put aside in {shares[0]:.0%} of its computing before and in {shares[1]:.0%} after"


def _verdict(wall: Estimate, cpu: Estimate, busy: str) -> Verdict:
    if not decided(wall) or (busy and not _agrees(wall, cpu)):
        return "undecided"
    return "fail" if wall.value > 0 else "ok"


def _reason(wall: Estimate, verdict: Verdict, busy: str) -> str:
    if verdict == "undecided" and wall.low is None:
        return "too few steps for an interval"
    if verdict == "undecided" and decided(wall):
        return f"the CPU time does not show what the wall time shows, and {busy}"
    return {"undecided": "the interval spans zero", "fail": "the whole interval lies above zero"}.get(verdict, "")


def _agrees(wall: Estimate, cpu: Estimate) -> bool:
    """Return whether the CPU time shows decidedly, and at least in part, what the wall time shows."""
    return decided(cpu) and cpu.value / wall.value >= AGREES


def _headline(before: Process, verdict: Verdict, figures: Mapping[str, Estimate], busy: str) -> str:
    wall, cpu = figures["compare.step.wall"], figures["compare.step.cpu"]
    share = signed(wall.value / before.wall.value, ".1%")
    change = f"{signed(wall.value, '.3g')} ms per step, {share}, 95 % interval {_interval(wall)}"
    caution = f"; CPU time {signed(cpu.value, '.3g')} ms ({_interval(cpu)}); a busy machine" if busy else ""
    if verdict == "undecided":
        return f"undecided: {change}{caution}"
    most = max(ACCOUNTS, key=lambda account: figures[f"compare.ledger.{account}"].value * (1 if wall.value > 0 else -1))
    word = "slower" if wall.value > 0 else "faster"
    in_most = signed(figures[f"compare.ledger.{most}"].value, ".3g")
    return f"{word}: {change}; most in {LABELS[most]} ({in_most} ms){caution}"


def _interval(change: Estimate) -> str:
    return f"{ends(change.low, change.high)} ms" if change.low is not None else "not known"


def _accounts(first: Process, second: Process, figures: Mapping[str, Estimate]) -> Table:
    rows = [
        _row("wall", first.wall, second.wall, figures["compare.step.wall"]),
        _row("CPU time", first.cpu, second.cpu, figures["compare.step.cpu"]),
    ]
    small = 0
    for account in ACCOUNTS:
        before, after = first.account(account), second.account(account)
        if max(before.value / first.wall.value, after.value / second.wall.value) > SMALL_SHARE:
            rows.append(_row(LABELS[account], before, after, figures[f"compare.ledger.{account}"]))
        else:
            small += bool(before.value or after.value)
    left_out = f" {small} accounts below {SMALL_SHARE:.2%} of the step in both are left out." if small else ""
    caption = f"Undecided: the interval spans zero. CPU time: of the training thread.{left_out}"
    return _change_table("accounts", "Change by account, ms per step", caption, rows)


Row = tuple[str, float, float, float, str, str]


def _row(name: str, before: Mean, after: Mean, change: Estimate) -> Row:
    word = "undecided" if not decided(change) else "more" if change.value > 0 else "less"
    return name, before.value, after.value, change.value, ends(change.low, change.high), word


def _change_table(name: str, title: str, caption: str, rows: list[Row]) -> Table:
    heads = ("what", "before", "after", "change", "95 %", "verdict")
    columns = tuple(Column(title=head) for head in heads)
    return Table(name=name, title=title, columns=columns, rows=tuple(rows), caption=caption)


def _rate_figures(rates: list[tuple[TokenRate, TokenRate]]) -> Iterator[tuple[str, Estimate]]:
    for before, after in rates:
        if before.per_second and after.per_second:
            yield (
                f"compare.tokens.{before.kind}_per_second",
                _difference(before.per_second, after.per_second, "tokens/s"),
            )


def _rates(rates: list[tuple[TokenRate, TokenRate]], figures: Mapping[str, Estimate]) -> Iterator[Table]:
    rows = [
        _row(
            f"{before.kind} tokens",
            before.per_second,
            after.per_second,
            figures[f"compare.tokens.{before.kind}_per_second"],
        )
        for before, after in rates
        if before.per_second and after.per_second
    ]
    if rows:
        yield _change_table("rates", "Token rates, per second", "Undecided: the interval spans zero.", rows)


def _environment(before: Evidence, after: Evidence, first: Process, second: Process) -> Iterator[Table]:
    pairs = settings(before, first), settings(after, second)
    rows = tuple(
        (name, pairs[0].get(name, "absent"), pairs[1].get(name, "absent"))
        for name in sorted(pairs[0].keys() | pairs[1].keys())
        if pairs[0].get(name) != pairs[1].get(name)
    )
    if rows:
        columns = tuple(Column(title=title) for title in ("what", "before", "after"))
        yield Table(name="environment", title="What else differs", columns=columns, rows=rows)


def _notes(jobs: list[Job], runs: tuple[Evidence, Evidence]) -> Iterator[str]:
    """Yield what each run has against itself; what both have, once."""
    notes = [run_notes(job, run.status) for job, run in zip(jobs, runs, strict=True)]
    for which, job in zip(("before", "after"), jobs, strict=True):
        yield f"{which}: means over {job.main.measured} steady steps of {job.main.count}"
    yield from (f"both: {note}" for note in dict.fromkeys(notes[0]) if note in notes[1])
    for which, own, other in (("before", notes[0], notes[1]), ("after", notes[1], notes[0])):
        yield from (f"{which}: {note}" for note in dict.fromkeys(own) if note not in other)
    yield "the two runs did not alternate, so a machine that grew warmer or busier between them counts as a difference"
