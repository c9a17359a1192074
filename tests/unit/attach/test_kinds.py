"""Which part a module is."""

import pytest

from stepprobe.instruments.attach.kinds import kind_of

CASES = [
    ("model.layers.0.self_attn", "Qwen3Attention", "attention"),
    ("layers.0.linear_attn", "Qwen3_5GatedDeltaNet", "attention"),
    ("transformer.h.0.attn", "GPT2SdpaAttention", "attention"),
    ("model.layers.0.mlp", "LlamaMLP", "mlp"),
    ("blocks.0.mlp", "Sequential", "mlp"),
    ("model.layers.0.mlp", "Experts", "moe"),
    ("model.layers.0.mlp", "Qwen3MoeSparseMoeBlock", "moe"),
    ("model.layers.0.block_sparse_moe", "MixtralSparseMoeBlock", "moe"),
    ("model.layers.0.mlp.experts", "ModuleList", "moe"),
    ("model.norm", "Qwen3RMSNorm", "norm"),
    ("n1", "LayerNorm", "norm"),
    ("model.embed_tokens", "Embedding", "embed"),
    ("model.rotary_emb", "LlamaRotaryEmbedding", "embed"),
    ("lm_head", "Linear", "lm_head"),
    ("head", "Linear", "lm_head"),
    ("encoder.layer.0.output", "BertOutput", None),
    ("encoder.layers.0.linear1", "Linear", "mlp"),
    ("decoder.layers.0.fc2", "Linear", "mlp"),
    ("criterion", "CrossEntropyLoss", "loss"),
    ("model.layers.0", "Qwen3DecoderLayer", None),
    ("model.layers.0.self_attn.q_proj", "Linear", None),
    ("q_proj.lora_A.default", "LoraLinear", None),
    ("model", "Qwen3Model", None),
]


@pytest.mark.parametrize(("name", "cls", "part"), CASES)
def test_kind(name, cls, part):
    assert kind_of(name, type(cls, (), {})()) == part
