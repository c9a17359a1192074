"""A config of the same class, so small that its model runs in milliseconds, with every kind of layer that it has."""

from collections.abc import Callable
from typing import Any

LENGTH = 24
WINDOW = 6
CHUNK = 8
LAYERS = 2
VOCABULARY = 97

_SIZES: dict[str, Any] = dict(
    vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_attention_heads=4, num_key_value_heads=2,
    head_dim=8, max_position_embeddings=128, n_embd=32, n_head=4, n_positions=128, n_ctx=128, d_model=32, n_heads=4,
    max_seq_len=128, ffn_dim=48, word_embed_proj_dim=32, embedding_size=32, num_experts=4, num_local_experts=4,
    n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=16, shared_expert_intermediate_size=16,
    intermediate_size_mlp=48, global_head_dim=16, num_global_key_value_heads=1, vocab_size_per_layer_input=VOCABULARY,
    hidden_size_per_layer_input=8, sliding_window=WINDOW,
    sliding_window_size=WINDOW, emb_dim=32, attention_chunk_size=CHUNK, num_kv_shared_layers=0,
    linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=8, linear_value_head_dim=8, n_group=1,
    topk_group=1, q_lora_rank=16, kv_lora_rank=8, qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=8,
    first_k_dense_replace=1, pad_token_id=0, bos_token_id=1, eos_token_id=2, qk_head_dim=16, keep_window=4,
    top_k_experts=2, decoder_layers=LAYERS, encoder_layers=LAYERS, encoder_ffn_dim=48, decoder_ffn_dim=48,
    encoder_attention_heads=4, decoder_attention_heads=4, window_size=WINDOW, rotary_dim=8, initializer_range=0.1,
    moe_shared_expert_intermediate_size=16, dim_ff=48, dff=48, ffn_hidden_size=48, expert_ffn_hidden_size=16,
    unpadded_vocab_size=VOCABULARY,
)  # fmt: skip
_STATE_SPACE = dict(state_size=8, n_groups=1, mamba_n_heads=8, mamba_d_head=8, mamba_n_groups=1, mamba_d_state=8,
    mamba_chunk_size=8, mamba_num_heads=8, mamba_head_dim=8, mamba_d_ssm=64, ssm_state_size=8, chunk_size=8,
)  # fmt: skip
_LAYER_COUNTS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers")
_PRIVATE = (
    "model_type",
    "transformers_version",
    "architectures",
    "dtype",
    "torch_dtype",
    "auto_map",
    "quantization_config",
)
_STRUCTURE = ("rope_parameters", "use_sliding_window", "is_causal", "use_bidirectional_attention", "attention_k_eq_v",
              "enable_moe_block", "partial_rotary_factor", "layer_types")  # fmt: skip


def ways(text: Any) -> list[Callable[[], Any]]:
    """Return functions that each make a tiny config in another way, the closest to the original first."""
    return [lambda: _from_own_fields(text), lambda: _from_defaults(text), lambda: _from_defaults_alone(text)]


def _from_own_fields(text: Any) -> Any:
    fields = {
        name: value for name, value in text.to_dict().items() if name not in _PRIVATE and not name.startswith("_")
    }
    count = next((fields[name] for name in _LAYER_COUNTS if isinstance(fields.get(name), int)), LAYERS)
    chosen = _chosen(fields, count)
    for name, value in fields.items():
        if isinstance(value, list) and len(value) == count:
            fields[name] = [value[place] for place in chosen]
    fields.pop("per_layer_config", None)  # its keys are the numbers of the layers that are gone
    return type(text)(**_decoding({**fields, **_settable(type(text), _small(fields, len(chosen)))}))


def _from_defaults(text: Any) -> Any:
    base = type(text)()
    small = _settable(type(text), _small({name: _get(base, name) for name in [*_SIZES, *_LAYER_COUNTS]}, LAYERS))
    for name in _STRUCTURE:
        if (value := _get(text, name)) is not None:
            small[name] = value
    kinds = _get(text, "layer_types") or _get(base, "layer_types")
    if kinds:
        distinct = list(dict.fromkeys(kinds))
        small["layer_types"] = (distinct * LAYERS)[: max(LAYERS, len(distinct))]
        small["num_hidden_layers"] = len(small["layer_types"])
    return type(text)(**_decoding(small, base))


def _from_defaults_alone(text: Any) -> Any:
    base = type(text)()
    small = _settable(type(text), _small({name: _get(base, name) for name in [*_SIZES, *_LAYER_COUNTS]}, LAYERS))
    return type(text)(**_decoding(small, base))


def _small(fields: dict[str, Any], layers: int) -> dict[str, Any]:
    small = {name: value for name, value in _SIZES.items() if fields.get(name) is not None}
    small |= {name: layers for name in _LAYER_COUNTS if fields.get(name) is not None}
    small |= {name: value for name, value in _STATE_SPACE.items() if fields.get(name) is not None}
    if fields.get("expand") is not None and fields.get("num_heads") is not None:
        small["num_heads"] = 8  # heads x head_dim = hidden x expand
    if "num_experts_per_tok" in fields and fields["num_experts_per_tok"] is None and small.get("n_routed_experts"):
        small["num_experts_per_tok"] = 2  # some classes leave it out of their defaults
    heads, shared = fields.get("num_attention_heads"), fields.get("num_key_value_heads")
    if shared is not None:
        small["num_key_value_heads"] = 4 if shared == heads else 2
    if fields.get("use_sliding_window") is False:
        small.pop("sliding_window", None)
    small |= {name: 0.0 for name, value in fields.items() if "drop" in name and isinstance(value, float)}
    return small


def _settable(kind: type, fields: dict[str, Any]) -> dict[str, Any]:
    """Leave out what a class computes from other fields."""
    return {
        name: value for name, value in fields.items() if getattr(getattr(kind, name, None), "fset", kind) is not None
    }


def _decoding(fields: dict[str, Any], base: Any = None) -> dict[str, Any]:
    if "is_decoder" in fields or hasattr(base, "is_decoder"):
        fields["is_decoder"] = True
    return fields


def _chosen(fields: dict[str, Any], count: int) -> list[int]:
    """Return layers that together show every kind of layer, at least two."""
    kinds = fields.get("layer_types") or fields.get("layers_block_type") or []
    first = {kind: place for place, kind in reversed(list(enumerate(kinds[:count])))}
    chosen = sorted(first.values()) or [0]
    while len(chosen) < LAYERS:
        chosen.append(chosen[-1] if count == 1 else next(place for place in range(count) if place not in chosen))
    return sorted(chosen)


def _get(config: Any, name: str) -> Any:
    try:
        return getattr(config, name, None)
    except Exception:  # some configs raise when layers differ in a field
        return None
