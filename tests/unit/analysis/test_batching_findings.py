"""Batching that was asked for and did not happen is found; batching that did happen is not accused."""

import pytest

from tests.unit.analysis.test_findings import findings, run


@pytest.mark.parametrize(
    ("facts", "kind"),
    [
        ({"packing": True}, "packing.ignored"),
        ({"group_by_length": True}, "grouping.ignored"),
        ({"train_sampling_strategy": "group_by_length"}, "grouping.ignored"),
    ],
)
def test_what_was_asked_for_and_did_not_happen(facts, kind):
    found = findings(run(counts={"slots": 8192}, per_device_train_batch_size=4, **facts))
    assert "it did not happen" in found[kind].title
    assert "50%" in found[kind].title
    assert found[kind].cost.low == 0


@pytest.mark.parametrize(
    ("slots", "facts"),
    [
        (8192, {}),
        (8192, {"packing": False, "train_sampling_strategy": "random"}),
        (4200, {"packing": True, "group_by_length": True}),
        (8192, {"packing": True, "per_device_train_batch_size": 1}),
    ],
)
def test_what_happened_or_was_not_asked_for(slots, facts):
    found = findings(run(counts={"slots": slots}, **{"per_device_train_batch_size": 4, **facts}))
    assert not {"packing.ignored", "grouping.ignored"} & set(found)
