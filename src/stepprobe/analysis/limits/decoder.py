"""What a decoder is made of, as far as its arithmetic goes: read from ``config.json`` and the kinds of its weights."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stepprobe.errors import EvidenceError
from stepprobe.model.experiments import Weight

FULL = ("full_attention", "attention", "global")
SLIDING = ("sliding_attention", "local", "sliding_window", "swa")
CHUNKED = ("chunked_attention",)
GATED = ("gate_proj", "gate_up_proj", "w1", "gate_and_up_proj")
FUSED = {"qkv_proj", "c_attn", "query_key_value", "Wqkv", "gate_up_proj", "gate_and_up_proj"}
UNGATED_TYPES = ("gpt2", "gpt_neo", "gpt_neox", "gptj", "opt", "phi", "falcon", "bloom", "starcoder2", "gpt_bigcode")
NOT_READ = {
    "kv_lora_rank": "keys and values are projected through a small space (MLA)",
    "altup_num_inputs": "layers that predict several streams",
    "hidden_size_per_layer_input": "embeddings for each layer",
    "cross_attention_layers": "layers that attend to an image",
    "mamba_d_state": "state space layers",
    "mamba_n_heads": "state space layers",
    "state_size": "state space layers",
    "ssm_cfg": "state space layers",
    "conv_L_cache": "short convolutions",
    "is_encoder_decoder": "an encoder beside the decoder",
}
"""Fields whose arithmetic is not written down here."""


@dataclass(frozen=True)
class Layer:
    """One layer of a decoder."""

    kind: str
    """``full``, ``sliding``, ``chunked`` or ``bidirectional``; else the config's own word for what is not read here."""
    size: int | None = None
    """Tokens of the window or the chunk."""
    experts: bool = False
    """The layer's MLP is a mixture of experts."""


@dataclass(frozen=True)
class Experts:
    """A mixture of experts."""

    count: int
    active: int
    """Experts that each token is sent to."""
    intermediate: int
    shared: int = 0
    """Width of the experts that see every token."""
    shared_gate: bool = False


@dataclass(frozen=True)
class Decoder:
    """Sizes of a decoder and the kinds of its layers."""

    hidden: int
    heads: int
    kv_heads: int
    head: int
    intermediate: int
    vocabulary: int
    layers: tuple[Layer, ...]
    gated: bool = True
    """The MLP has three matrices, else two."""
    experts: Experts | None = None
    weights: tuple[Weight, ...] = ()
    """None of them: everything is trained."""
    embedding_gradient: bool = True
    """Whether a gradient flows to what the embedding gives."""
    not_read: tuple[str, ...] = field(default=())
    """What of the config has arithmetic that is not written down here."""


def read_decoder(config: Mapping[str, Any], weights: Sequence[Weight] = (), embedding_gradient: bool = True) -> Decoder:
    """Read a config.

    Args:
        config: As transformers writes it into ``config.json``.
        weights: Kinds of weights of the model itself; without them, everything is taken as trained.
        embedding_gradient: Whether a gradient flows to what the embedding gives.

    Raises:
        EvidenceError: A size is missing or no number.
    """
    text = config.get("text_config") or config
    try:
        hidden = int(_one(text, "hidden_size", "n_embd", "d_model"))
        heads = int(_one(text, "num_attention_heads", "n_head", "num_heads"))
        experts = _experts(text)
        return Decoder(
            hidden=hidden,
            heads=heads,
            kv_heads=int(text.get("num_key_value_heads") or heads),
            head=int(text.get("head_dim") or hidden // heads),
            intermediate=int(_maybe(text, "intermediate_size", "n_inner", "ffn_dim") or 4 * hidden),
            vocabulary=int(_one(text, "vocab_size")),
            layers=_layers(text, experts, weights),
            gated=_gated(text, weights),
            experts=experts,
            weights=tuple(weights),
            embedding_gradient=embedding_gradient,
            not_read=_not_read(config, text, weights),
        )
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise EvidenceError(f"no config of a decoder: {error!s} is missing or no number") from error


def _maybe(text: Mapping[str, Any], *names: str) -> Any:  # noqa: ANN401 - JSON
    return next((text[name] for name in names if text.get(name) is not None), None)


def _one(text: Mapping[str, Any], *names: str) -> Any:  # noqa: ANN401 - JSON
    if (found := _maybe(text, *names)) is None:
        raise KeyError(names[0])
    return found


def _experts(text: Mapping[str, Any]) -> Experts | None:
    count = int(_maybe(text, "num_local_experts", "num_experts", "n_routed_experts") or 0)
    if count < 2:
        return None
    width = int(_one(text, "moe_intermediate_size", "intermediate_size"))
    shared = int(text.get("shared_expert_intermediate_size") or 0)
    gate = bool(shared)
    shared = shared or width * int(text.get("n_shared_experts") or 0)
    active = int(_one(text, "num_experts_per_tok", "moe_topk", "moe_k"))
    return Experts(count=count, active=active, intermediate=width, shared=shared, shared_gate=gate)


def _layers(text: Mapping[str, Any], experts: Experts | None, weights: Sequence[Weight]) -> tuple[Layer, ...]:
    count = int(_one(text, "num_hidden_layers", "n_layer", "num_layers"))
    kinds = text.get("layer_types") or [_plain_kind(text)] * count
    if len(kinds) != count:
        raise ValueError(f"layer_types of {len(kinds)} layers, of {count},")
    mixed = _mixed(text, count, weights) if experts else frozenset()
    return tuple(_layer(text, str(kind), place in mixed) for place, kind in enumerate(kinds))


def _plain_kind(text: Mapping[str, Any]) -> str:
    return "sliding_attention" if text.get("sliding_window") and text.get("use_sliding_window", True) else FULL[0]


def _layer(text: Mapping[str, Any], kind: str, experts: bool) -> Layer:
    window, chunk = text.get("sliding_window"), text.get("attention_chunk_size")
    known = kind in FULL or kind in SLIDING or kind in CHUNKED
    if known and (text.get("use_bidirectional_attention") in (True, "all") or text.get("is_causal") is False):
        return Layer("bidirectional", None, experts)
    if kind in SLIDING and window:
        return Layer("sliding", int(window), experts)
    if kind in CHUNKED and chunk:
        return Layer("chunked", int(chunk), experts)
    return Layer("full" if known else kind, None, experts)


def _mixed(text: Mapping[str, Any], count: int, weights: Sequence[Weight]) -> frozenset[int]:
    """Return the layers with experts: those that hold some, else those that the config names."""
    if weights:
        return frozenset(layer for weight in weights if ".experts." in weight.name for layer in weight.layers)
    every = int(text.get("decoder_sparse_step") or 1)
    dense = set(text.get("mlp_only_layers") or ()) | set(range(int(text.get("first_k_dense_replace") or 0)))
    return frozenset(place for place in range(count) if (place + 1) % every == 0 and place not in dense)


def _gated(text: Mapping[str, Any], weights: Sequence[Weight]) -> bool:
    if weights:
        return any(part in GATED for weight in weights for part in weight.name.split("."))
    return text.get("model_type") not in UNGATED_TYPES


def _not_read(config: Mapping[str, Any], text: Mapping[str, Any], weights: Sequence[Weight]) -> tuple[str, ...]:
    told = [f"{name}: {why}" for name, why in NOT_READ.items() if text.get(name) or config.get(name)]
    known = (*FULL, *SLIDING, *CHUNKED)
    told += [f"layers of kind {kind}" for kind in dict.fromkeys(text.get("layer_types") or ()) if kind not in known]
    if any("lora_magnitude" in weight.name or "lora_embedding" in weight.name for weight in weights):
        told.append("adapters other than plain LoRA of linear layers")
    adapted = [weight.name.split(".") for weight in weights if ".lora_A." in weight.name]
    if any(FUSED & set(segments) or "experts" in segments for segments in adapted):
        told.append("adapters of matrices that hold several, such as those of experts")
    return tuple(told)
