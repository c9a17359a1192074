"""Realistic reports, each with one thing that a renderer must cope with."""

import math

from stepprobe.model.accounts import ACCOUNTS
from stepprobe.model.estimate import Estimate, exact
from stepprobe.model.finding import Control, Finding, Remedy
from stepprobe.model.ledger import LedgerRow
from stepprobe.model.report import Chart, Column, Report, Table

HOSTILE = (
    "</script><script>alert(1)</script>\"'`|*_[x](javascript:alert(1))\n# not a heading\r\n"
    "\u202egnp.exe\u2066\x00\x1b[31m\x1b]8;;http://evil.example\x07\udcff{{ 7 * 7 }}${x}<!--]]>&lt;@everyone"
)
"""Text as a path or a class name could hold it."""

STEPS = 42


def ms(value: float, spread: float = 0.02, method: str = "mean of steps, block interval") -> Estimate:
    return Estimate(value=value, unit="ms", low=value * (1 - spread), high=value * (1 + spread), n=STEPS, method=method)


def ledger(accounts: dict[str, float], off_cpu: dict[str, float], where: dict[str, str]) -> tuple[LedgerRow, ...]:
    wall = math.fsum(accounts.values())
    return tuple(
        LedgerRow(
            account=account,
            time=ms(accounts[account]),
            share=accounts[account] / wall,
            off_cpu=off_cpu.get(account, 0.01),
            where=where.get(account, ""),
        )
        for account in ACCOUNTS
        if account in accounts
    )


def figures(accounts: dict[str, float]) -> dict[str, Estimate]:
    wall = math.fsum(accounts.values())
    return {
        "step.wall": ms(wall, 0.004),
        "step.count": exact(STEPS, "steps", STEPS),
        **{f"ledger.{account}": ms(value) for account, value in accounts.items()},
        "ledger.unattributed_share": Estimate(
            value=accounts.get("unattributed", 0.0) / wall, unit="1", low=0.002, high=0.004, n=STEPS, method="mean"
        ),
        "ledger.closure_ns": exact(0, "ns", STEPS),
        "attach.self_cost": ms(0.41, 0.3, "calibrated"),
        "tokens.slots_per_step": exact(32768, "tokens/step", STEPS),
        "tokens.real_per_step": Estimate(
            value=16362.4, unit="tokens/step", low=16011.0, high=16714.0, n=STEPS, method="mean"
        ),
        "tokens.real_per_second": Estimate(
            value=37098.2, unit="tokens/s", low=36411.0, high=37785.0, n=STEPS, method="ratio of sums"
        ),
        "shapes.distinct": exact(17, "count", STEPS),
        "shapes.first_seen_time_share": Estimate(value=0.031, unit="1", low=None, high=None, n=STEPS, method="sum"),
    }


DATA_BOUND = {
    "data.wait": 129.4,
    "data.fetch": 4.1,
    "data.collate": 11.9,
    "h2d": 2.3,
    "forward.embed": 1.1,
    "forward.attention": 71.0,
    "forward.mlp": 46.2,
    "forward.norm": 4.8,
    "forward.lm_head": 8.4,
    "forward.loss": 7.2,
    "backward.attention": 52.6,
    "backward.mlp": 61.3,
    "backward.norm": 6.2,
    "backward.lm_head": 9.1,
    "clip": 3.9,
    "optimizer": 14.7,
    "zero_grad": 0.12,
    "scheduler": 0.04,
    "sync": 5.2,
    "logging": 0.11,
    "callbacks": 0.03,
    "gc": 0.01,
    "unattributed": 1.29,
}


def findings(wall: float) -> tuple[Finding, ...]:
    return (
        Finding(
            kind="data.slow",
            title="The dataset tokenises every row again in __getitem__ while the training thread waits",
            where="/home/user/projects/finetune/src/data/dataset.py:88 __getitem__",
            cost=ms(129.4),
            share=129.4 / wall,
            accounts=("data.wait", "data.fetch"),
            remedies=(
                Remedy(
                    action="Tokenise once before training: dataset = dataset.map(tokenise, batched=True)",
                    predicted=Estimate(value=126.3, unit="ms", low=121.0, high=131.0, n=STEPS, method="Amdahl"),
                    fixed=ms(3.1),
                ),
                Remedy(
                    action="Let the loader work ahead: DataLoader(…, num_workers=4, persistent_workers=True)",
                    predicted=Estimate(value=108.0, unit="ms", low=80.0, high=122.0, n=STEPS, method="Amdahl"),
                    outcome=Estimate(value=101.2, unit="ms", low=97.0, high=105.5, n=40, method="paired steps"),
                ),
            ),
            cites=("ledger.data.wait", "samples: data.wait 412 of 431"),
        ),
        Finding(
            kind="mask.slow_path",
            title="28 of 28 layers lost is_causal: one short row in a batch forces a dense mask",
            where="transformers/integrations/sdpa_attention.py:71 sdpa_attention_forward",
            cost=ms(71.0, 0.03),
            share=71.0 / wall,
            accounts=("forward.attention",),
            remedies=(
                Remedy(
                    action="Pack the rows: SFTConfig(packing=True)",
                    predicted=Estimate(value=39.7, unit="ms", low=31.0, high=48.5, n=STEPS, method="Amdahl"),
                    fixed=ms(31.3),
                ),
            ),
        ),
        Finding(
            kind="sync.item",
            title="loss.item() waits for the device on every micro-step",
            where="train.py:143 training_step",
            cost=ms(5.2, 0.4),
            share=5.2 / wall,
            accounts=("sync",),
            remedies=(
                Remedy(
                    action="Keep the loss on the device and read it when it is logged",
                    predicted=Estimate(value=1.1, unit="ms", low=-0.6, high=2.8, n=STEPS, method="min(host, device)"),
                ),
            ),
        ),
    )


def step_chart() -> Chart:
    values = tuple(
        {"step": step, "wall": 441 + 14 * math.sin(step / 3) + (180 if step in (0, 1, 17) else 0)}
        for step in range(STEPS)
    )
    return Chart(
        name="steps",
        title="Wall time of each step",
        mark="line",
        x="step",
        y="wall",
        x_title="step",
        y_title="ms",
        values=values,
        caption="The first two steps are warm-up and in no average.",
    )


def shapes_table() -> Table:
    return Table(
        name="shapes",
        title="Batch shapes",
        columns=(
            Column(title="shape"),
            Column(title="micro-batches", unit="count"),
            Column(title="median", unit="ms"),
            Column(title="of the time", unit="1"),
            Column(title="activations", unit="bytes"),
        ),
        rows=(
            ("8 × 2048", 1211, 218.412, 0.61, 3_221_225_472),
            ("8 × 1536", 402, 161.2, 0.151, 2_415_919_104),
            ("3 × 17", 1, 9.75, 0.0002, 1_048_576),
            ("other", None, None, 0.2388, None),
        ),
        caption="Sixteen more shapes are summed as “other”.",
    )


def data_bound() -> Report:
    wall = math.fsum(DATA_BOUND.values())
    return Report(
        command="run",
        verdict="warn",
        title="python train.py --config qlora.yaml",
        headline="step 441 ms · 37.1 real tokens/ms · 29 % of the step waits for data",
        figures=figures(DATA_BOUND),
        ledger=ledger(
            DATA_BOUND,
            {"data.wait": 0.97, "optimizer": 0.31, "zero_grad": 0.9},
            {
                "data.wait": "/home/user/projects/finetune/src/data/dataset.py:88 __getitem__",
                "optimizer": "torch/optim/adamw.py:412 step",
                "backward.mlp": "torch/autograd/graph.py:841 _engine_run_backward",
            },
        ),
        findings=findings(wall),
        controls=(Control(name="sleep of 50 ms in the loader", expected=50.0, recovered=50.21, ok=True),),
        tables=(shapes_table(),),
        charts=(step_chart(),),
        notes=(
            "2 of 44 steps are warm-up (MSER cut) and in no average: 4.8 % of the time.",
            "forward and backward are split by module on 12 of 42 steps; the others are divided by those shares.",
        ),
        environment={"python": "3.11.9", "torch": "2.13.0", "device": "cpu", "OMP_NUM_THREADS": "1"},
        run="stepprobe-runs/20260101-120000-run-train",
    )


CLEAN = {"data.wait": 0.021, "forward.attention": 1.214, "forward.mlp": 1.1, "backward.mlp": 1.9, "optimizer": 0.41}
CLEAN |= {"unattributed": 0.0}


def clean() -> Report:
    return Report(
        command="run",
        verdict="ok",
        title="python -m mymodel.train",
        headline="step 4.65 ms · nothing costs more than it should",
        figures=figures(CLEAN),
        ledger=ledger(CLEAN, {}, {}),
        controls=(Control(name="known sleep", expected=5.0, recovered=5.02, ok=True),),
        run="stepprobe-runs/20260101-120000-run-mymodel",
    )


def not_measured() -> Report:
    return Report(
        command="run",
        verdict="not measured",
        title="python evaluate.py",
        headline="not measured: the script ended before its first optimizer step",
        figures={},
        controls=(Control(name="known sleep", expected=5.0, recovered=math.nan, ok=False),),
        notes=("No optimizer was called in 3.2 s.",),
        run="stepprobe-runs/20260101-120000-run-evaluate",
    )


def hostile() -> Report:
    """Every text field holds what an attacker, or bad luck, could put there; numbers are absent where they can be."""
    bad = Estimate(value=math.nan, unit="ms", low=-math.inf, high=math.inf, n=0, method=HOSTILE)
    return Report(
        command="run",
        verdict="fail",
        title=HOSTILE,
        headline=HOSTILE,
        figures={"step.wall": ms(10.0), "hostile": bad, HOSTILE: exact(1, "count", 1)},
        ledger=(
            LedgerRow(account="forward.mlp", time=ms(9.0), share=0.9, off_cpu=0.5, where=HOSTILE),
            LedgerRow(account="unattributed", time=ms(1.0), share=0.1, off_cpu=None, where=HOSTILE),
        ),
        findings=(
            Finding(
                kind="x.y",
                title=HOSTILE,
                where=HOSTILE,
                cost=bad,
                share=math.nan,
                accounts=("forward.mlp",),
                remedies=(Remedy(action=HOSTILE, predicted=bad, fixed=bad, outcome=bad),),
                cites=(HOSTILE,),
            ),
        ),
        controls=(Control(name=HOSTILE, expected=1.0, recovered=math.inf, ok=False),),
        tables=(
            Table(
                name="t",
                title=HOSTILE,
                columns=(Column(title=HOSTILE), Column(title="n", unit=HOSTILE)),
                rows=((HOSTILE, math.nan), ("ok", 2)),
                caption=HOSTILE,
            ),
            Table(name="empty", title="Empty", columns=(Column(title="a"), Column(title="b")), rows=()),
            Table(name="bare", title="Bare", columns=(), rows=()),
        ),
        charts=(
            Chart(
                name="c",
                title=HOSTILE,
                mark="bar",
                x=HOSTILE,
                y="datum[0].x",
                x_title=HOSTILE,
                y_title=HOSTILE,
                values=({HOSTILE: HOSTILE, "datum[0].x": 3}, {HOSTILE: "b", "datum[0].x": math.nan}, {}),
                color=HOSTILE,
                caption=HOSTILE,
            ),
            Chart(name="none", title="Nothing", mark="line", x="x", y="y", x_title="x", y_title="y", values=()),
        ),
        notes=(HOSTILE,),
        environment={HOSTILE: HOSTILE},
        run=HOSTILE,
    )


def ranks() -> Report:
    base = data_bound()
    rows = tuple(
        (rank, f"node{rank // 4}.cluster.example", 441.0 + rank * 3.25, 5.2 + rank, 0.012 * (8 - rank), 0.1 * rank)
        for rank in range(8)
    )
    titles = (
        ("rank", "count"),
        ("host", ""),
        ("wall", "ms"),
        ("sync", "ms"),
        ("waits for others", "1"),
        ("off CPU", "1"),
    )
    table = Table(
        name="ranks",
        title="Ranks, side by side",
        columns=tuple(Column(title=title, unit=unit) for title, unit in titles),
        rows=rows,
        caption="Rank 7 is the straggler: the others wait 9.6 % of the step for it.",
    )
    chart = Chart(
        name="ranks",
        title="Wall and waiting by rank",
        mark="bar",
        x="rank",
        y="ms",
        x_title="",
        y_title="ms per step",
        color="part",
        values=tuple(
            {"rank": f"rank {row[0]}", "ms": value, "part": part}
            for row in rows
            for part, value in (("own work", float(row[2]) - float(row[3])), ("waiting", float(row[3])))
        ),
    )
    return Report(
        command="run",
        verdict="warn",
        title="torchrun --nproc-per-node 8 train.py",
        headline="step 441 ms on 8 ranks · rank 7 is 23 ms slower than rank 0",
        figures=base.figures,
        ledger=base.ledger,
        findings=base.findings[:1],
        tables=(table, shapes_table()),
        charts=(chart,),
        run="stepprobe-runs/20260101-120000-run-ddp",
    )


def undecided() -> Report:
    base = data_bound()
    return Report(
        command="compare",
        verdict="undecided",
        title="before against after",
        headline="undecided: the change gains between −4 and 11 ms of 441 ms",
        figures=base.figures,
        ledger=base.ledger,
        findings=base.findings[2:],
        run="stepprobe-runs/20260101-120000-compare",
    )


REPORTS = {
    "data_bound": data_bound,
    "clean": clean,
    "not_measured": not_measured,
    "hostile": hostile,
    "ranks": ranks,
    "undecided": undecided,
}
