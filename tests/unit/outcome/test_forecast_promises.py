"""Forecasts of a profile are promises like those of a finding, and take the place of what the ledger alone can say."""

import pytest

from stepprobe.analysis.outcome.comparison import examine
from tests.fakes.experiments import FakeExperiments
from tests.fakes.experiments import evidence as profiled
from tests.fakes.records import evidence
from tests.unit.outcome.test_outcome import run

ROWS = [[64, 128, 256, 512], [32, 100, 300, 480]] * 8
"""Real tokens of the rows of micro-batches: 1872 of 3968 slots."""


def profile(*, seed=1, accounts=None, **facts):
    experiments = FakeExperiments(batches=ROWS, labelled_share=1.0, micro_steps=1).quiet().scaling().structure().end()
    counts = {"slots": 1984, "real": 936, "labelled": 930, **MIXED}
    padded = {"forward.attention": 24, "backward.mlp": 56, **(accounts or {})}
    shapes = {"shapes": [("4×512 masked", 40), ("4×480 masked", 40)]}
    return profiled(experiments, run(seed, padded, counts=counts, sites=shapes, **facts))


PAIR = [ROWS[0], ROWS[1]]
"""What the steps hold, one micro-batch in two of them."""
SQUARES = sum(one * one for rows in PAIR for one in rows) // 2
MIXED = {
    "rows": 4,
    "forwards": 1,
    "longest_slots": 4 * (512 + 480) // 2,
    "row_squares": SQUARES,
    "mixed_squares": SQUARES - sum(sum(rows) ** 2 // 4 for rows in PAIR) // 2,
}


def grouped(seed=2, accounts=None, **facts):
    alike = {**MIXED, "longest_slots": 1000, "mixed_squares": MIXED["mixed_squares"] // 10}
    counts = {"slots": 1000, "real": 936, "labelled": 930, **alike}
    shapes = {"shapes": [("4×250 masked", 80)]}
    return evidence(run(seed, {"forward.attention": 12, **(accounts or {})}, counts=counts, sites=shapes, **facts))


def test_what_was_forecast_is_held_to_what_came():
    before = profile()
    report, found = examine(before, grouped())
    names = [one.remedy for one in found.judged]
    assert names == ["forecast.bucketing"]
    promise = found.judged[0].predicted
    assert promise.value > 0
    assert promise.low < promise.value < promise.high
    assert found.judged[0].measured.value == pytest.approx(40, abs=2)
    assert report.findings[0].kind == "forecast.bucketing"


def test_a_forecast_takes_the_place_of_the_ledgers_own_promise():
    kinds = {
        row[0] for table in examine(profile(), grouped())[0].tables if table.name == "promises" for row in table.rows
    }
    assert not any("group rows by length" in kind for kind in kinds)
    assert any("sorted by length" in kind for kind in kinds)


def test_a_change_that_no_forecast_speaks_of_keeps_the_ledgers_promise():
    slow = {"logging": 20}
    _, found = examine(
        profile(accounts=slow),
        evidence(
            run(
                2,
                {"forward.attention": 24, "backward.mlp": 56},
                counts={"slots": 1984, "real": 936, "labelled": 930},
                sites={"shapes": [("4×512 masked", 80)]},
            )
        ),
    )
    assert [one.remedy for one in found.judged] == ["logging.less"]


def test_a_profile_can_be_the_run_after():
    _, found = examine(profile(accounts={"recompute": 30}), profile(seed=3))
    assert [one.remedy for one in found.judged] == ["forecast.checkpointing_off"]
    assert found.judged[0].measured.value == pytest.approx(30, abs=2)


def packed(labelled, seed=2):
    """A run without a mask: eight rows of 512 slots."""
    counts = {"slots": 4096, "real": 4096, "labelled": labelled}
    shapes, facts = {"shapes": [("8×512", 80)]}, {"counts.real": "no attention mask, so all slots"}
    spent = {"forward.attention": 50, "backward.mlp": 110}
    return evidence(run(seed, spent, counts=counts, sites=shapes, **facts))


def test_packing_is_seen_without_a_mask_where_as_many_tokens_have_a_label():
    _, found = examine(profile(), packed(labelled=4070))
    assert "forecast.packing" in [one.remedy for one in found.judged]


def test_padding_without_a_mask_is_no_packing():
    """Half of the slots have no label, as padding has none."""
    _, found = examine(profile(), packed(labelled=2000))
    assert "forecast.packing" not in [one.remedy for one in found.judged]


def fixed(seed=1):
    """The same rows padded to 600 slots, which none of them needs."""
    experiments = FakeExperiments(batches=ROWS, labelled_share=1.0, micro_steps=1).quiet().scaling().structure().end()
    counts = {"slots": 2400, "real": 936, "labelled": 930, **MIXED}
    padded = {"forward.attention": 30, "backward.mlp": 70}
    return profiled(experiments, run(seed, padded, counts=counts, sites={"shapes": [("4×600 masked", 80)]}))


def longest(seed=2):
    counts = {"slots": 1984, "real": 936, "labelled": 930, **MIXED}
    shapes = {"shapes": [("4×512 masked", 40), ("4×480 masked", 40)]}
    return evidence(run(seed, {"forward.attention": 24, "backward.mlp": 56}, counts=counts, sites=shapes))


def test_padding_to_the_longest_row_has_a_forecast_of_its_own_and_grouping_one_on_top_of_it():
    assert [one.remedy for one in examine(fixed(), longest())[1].judged] == ["forecast.longest"]
    both = evidence(
        run(
            2,
            {"forward.attention": 12},
            counts={**MIXED, "slots": 1000, "real": 936, "longest_slots": 1000, "mixed_squares": 9000},
            sites={"shapes": [("4×250 masked", 40), ("4×240 masked", 40)]},
        )
    )
    found = {one.remedy: one.predicted for one in examine(fixed(), both)[1].judged}
    joint = found["forecast.bucketing + forecast.longest"]
    assert joint.value == pytest.approx(found["forecast.longest"].value + found["forecast.bucketing"].value)
    report = examine(fixed(), both)[0]
    assert not any("padding to the longest of a batch" in str(finding.title) for finding in report.findings)
