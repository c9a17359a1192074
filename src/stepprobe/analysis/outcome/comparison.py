"""Two runs side by side: which account changed, by how much, and whether that is more than chance."""

from collections.abc import Iterator, Mapping, Sequence

from stepprobe.analysis.ledger.contention import BUSY_SHARE, aside_share
from stepprobe.analysis.ledger.job import Job, read_job
from stepprobe.analysis.ledger.process import Process
from stepprobe.analysis.ledger.reservations import run_notes
from stepprobe.analysis.ledger.settings import differing, settings
from stepprobe.analysis.ledger.tokens import TokenRate, token_rates
from stepprobe.analysis.outcome import repeats
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


def compare(before: Evidence, after: Evidence, again: Sequence[Evidence] = ()) -> Report:
    """Compare two runs by account.

    The verdict is ``ok`` when the second run is decidedly faster, ``fail`` when it is decidedly slower, and
    ``undecided`` when the interval of the difference spans zero or cannot be given, or when the machine was busy and
    the CPU time does not show the difference that the wall time shows.

    Args:
        before: The run before a change.
        after: The run after it.
        again: Further runs of the training before: no interval is narrower than what these and the first lie apart by.

    Raises:
        UsageError: A run was observed by a probe whose evidence cannot be compared, or a repeat is none.
        NotObserved: One of them holds no finished step.
        EvidenceError: One of them is damaged.
    """
    return examine(before, after, again)[0]


def examine(before: Evidence, after: Evidence, again: Sequence[Evidence] = ()) -> tuple[Report, Outcome]:
    """Compare two runs as ``compare`` does, and return the outcome of what the first one promised beside the report."""
    jobs = [_read(before, "the first run"), _read(after, "the second run")]
    repeated = [_read(run, f"repeat {number}") for number, run in enumerate(again, 1)]
    first, second = jobs[0].main, jobs[1].main
    for number, (run, job) in enumerate(zip(again, repeated, strict=True), 1):
        repeats.refuse_others(before, first, run, job.main, number)
    figures, rates = _figures(jobs, repeated)
    wall, cpu = figures["compare.step.wall"], figures["compare.step.cpu"]
    busy = _busy(first, second)
    verdict = _verdict(wall, cpu, busy)
    came = outcome((before, after), jobs, busy=bool(busy), repeats=[job.main for job in repeated])
    report = Report(
        command="compare",
        verdict=verdict,
        reason=_reason(wall, verdict, busy),
        title=f"{before.subject} → {after.subject}",
        headline=_headline(first, verdict, figures, busy) + repeats.caution(again, decided=verdict != "undecided"),
        figures=figures | came.figures,
        findings=came.findings,
        tables=(
            *came.tables,
            _accounts(first, second, figures),
            *_rates(rates, figures),
            *repeats.table([jobs[0], *repeated]),
            *_environment(before, after, first, second),
        ),
        notes=(*came.notes, *_notes(jobs, (before, after)), *_between_runs(repeated)),
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
        raise NotObserved(f"{which} holds no finished step ({evidence.status}): nothing to compare")
    return job


def _figures(
    jobs: Sequence[Job], repeated: Sequence[Job]
) -> tuple[dict[str, Estimate], list[tuple[TokenRate, TokenRate]]]:
    """Return all differences by name, and the token rates of both runs."""
    first, second, *others = (job.main for job in (*jobs, *repeated))
    figures = {
        "compare.step.wall": _difference(first.wall, second.wall, "ms", [one.wall for one in others]),
        "compare.step.cpu": _difference(first.cpu, second.cpu, "ms", [one.cpu for one in others]),
    }
    for name in ACCOUNTS:
        again = [one.account(name) for one in others]
        figures[f"compare.ledger.{name}"] = _difference(first.account(name), second.account(name), "ms", again)
    rates = list(zip(*(token_rates(job.main, job.ranks) for job in (*jobs, *repeated)), strict=True))
    for before, after, *same in rates:
        if before.per_second and after.per_second:
            figures[f"compare.tokens.{before.kind}_per_second"] = _difference(
                before.per_second, after.per_second, "tokens/s", [one.per_second for one in same if one.per_second]
            )
    return figures, [(before, after) for before, after, *_ in rates]


def _difference(before: Mean, after: Mean, unit: Unit, again: Sequence[Mean]) -> Estimate:
    value, low, high = difference(before, after, (before, *again))
    n = before.n + after.n
    return Estimate(value=value, unit=unit, low=low, high=high, n=n, method=WELCH + repeats.how(again))


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
    rows = tuple(differing(settings(before, first), settings(after, second)))
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


def _between_runs(repeated: Sequence[Job]) -> Iterator[str]:
    if not repeated:
        yield (
            "each side is one run: the intervals hold what varies within a run, not from run to run; to know that, "
            f"{repeats.ADVICE}"
        )
