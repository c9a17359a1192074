"""Experiments whose answer is known: what the derivation must recover before it is asked about an unknown step."""

from stepprobe.analysis.ledger.encoding import encode_process
from stepprobe.model.evidence import Evidence
from stepprobe.model.experiments import (
    EXPERIMENTS_SCHEMA,
    Done,
    Experiment,
    ExperimentRecord,
    Harness,
    Measured,
    Restored,
)

FIXED_NS, TOKEN_NS, SQUARE_NS = 6_000_000, 24_000, 40
"""a, b and c of the planted step."""
BLOCKS = 9
VOCABULARY = 1000
LOSS_NS, CHUNK_NS, ROW_NS = 8_000_000, 100_000, 6_000
"""Loss at once; and in chunks: of each chunk, and of each row."""
ENTROPY_NS = 1_000_000

SHAPES = ((1, 128), (8, 128), (1, 1024))
HELDOUT = (2, 512)
PADDED, UNPADDED = (4, 256), (4, 64)
LOSS_SHAPE = (8, 128)
CHUNKS = (64, 256, 512)


def cost_ns(rows: int, length: int) -> int:
    """Return what a micro-step of the planted step takes."""
    return FIXED_NS + rows * length * (TOKEN_NS + SQUARE_NS * length)


EXPECTED = {
    "fit.fixed": FIXED_NS / 1e6,
    "fit.per_token": TOKEN_NS / 1e3,
    "fit.per_token_length": float(SQUARE_NS),
    "fit.heldout_error": 0.0,
    "penalty.measured": cost_ns(*PADDED) / cost_ns(*UNPADDED),
    "penalty.predicted": cost_ns(*PADDED) / cost_ns(*UNPADDED),
    "ce.share": LOSS_NS / cost_ns(*LOSS_SHAPE),
    "ce.best_chunk_rows": 256.0,
}
"""The answer, by figure."""


def known_experiments() -> Evidence:
    """Return nine blocks of every experiment, on clocks that scatter in no way."""
    records: list[ExperimentRecord] = [_harness()]
    for block in range(BLOCKS):
        records += [_measured("scaling", block, shape) for shape in SHAPES]
        records += [_measured("heldout", block, HELDOUT)]
        records += [_measured("padded", block, PADDED), _measured("unpadded", block, UNPADDED)]
        records += _losses(block)
    records += [Restored(unchanged={"parameters": True, "random": True}, seconds=3.0), Done(reason="finished")]
    name = "experiments-rank0-pid1.jsonl"
    return Evidence(
        probe="profile",
        command="profile",
        subject="a step whose cost is known",
        environment={},
        files={name: encode_process(records)},
    )


def _harness() -> Harness:
    return Harness(
        schema=EXPERIMENTS_SCHEMA,
        source="replay",
        root="Planted",
        rank=0,
        device="cpu",
        dtype="float32",
        threads=1,
        micro_steps=1,
        batches=[[256, 64, 32, 32], [64, 64, 64, 64]],
        labelled_share=1.0,
        captured_loss=None,
        replayed_loss=None,
        longest=None,
        vocabulary=VOCABULARY,
    )


def _losses(block: int) -> list[Measured]:
    rows = LOSS_SHAPE[0] * LOSS_SHAPE[1]
    plain = _measured("loss", block, LOSS_SHAPE, spent_ns=LOSS_NS, peak_bytes=16 * rows * VOCABULARY)
    chunks = [
        _measured(
            "loss_chunk",
            block,
            LOSS_SHAPE,
            variant=str(chunk),
            spent_ns=rows // chunk * CHUNK_NS + rows * ROW_NS,
            peak_bytes=4 * chunk * VOCABULARY,
        )
        for chunk in CHUNKS
    ]
    return [plain, *chunks, _measured("loss_metric", block, LOSS_SHAPE, variant="entropy", spent_ns=ENTROPY_NS)]


def _measured(
    experiment: Experiment,
    block: int,
    shape: tuple[int, int],
    *,
    variant: str = "",
    spent_ns: int | None = None,
    peak_bytes: int | None = None,
) -> Measured:
    rows, length = shape
    spent = cost_ns(rows, length) if spent_ns is None else spent_ns
    return Measured(
        experiment=experiment,
        variant=variant,
        block=block,
        rows=rows,
        length=length,
        real=UNPADDED[0] * UNPADDED[1] if experiment == "padded" else rows * length,
        wall_ns=spent + 100_000,
        thread_ns=spent,
        process_ns=spent,
        peak_bytes=peak_bytes,
        loss=7.0 if experiment in ("loss", "loss_chunk") else None,
        gradient=1.0 if experiment in ("loss", "loss_chunk") else None,
    )
