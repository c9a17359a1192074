"""Tiny models of each kind whose FLOPs are counted, and their FLOPs by arithmetic."""

import msgspec

from stepprobe.analysis.limits.decoder import read_decoder
from stepprobe.analysis.limits.flops import micro_step
from stepprobe.instruments.experiments.flop_counter import structure
from stepprobe.model.experiments import Structure

SIZES = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
}
MIXED = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 48}

CONFIGS = {
    "llama": ("LlamaConfig", {}),
    "llama, shared keys": ("LlamaConfig", {"num_key_value_heads": 2}),
    "llama, tied head": ("LlamaConfig", {"tie_word_embeddings": True}),
    "qwen2, biases": ("Qwen2Config", {"num_key_value_heads": 2}),
    "qwen3, wide heads": ("Qwen3Config", {"num_key_value_heads": 2, "head_dim": 32}),
    "mistral, window": ("MistralConfig", {"num_key_value_heads": 2, "sliding_window": 16}),
    "gemma2, every other window": ("Gemma2Config", {"num_key_value_heads": 2, "head_dim": 16, "sliding_window": 16}),
    "gemma3": ("Gemma3TextConfig", {"num_key_value_heads": 1, "head_dim": 32, "sliding_window": 8}),
    "phi3, fused": ("Phi3Config", {"num_key_value_heads": 2, "pad_token_id": 0}),
    "qwen3-moe": ("Qwen3MoeConfig", {"num_key_value_heads": 2, "head_dim": 16, **MIXED}),
    "qwen2-moe, shared expert, one dense layer": (
        "Qwen2MoeConfig",
        {"num_key_value_heads": 2, "shared_expert_intermediate_size": 80, "mlp_only_layers": [1], **MIXED},
    ),
    "mixtral": ("MixtralConfig", {"num_key_value_heads": 2, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "gpt2": ("GPT2Config", {}),
    "gpt-neox": ("GPTNeoXConfig", {}),
}


def make(name):
    """Return a model of a named config."""
    import torch
    import transformers

    kind, changes = CONFIGS[name]
    sizes = dict(SIZES)
    if kind == "GPT2Config":
        sizes = {"vocab_size": 512, "n_embd": 64, "n_layer": 3, "n_head": 4}
    torch.manual_seed(0)
    config = getattr(transformers, kind)(**{**sizes, **changes})
    return transformers.AutoModelForCausalLM.from_config(config)


def described(model):
    """Return what a process would write of a model, read back."""
    import torch

    return msgspec.convert(structure(torch, model), Structure)


def decoder_of(model):
    """Return a model as its config and its weights describe it."""
    told = described(model)
    return read_decoder(told.config, told.weights, told.embedding_gradient)


def products(model, rows, length, convention="square"):
    """Return the products of a micro-step of a model, by arithmetic alone."""
    decoder = decoder_of(model)
    assert decoder.not_read == ()
    return micro_step(decoder, rows, length, convention)
