"""Evidence with chosen contents: what a training process would have written, without a training."""

from collections.abc import Mapping
from typing import Any

from stepprobe.analysis.ledger.encoding import encode_process
from stepprobe.model.evidence import Evidence
from stepprobe.model.records import RECORDS_SCHEMA, End, Facts, Header, Note, Record, Sites, Step, Summary

MS = 1_000_000


def nanoseconds(accounts: Mapping[str, float], off_cpu: Mapping[str, float]) -> dict[str, tuple[int, int]]:
    return {name: (round(ms * MS), round(off_cpu.get(name, 0) * MS)) for name, ms in accounts.items()}


class FakeProcess:
    """Builds one ``steps-rank<R>-pid<P>.jsonl`` step by step; all times in ms, and each step closes."""

    def __init__(self, rank: int = 0, pid: int = 100, world_size: int = 1, **facts: str | float | bool) -> None:
        self.name = f"steps-rank{rank}-pid{pid}.jsonl"
        self.records: list[Record] = [
            Header(
                schema=RECORDS_SCHEMA,
                rank=rank,
                local_rank=rank,
                world_size=world_size,
                pid=pid,
                origin_unix_ns=1_700_000_000 * 10**9,
                python="3.11.9",
                versions={"torch": "2.13.0", "transformers": "5.24.0"},
                unit_cost_ns={"push_pop": 480.0},
            )
        ]
        self.index = 0
        self.clock_ns = 0
        self.facts(**{"device": "cpu", **facts})

    def facts(self, **facts: str | float | bool) -> "FakeProcess":
        self.records.append(Facts(facts={name.replace("__", "."): value for name, value in facts.items()}))
        return self

    def step(
        self,
        accounts: Mapping[str, float],
        counters: Mapping[str, int] | None = None,
        *,
        detail: bool = True,
        off_cpu: Mapping[str, float] | None = None,
        self_ms: float = 0.1,
        end: Any = "boundary",
        aside: Any = "",
    ) -> "FakeProcess":
        booked = nanoseconds(accounts, off_cpu or {})
        wall = sum(spent for spent, _ in booked.values())
        self.records.append(
            Step(
                index=self.index,
                start_ns=self.clock_ns,
                wall_ns=wall,
                cpu_ns=wall - sum(off for _, off in booked.values()),
                self_ns=round(self_ms * MS),
                detail=detail,
                accounts=booked,
                counters=dict(counters or {}),
                end=end,
                aside=aside,
            )
        )
        self.index += 1
        self.clock_ns += wall
        return self

    def steps(self, n: int, accounts: Mapping[str, float], counters: Mapping[str, int] | None = None, **more: Any):
        for _ in range(n):
            self.step(accounts, counters, **more)
        return self

    def summary(
        self,
        count: int,
        accounts: Mapping[str, float],
        counters: Mapping[str, int] | None = None,
        *,
        detail: bool = False,
        self_ms: float = 0.1,
        histogram: Mapping[str, int] | None = None,
    ) -> "FakeProcess":
        """Sum of ``count`` steps that each hold these accounts and counters."""
        booked = {name: (count * wall, count * off) for name, (wall, off) in nanoseconds(accounts, {}).items()}
        wall = sum(spent for spent, _ in booked.values())
        self.records.append(
            Summary(
                first=self.index,
                last=self.index + count - 1,
                count=count,
                detail=detail,
                wall_ns=wall,
                cpu_ns=wall,
                self_ns=round(self_ms * MS) * count,
                accounts=booked,
                counters={name: count * value for name, value in (counters or {}).items()},
                wall_histogram=dict(histogram or {}),
            )
        )
        self.index += count
        self.clock_ns += wall
        return self

    def sites(
        self,
        syncs: list[tuple[str, str, int, int, int]] | None = None,
        samples: list[tuple[str, str, str, int]] | None = None,
        shapes: list[tuple[str, int]] | None = None,
        rates: dict[str, float] | None = None,
    ) -> "FakeProcess":
        self.records.append(
            Sites(
                step=self.index,
                syncs=syncs or [],
                samples=samples or [],
                shapes=shapes or [],
                sampler={},
                rates=rates or {},
            )
        )
        return self

    def note(self, text: str) -> "FakeProcess":
        self.records.append(Note(text=text))
        return self

    def end(self, reason: str = "exit 0") -> "FakeProcess":
        self.records.append(End(steps=self.index, reason=reason))
        return self

    def data(self) -> bytes:
        return encode_process(self.records)


def evidence(
    *processes: FakeProcess,
    status: str = "finished",
    warmup: str = "auto",
    environment: Mapping[str, str] | None = None,
    probe: str = "ledger",
) -> Evidence:
    return Evidence(
        probe=probe,
        command="run",
        subject="python train.py",
        environment=environment or {"machine": "two cores"},
        files={process.name: process.data() for process in processes},
        status=status,
        options={"warmup": warmup},
    )


CLEAN = {
    "data.fetch": 0.2,
    "data.collate": 0.1,
    "forward.embed": 1.0,
    "forward.attention": 12.0,
    "forward.mlp": 14.0,
    "forward.norm": 2.0,
    "forward.lm_head": 3.0,
    "forward.loss": 1.0,
    "forward.other": 0.5,
    "backward.attention": 24.0,
    "backward.mlp": 28.0,
    "backward.lm_head": 6.0,
    "backward.other": 1.0,
    "clip": 0.5,
    "optimizer": 6.0,
    "zero_grad": 0.2,
    "unattributed": 0.5,
}
"""A step of 100 ms with nothing to find in it."""

COUNTS = {"slots": 4096, "real": 4096, "labelled": 4000, "micro_steps": 1, "forwards": 1, "backwards": 1, "syncs": 1}
"""Its counters."""

METHODS = {"counts__real": "attention mask", "counts__labelled": "labels"}
"""The facts that say how they were counted."""


def wobble(i: int) -> float:
    """A factor close to 1 that differs from step to step and repeats every seven."""
    return 1 + 0.004 * ((i * 3) % 7 - 3)


def clean_process(n: int = 60, **options: Any) -> FakeProcess:
    """A steady run of ``n`` steps without any cause to find."""
    process = FakeProcess(**{**METHODS, **options})
    for i in range(n):
        process.step({name: ms * wobble(i) for name, ms in CLEAN.items()}, COUNTS)
    return process
