"""Predictions of the ledger held to planted truths: what a change leaves must lie in the interval."""

import random

import pytest

from stepprobe.analysis.findings import find
from stepprobe.analysis.ledger.job import read_job
from stepprobe.analysis.outcome.comparison import examine
from tests.fakes.records import CLEAN, METHODS, FakeProcess, evidence

ROWS = 8


def padded(seed, terms, *, noise=0.02, full=0.45, steps=120, attention=0.4):
    """Steps of 8 rows as long as the longest: ms are terms[0] + terms[1]·slots + terms[2]·slots²/rows."""
    dice = random.Random(seed)
    fake = FakeProcess(**METHODS)
    shapes = []
    for _ in range(steps):
        length = round(min(512, 60 + 90 * dice.expovariate(1)))
        slots = ROWS * length
        ms = (terms[0] + terms[1] * slots + terms[2] * slots**2 / ROWS) * (1 + dice.gauss(0, noise))
        shapes.append((f"{ROWS}×{length} masked", 1))
        counters = {"slots": slots, "real": round(slots * full), "labelled": round(slots * full), "micro_steps": 1}
        parts = {"forward.attention": ms * attention, "backward.mlp": ms * (1 - attention)}
        fake.step({**parts, "optimizer": 2.0}, counters)
    return fake.sites(shapes=shapes).end()


def promised(fake, kind):
    job = read_job(evidence(fake))
    finding = next(one for one in find(job.main, job.ranks) if one.kind == kind)
    return {remedy.name: remedy.predicted for remedy in finding.remedies}


def mean_ms(fake, terms, part):
    """Mean time of the same steps when every batch has only ``part`` of its slots."""
    slots = [record.counters["slots"] * part for record in fake.records if hasattr(record, "counters")]
    return sum(terms[0] + terms[1] * one + terms[2] * one**2 / ROWS for one in slots) / len(slots)


@pytest.mark.parametrize(
    "terms", [(6, 0.05, 0.0), (30, 0.03, 0.0), (0, 0.05, 0.0), (6, 0.02, 2e-4), (10, 0.0, 3e-4), (6, 0.024, 4e-5)]
)
def test_what_grouping_leaves_lies_in_the_interval(terms):
    inside = 0
    for seed in range(10):
        fake = padded(seed, terms)
        group = promised(fake, "padding.waste")["padding.group"]
        truth = mean_ms(fake, terms, 1.0) - mean_ms(fake, terms, 0.45 / 0.95)  # 5 % padding is left
        inside += group.low <= truth <= group.high
    assert inside >= 9


@pytest.mark.parametrize("terms", [(6, 0.02, 2e-4), (20, 0.0, 3e-4)])
def test_three_quarters_of_padding_lie_far_from_what_was_seen_and_a_power_alone_would_promise_too_much(terms):
    inside = 0
    for seed in range(8):
        fake = padded(seed, terms, full=0.25, noise=0.01)
        group = promised(fake, "padding.waste")["padding.group"]
        truth = mean_ms(fake, terms, 1.0) - mean_ms(fake, terms, 0.25 / 0.95)
        inside += group.low <= truth <= group.high
    assert inside >= 6


def test_the_interval_says_something():
    for terms in ((6, 0.05, 0.0), (6, 0.02, 2e-4)):
        group = promised(padded(1, terms), "padding.waste")["padding.group"]
        assert group.high - group.low < 0.5 * group.value


def test_packing_without_a_variable_length_kernel_lies_in_the_interval_too():
    """All real tokens of a batch in one row, attention over the whole of it: 8 · 0.45² = 1.62 times the pairs."""
    terms = (6, 0.03, 0.0)
    fake = padded(1, terms)
    pack = promised(fake, "padding.waste")["padding.pack"]
    whole = mean_ms(fake, terms, 1.0)
    without_attention = 0.6 * (whole - mean_ms(fake, terms, 0.45)) - 0.4 * whole * (8 * 0.45**2 - 1)
    assert pack.low <= without_attention <= pack.high
    assert pack.low <= whole - mean_ms(fake, terms, 0.45 / 0.95) <= pack.high


def test_checkpointings_own_work_is_inside_the_upper_end_only():
    fake = FakeProcess(**METHODS)
    for number in range(60):
        factor = 1 + 0.01 * (number % 5 - 2)
        booked = {**CLEAN, "recompute": 20, "gc": 2, "unattributed": 10.5}  # of which the thread slept for 10
        off = {"unattributed": 10 * factor}
        fake.step({name: ms * factor for name, ms in booked.items()}, {"slots": 10}, off_cpu=off)
    predicted = promised(fake.end(), "recompute")["checkpointing.off"]
    around = CLEAN["forward.other"] + CLEAN["backward.other"] + CLEAN["unattributed"] + 2
    assert predicted.value == pytest.approx(20, rel=0.01)
    assert predicted.low == pytest.approx(20, rel=0.02)
    assert predicted.high == pytest.approx(20 + around, rel=0.02)


def test_on_a_busy_machine_the_outcome_reaches_from_the_whole_step_to_the_accounts_of_the_change():
    """Recomputing took 20 ms; another 10 ms of the rest are gone, too, and may be the other load's doing."""

    def run(seed, more):
        noise, fake = random.Random(seed), FakeProcess(**METHODS, model="Tiny", parameters=9)
        for _ in range(80):
            factor = noise.gauss(1, 0.01)
            fake.step({n: ms * factor for n, ms in {**CLEAN, **more}.items()}, off_cpu={"backward.mlp": 25})
        return evidence(fake.end())

    busy = {"backward.mlp": 60.0}
    (judged,) = examine(run(1, {**busy, "recompute": 20.0, "backward.attention": 34.0}), run(2, busy))[1].judged
    assert judged.measured.value == pytest.approx(30, abs=1)
    assert judged.measured.low < 20.5
    assert judged.measured.high > 29.5
    assert judged.held == "undecided"
