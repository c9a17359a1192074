"""Gains that others published, where tokens alone promised far too much: the fixed part of a batch sets them right."""

import json
import random

import msgspec
import numpy as np
import pytest

from stepprobe.probes import bucket
from tests.fakes.lengths import evidence_of

FIT = {"a": 185 / 2, "b": 21.6e-3, "c": 0.0}
"""transformers#47340, two micro-batches a step: 185 ms of it fixed, 21.6 µs a padded token of the slowest rank."""
PUBLISHED = {"steps": 0.440 / 0.270, "end to end": 24_485 / 15_873}
"""Mean step in random order over grouped by length, and tokens a second, as published."""


def speed_up(seed, fit):
    """Speed-up of grouping by length, as `stepprobe bucket` ranks it, on the lengths of that thread."""
    dice = random.Random(seed)
    lengths = np.array([min(1024, max(16, int(dice.lognormvariate(5, 1)))) for _ in range(1600)])
    seen = evidence_of("bucket", lengths, batch_size=8, ranks=2, accumulation=2)
    if fit:
        seen = msgspec.structs.replace(seen, files={**seen.files, "fit.json": json.dumps(fit).encode()})
    strategies = next(table for table in bucket.derive(seen).tables if table.name == "strategies")
    return next(row[1] for row in strategies.rows if row[0].startswith("group by length"))


@pytest.mark.parametrize("seed", range(3))
def test_the_fixed_part_brings_a_threefold_promise_down_to_what_was_published(seed):
    tokens_alone, with_fixed = speed_up(seed, None), speed_up(seed, FIT)
    assert tokens_alone == pytest.approx(3.01, rel=0.1)
    assert with_fixed == pytest.approx(PUBLISHED["steps"], rel=0.05)
    assert PUBLISHED["end to end"] < with_fixed < tokens_alone


def test_lengths_beyond_what_a_fit_saw_are_said_to_be():
    def notes(**reach):
        seen = evidence_of("bucket", np.array([100, 200, 900] * 50), batch_size=8)
        return bucket.derive(
            msgspec.structs.replace(seen, files={**seen.files, "fit.json": json.dumps({**FIT, **reach}).encode()})
        ).notes

    assert any("beyond that" in note and "900" in note for note in notes(longest=192, slots=595))
    assert not any("beyond that" in note for note in notes(longest=900, slots=7200))
    assert not any("beyond that" in note for note in notes())
