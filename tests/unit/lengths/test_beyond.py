"""Ids and labels, held to a vocabulary."""

import pytest

from stepprobe.analysis.lengths.beyond import vocabulary
from stepprobe.model.lengths import About

IDS, BELOW, LABELS = "tokenizer.beyond_vocabulary", "data.negative_id", "data.label_beyond_vocabulary"


@pytest.mark.parametrize(
    ("size", "seen", "verdict", "kinds"),
    [
        (100, {"largest_id": 99, "largest_label": 99}, "ok", []),
        (100, {"largest_id": 99, "tokenizer_top": 100}, "warn", [IDS]),
        (100, {"largest_id": 100}, "fail", [IDS]),
        (100, {"largest_id": 5, "smallest_id": -100}, "fail", [BELOW]),
        (100, {"largest_id": 5, "largest_label": 100}, "fail", [LABELS]),
        (100, {"largest_id": 5, "largest_label": 4, "smallest_label": -1}, "fail", [LABELS]),
        (100, {"tokenizer_top": 100, "largest_label": 4, "smallest_label": -1}, "fail", [IDS, LABELS]),
        (0, {"largest_id": 10**6, "largest_label": 10**6}, "ok", []),
        (0, {"smallest_id": -1, "smallest_label": -1}, "fail", [BELOW, LABELS]),
    ],
)
def test_what_no_model_takes(size, seen, verdict, kinds):
    held = vocabulary(size, About(rows=3, **seen))
    assert (held.verdict, [one.kind for one in held.findings]) == (verdict, kinds)
    for one in held.findings:
        assert set(one.cites) <= set(held.figures)
        assert one.cost.value > 0


def test_both_ends_are_named():
    (found,) = vocabulary(100, About(rows=3, smallest_label=-7, largest_label=1200)).findings
    assert "label -7 and 1,200, and the loss takes 0 to 99" in found.title
