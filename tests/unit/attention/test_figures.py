"""Figures that can be counted by hand, and the picture of a mask as a chart."""

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from transformers.integrations import sdpa_attention

from stepprobe.analysis.attention.known import EXPECTED, known_capture
from stepprobe.analysis.attention.pictures import SHADES
from stepprobe.probes import mask
from stepprobe.report import charts
from tests.fakes.attention import config, report, value

PLAIN = "ones"
"""A batch that needs no mask; of one without ``attention_mask`` transformers 4 makes one when the cache is off."""


def test_the_needed_share_of_plain_causal_attention_is_all_that_flash_computes():
    assert value(report(config("qwen3"), PLAIN), "mask.flops_needed_share") == 1
    assert value(report(config("qwen3"), PLAIN, card="v100"), "mask.flops_needed_share") == pytest.approx(
        24 * 25 / 2 / 24**2
    )


def test_packed_documents_need_a_part_of_the_square_that_the_mask_costs():
    needed = 10 * 11 / 2 + 14 * 15 / 2
    assert value(report(config("qwen3"), "packed"), "mask.flops_needed_share") == pytest.approx(needed / 24**2)


def test_bytes_of_a_boolean_mask_and_its_bias():
    assert value(report(config("qwen3"), "packed", size=3), "mask.bytes") == 3 * 24 * 24 + 3 * 24 * 32 * 2
    assert value(report(config("qwen3"), PLAIN), "mask.bytes") == 0


def test_repeated_keys_are_counted_where_a_mask_makes_them_necessary():
    repeated = 4 * 24 * (8 + 8) * 2
    grouped = config("qwen3", num_key_value_heads=2)
    assert value(report(grouped, "packed"), "mask.repeat_kv_bytes") == repeated
    if hasattr(sdpa_attention, "use_gqa_in_sdpa"):  # transformers 4.53 repeats them with every mask and with none
        assert value(report(grouped, PLAIN), "mask.repeat_kv_bytes") == 0


def test_the_known_capture_is_recovered():
    told = mask.derive(known_capture())
    assert {name: value(told, name) for name in EXPECTED} == EXPECTED
    assert told.verdict == "fail"


def test_a_derivation_that_is_wrong_is_not_measured(monkeypatch):
    from stepprobe.analysis.attention import figures

    monkeypatch.setattr(figures, "mask_bytes", lambda views: 1)
    told = mask.derive(known_capture())
    assert told.verdict == "not measured"
    assert "mask.bytes" in told.headline


def test_a_picture_is_drawn_in_cells_from_the_top():
    chart = next(chart for chart in report(config("qwen3")).charts if chart.mark == "rect")
    spec = charts.spec(chart)
    assert spec["mark"] == "rect"
    assert [spec["encoding"][axis]["type"] for axis in "xy"] == ["ordinal", "ordinal"]
    assert len(spec["data"]["values"]) == 24 * 24


def test_a_picture_of_blocks_says_what_they_mean():
    (table,) = [one for one in report(config("qwen3")).tables if one.name.startswith("picture")]
    assert all(shade in table.caption for shade in SHADES)
