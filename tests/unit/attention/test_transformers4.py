"""What transformers 4 does otherwise: run with ``pip install 'transformers==4.57.*'``, from 4.53 on."""

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from stepprobe.instruments.attention import models  # noqa: E402
from tests.fakes.attention import config, kinds, report, value  # noqa: E402

PAIR = tuple(int(part) for part in transformers.__version__.split(".")[:2])
pytestmark = pytest.mark.skipif(PAIR >= (5, 0), reason="for transformers 4")


def test_without_a_cache_the_fast_path_is_lost_for_nothing():
    told = report(config("qwen3"))
    assert kinds(told) == {"mask.lost_for_nothing"}
    assert (value(told, "mask.layers_fast"), value(told, "mask.layers_correct")) == (0, 2)
    assert "upgrade it" in told.findings[0].remedies[0].action
    assert report(config("qwen3"), cache=None).verdict == "ok"


def test_eager_attention_that_no_interface_is_asked_for_is_seen():
    told = report(config("gpt_oss"))
    assert value(told, "mask.layers") == value(told, "mask.layers_correct") == 2
    assert "kernel.eager" in kinds(told)


def test_eager_attention_is_put_back():
    from transformers.models.qwen3 import modeling_qwen3

    before = modeling_qwen3.eager_attention_forward
    report(config("qwen3"), attention="eager")
    assert modeling_qwen3.eager_attention_forward is before


def test_a_class_that_takes_the_text_part_of_a_config_is_given_it():
    with models.quiet():
        text = config("llama4_text").to_dict()
        told = report(transformers.Llama4Config(text_config=text))
    assert value(told, "mask.layers_correct") == 2
