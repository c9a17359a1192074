"""A run whose answer is known: what a derivation must recover before it is asked about an unknown one."""

from stepprobe.analysis.ledger.encoding import encode_process
from stepprobe.model.evidence import Evidence
from stepprobe.model.records import RECORDS_SCHEMA, End, Facts, Header, Record, Sites, Step, Summary

MS = 1_000_000
WARMUP = 3
STEADY = 40
SUMMED = 100
DETAIL_EVERY = 4

FORWARD_MS = {"forward.attention": 12, "forward.mlp": 18}
BACKWARD_MS = {"backward.attention": 20, "backward.mlp": 30, "recompute": 10}
AROUND_MS = {"data.fetch": 20, "optimizer": 8, "sync": 1, "unattributed": 1}
COUNTERS = {
    "slots": 2000,
    "real": 1500,
    "labelled": 500,
    "micro_steps": 2,
    "forwards": 2,
    "backwards": 2,
    "syncs": 3,
}

EXPECTED = {
    "step.wall": 120.0,
    "step.wall_median": 120.0,
    "step.count": float(WARMUP + STEADY + SUMMED),
    "step.measured": float(STEADY + SUMMED),
    "step.warmup": float(WARMUP),
    "ledger.data.fetch": 20.0,
    "ledger.forward.attention": 12.0,
    "ledger.backward.mlp": 30.0,
    "ledger.recompute": 10.0,
    "ledger.optimizer": 8.0,
    "ledger.closure_ns": 0.0,
    "ledger.unattributed_share": 1 / 120,
    "off_cpu.share": 10 / 120,
    "attach.self_cost": 0.3,
    "tokens.slots_per_step": 2000.0,
    "tokens.padding_share": 0.25,
    "tokens.labelled_per_second": 500 / 0.12,
    "micro_steps.per_step": 2.0,
    "syncs.per_step": 3.0,
    "shapes.distinct": 2.0,
}
"""The answer, by figure."""

TOLERANCE = {"step.wall_median": 0.05}
"""Relative error allowed where a figure comes from a histogram; elsewhere it must be the known value."""


def known_run() -> Evidence:
    """Return a run of 143 steps: a slow start, detail in every fourth step, and a long part kept only in sums."""
    records: list[Record] = [
        Header(
            schema=RECORDS_SCHEMA,
            rank=0,
            local_rank=0,
            world_size=1,
            pid=1,
            origin_unix_ns=0,
            python="",
            versions={},
            unit_cost_ns={},
        ),
        Facts(facts={"device": "cpu", "counts.real": "attention mask", "counts.labelled": "labels"}),
    ]
    for index in range(WARMUP + STEADY):
        slow_ms = 300 if index < WARMUP else 0
        records.append(_step(index, index % DETAIL_EVERY == 0, slow_ms))
    records += [
        _sum_of_steps(WARMUP + STEADY),
        Sites(step=0, syncs=[], samples=[], shapes=[("2x500", 200), ("4x250", 86)], sampler={}, rates={}),
        End(steps=WARMUP + STEADY + SUMMED, reason="exit 0"),
    ]
    name = "steps-rank0-pid1.jsonl"
    return Evidence(
        probe="ledger",
        command="run",
        subject="a run whose answer is known",
        environment={},
        files={name: encode_process(records)},
        options={"warmup": "auto"},
    )


def _accounts(detail: bool, slow_ms: int, times: int = 1) -> dict[str, tuple[int, int]]:
    inside = FORWARD_MS | BACKWARD_MS
    if not detail:
        inside = {"forward": sum(FORWARD_MS.values()), "backward": sum(BACKWARD_MS.values())}
    booked = AROUND_MS | inside
    booked["unattributed"] += slow_ms
    waiting = AROUND_MS["data.fetch"] // 2
    return {name: (ms * MS * times, waiting * MS * times if name == "data.fetch" else 0) for name, ms in booked.items()}


def _step(index: int, detail: bool, slow_ms: int) -> Step:
    accounts = _accounts(detail, slow_ms)
    return Step(
        index=index,
        start_ns=0,
        wall_ns=sum(wall for wall, _ in accounts.values()),
        cpu_ns=sum(wall - away for wall, away in accounts.values()),
        self_ns=300_000,
        detail=detail,
        accounts=accounts,
        counters=COUNTERS,
    )


def _sum_of_steps(first: int) -> Summary:
    accounts = _accounts(detail=False, slow_ms=0, times=SUMMED)
    wall = sum(wall for wall, _ in accounts.values())
    return Summary(
        first=first,
        last=first + SUMMED - 1,
        count=SUMMED,
        detail=False,
        wall_ns=wall,
        cpu_ns=sum(wall - away for wall, away in accounts.values()),
        self_ns=300_000 * SUMMED,
        accounts=accounts,
        counters={name: count * SUMMED for name, count in COUNTERS.items()},
        wall_histogram={str(_bin(wall // SUMMED)): SUMMED},
    )


def _bin(wall_ns: int) -> int:
    """Return ``floor(8 · log2(wall_ns))`` in integers: the largest k with 2^k <= wall^8."""
    return (wall_ns**8).bit_length() - 1
