"""Two runs side by side: which account changed, by how much, and whether that is more than chance."""

from collections.abc import Iterator, Mapping

from stepprobe.analysis.job import Job, read_job
from stepprobe.analysis.process import Process
from stepprobe.analysis.reservations import run_notes
from stepprobe.analysis.statistics import Mean, difference
from stepprobe.analysis.tokens import TokenRate, token_rates
from stepprobe.errors import NotObserved, UsageError
from stepprobe.model.accounts import ACCOUNTS, LABELS
from stepprobe.model.estimate import Estimate, Unit
from stepprobe.model.evidence import Evidence
from stepprobe.model.report import Column, Report, Table, Verdict

WELCH = "after − before, interval from the block means of both runs (Welch)"

COMPARED = "ledger"
"""The probe whose evidence can be compared."""


def compare(before: Evidence, after: Evidence) -> Report:
    """Compare two runs by account.

    The verdict is ``ok`` when the second run is decidedly faster, ``fail`` when it is decidedly slower, and
    ``undecided`` when the interval of the difference spans zero or cannot be given.

    Raises:
        UsageError: The two were observed by different probes, or by one whose evidence cannot be compared.
        NotObserved: One of them holds no finished step.
        EvidenceError: One of them is damaged.
    """
    for one in (before, after):
        if one.probe != COMPARED:
            raise UsageError(f"{one.subject}: observed by probe {one.probe!r}; compare needs two runs of stepprobe run")
    jobs = [_read(before, "first"), _read(after, "second")]
    first, second = jobs[0].main, jobs[1].main
    wall = _difference(first.wall, second.wall, "ms")
    figures = {"compare.step.wall": wall} | {
        f"compare.ledger.{account}": _difference(first.account(account), second.account(account), "ms")
        for account in ACCOUNTS
    }
    rates = list(zip(token_rates(first, jobs[0].ranks), token_rates(second, jobs[1].ranks), strict=True))
    figures |= dict(_rate_figures(rates))
    return Report(
        command="compare",
        verdict=_verdict(wall),
        title=f"{before.subject} → {after.subject}",
        headline=_headline(first, wall, figures),
        figures=figures,
        tables=(
            _accounts(first, second, figures),
            *_rates(rates, figures),
            *_environment(before, after, first, second),
        ),
        notes=tuple(_notes(jobs, (before, after))),
        environment=dict(after.environment),
    )


def _read(evidence: Evidence, which: str) -> Job:
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


def _verdict(wall: Estimate) -> Verdict:
    if not decided(wall):
        return "undecided"
    return "fail" if wall.value > 0 else "ok"


def _headline(before: Process, wall: Estimate, figures: Mapping[str, Estimate]) -> str:
    share = wall.value / before.wall.value
    interval = "no interval" if wall.low is None or wall.high is None else f"[{wall.low:+.3g}, {wall.high:+.3g}]"
    change = f"{wall.value:+.3g} ms per step, {share:+.1%}, 95 % interval {interval} ms"
    if not decided(wall):
        return f"undecided: {change}"
    most = max(ACCOUNTS, key=lambda account: figures[f"compare.ledger.{account}"].value * (1 if wall.value > 0 else -1))
    word = "slower" if wall.value > 0 else "faster"
    return f"{word}: {change}; most in {LABELS[most]} ({figures[f'compare.ledger.{most}'].value:+.3g} ms)"


def _accounts(first: Process, second: Process, figures: Mapping[str, Estimate]) -> Table:
    rows = [_row("wall", first.wall, second.wall, figures["compare.step.wall"])]
    for account in ACCOUNTS:
        before, after = first.account(account), second.account(account)
        if before.value or after.value:
            rows.append(_row(LABELS[account], before, after, figures[f"compare.ledger.{account}"]))
    return _change_table("accounts", "Change by account", "ms", rows)


Row = tuple[str, float, float, float, float | None, float | None, str]


def _row(name: str, before: Mean, after: Mean, change: Estimate) -> Row:
    word = "undecided" if not decided(change) else "more" if change.value > 0 else "less"
    return name, before.value, after.value, change.value, change.low, change.high, word


def _change_table(name: str, title: str, unit: str, rows: list[Row]) -> Table:
    heads = ("before", "after", "change", "low", "high")
    columns = (Column(title="what"), *(Column(title=head, unit=unit) for head in heads), Column(title="verdict"))
    return Table(
        name=name, title=title, columns=columns, rows=tuple(rows), caption="Undecided: the interval spans zero."
    )


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
            f"{before.kind} tokens/s",
            before.per_second,
            after.per_second,
            figures[f"compare.tokens.{before.kind}_per_second"],
        )
        for before, after in rates
        if before.per_second and after.per_second
    ]
    if rows:
        yield _change_table("rates", "Token rates", "", rows)


def _environment(before: Evidence, after: Evidence, first: Process, second: Process) -> Iterator[Table]:
    pairs = _settings(before, first), _settings(after, second)
    rows = tuple(
        (name, pairs[0].get(name, "absent"), pairs[1].get(name, "absent"))
        for name in sorted(pairs[0].keys() | pairs[1].keys())
        if pairs[0].get(name) != pairs[1].get(name)
    )
    if rows:
        columns = tuple(Column(title=title) for title in ("what", "before", "after"))
        yield Table(name="environment", title="What else differs", columns=columns, rows=rows)


def _settings(evidence: Evidence, process: Process) -> dict[str, str]:
    header = process.records.header
    return {
        **evidence.environment,
        "python": header.python,
        "world size": str(header.world_size),
        **{f"package {name}": version for name, version in header.versions.items()},
        **{f"job {name}": str(value) for name, value in process.facts.items()},
    }


def _notes(jobs: list[Job], runs: tuple[Evidence, Evidence]) -> Iterator[str]:
    for which, job, run in zip(("before", "after"), jobs, runs, strict=True):
        main = job.main
        yield f"{which}: {main.measured} steady steps of {main.count}, {main.warmup} cut as warm-up"
        yield from (f"{which}: {note}" for note in run_notes(job, run.status))
    yield "the two runs did not alternate, so a machine that grew warmer or busier between them counts as a difference"
