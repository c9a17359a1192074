"""Configs of real models, where they are at hand: a verdict for each at two lengths, and the layers that are known."""

import os
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from stepprobe.instruments.attention.subject import Model, Question
from stepprobe.probes import mask
from tests.fakes.attention import kinds, value

SHARED = os.environ.get("STEPPROBE_SHARED_DATA", "")
pytestmark = pytest.mark.skipif(not SHARED, reason="STEPPROBE_SHARED_DATA names no folder with configs of real models")

LAYERS = {
    "HuggingFaceTB--SmolLM2-135M-Instruct": 30,
    "Qwen--Qwen2.5-3B": 36,
    "Qwen--Qwen3-0.6B": 28,
    "Qwen--Qwen3-1.7B": 28,
    "Qwen--Qwen3-30B-A3B": 48,
    "Qwen--Qwen3-32B": 64,
    "Qwen--Qwen3-4B": 36,
    "Qwen--Qwen3-8B": 36,
    "Qwen--Qwen3-VL-2B-Instruct": 28,
    "Qwen--Qwen3-VL-4B-Instruct": 36,
    "Qwen--Qwen3.5-27B": 16,
    "Qwen--Qwen3.5-35B-A3B": 10,
    "deepseek-ai--DeepSeek-V3": 61,
    "google--gemma-4-26B-A4B": 30,
    "meta-llama--Llama-3.2-3B": 28,
    "meta-llama--Llama-4-Scout-17B-16E-Instruct": 48,
    "meta-llama--Meta-Llama-3.1-70B": 80,
    "meta-llama--Meta-Llama-3.1-8B": 32,
    "mistralai--Mixtral-8x7B-v0.1": 32,
    "openai--gpt-oss-120b": 36,
    "openai--gpt-oss-20b": 24,
    "transformers-default--Mistral-7B-v0.1": 32,
    "transformers-default--Phi-3-mini-4k": 32,
    "transformers-default--Qwen3-Next": 12,
    "transformers-default--Qwen3.5-text": 8,
    "transformers-default--SmolLM3-3B": 36,
    "transformers-default--gemma3-text": 26,
    "transformers-default--phi-1": 24,
}
FOUND = {
    ("google--gemma-4-26B-A4B", 4096): {"mask.lost", "kernel.fallback"},
    ("meta-llama--Llama-4-Scout-17B-16E-Instruct", 4096): set(),
    ("meta-llama--Llama-4-Scout-17B-16E-Instruct", 16384): {"mask.lost"},
    ("transformers-default--Mistral-7B-v0.1", 4096): {"mask.lost_for_nothing"},
    ("transformers-default--gemma3-text", 4096): {"mask.lost_for_nothing"},
    ("openai--gpt-oss-20b", 4096): {"kernel.eager"},
    ("deepseek-ai--DeepSeek-V3", 4096): {"kernel.fallback"},
    ("Qwen--Qwen3-0.6B", 16384): set(),
}


@pytest.mark.parametrize("length", [4096, 16384])
@pytest.mark.parametrize("name", LAYERS)
def test_each_real_config_has_a_verdict(name, length):
    told = mask.derive(
        Model(Question(model=str(Path(SHARED) / "configs" / f"{name}.json"), length=length, size=2)).observe()
    )
    assert told.verdict in ("ok", "warn"), told.headline
    assert value(told, "mask.layers") == value(told, "mask.layers_correct") == LAYERS[name]
    if (name, length) in FOUND:
        assert kinds(told) == FOUND[name, length]
