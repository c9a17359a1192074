"""Datasets whose batching is known: what the probes must recover before they are asked about another."""

from typing import TYPE_CHECKING

from stepprobe.model.evidence import Evidence
from stepprobe.model.lengths import About, build, encode

if TYPE_CHECKING:
    from numpy.typing import NDArray

ROWS = 500_000_000
"""Rows of each length: so many that drawing with and without replacement are the same."""
SHORT, LONG, BATCH = 100, 1000, 8

LONGEST = LONG - (LONG - SHORT) * 0.5**BATCH
"""The longest of eight is short only when all are: 996.484375."""

PADDING_EXPECTED = {
    "lengths.rows": 2.0 * ROWS,
    "padding.tokens_total": float((SHORT + LONG) * ROWS),
    "padding.expected_longest": LONGEST,
    "padding.waste_share": 1 - (SHORT + LONG) / 2 / LONGEST,
    "padding.waste_share.max_length": 1 - (SHORT + LONG) / 2 / LONG,
    "padding.truncated_share": 0.0,
    "padding.worst_batch": float(BATCH * LONG),
}
"""The answer of the padding probe, by figure."""

BUCKET_EXPECTED = {
    "bucket.waste_share.k1": 1 - (SHORT + LONG) / 2 / LONGEST,
    "bucket.waste_share.full_sort": 0.0,
    "bucket.effective_batch.k1": float(BATCH),
    "packing.bins": float(ROWS),
    "packing.bins_bound": float(ROWS),
    "packing.waste_share": 0.0,
}
"""The answer of the bucket probe, with packs of one long and one short row."""


def two_lengths(command: str) -> Evidence:
    """Return half short, half long rows in two sources, a batch of eight."""
    import numpy as np

    cells: NDArray[np.int64] = np.array([[0, SHORT, ROWS], [1, LONG, ROWS]], np.int64)
    about = About(sources=("long", "short"), rows=2 * ROWS)
    return Evidence(
        probe=command,
        command=command,
        subject="a dataset whose batching is known",
        environment={},
        files=encode(build(about, {"cells": cells})),
        options={"batch_size": str(BATCH), "pack_to": str(SHORT + LONG)},
    )
