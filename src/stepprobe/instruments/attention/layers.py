"""What the config declares of each layer: does it attend, and how far. Read from the config alone, never from masks."""

from typing import Any

from stepprobe.model.attention import Layer

_FULL = ("full_attention", "attention", "global", "hybrid", "indexed_attention", "moe_attention", "parallel_hybrid")
_SLIDING = ("sliding_attention", "local", "hybrid_sliding", "swa", "sliding_window")
_NONE = (
    "linear_attention",
    "mamba",
    "mamba2",
    "conv",
    "recurrent",
    "moe",
    "mlp",
    "ssm",
    "short_conv",
    "gmu",
    "cross_attention",
)
_WITHOUT_ATTENTION = {
    "xlstm": "recurrent",
    "rwkv": "recurrent",
    "mamba": "mamba",  # in transformers 5 the configs of this and the next two list them
    "mamba2": "mamba",
    "falcon_mamba": "mamba",
}
"""Model types whose configs list no kinds of layers and that attend nowhere."""
_LISTS = ("layer_types", "layers_block_type", "attention_layers", "hybrid_override_pattern", "block_types")


def declared_layers(text: Any) -> tuple[Layer, ...]:
    """Return the layers that a language model's config declares."""
    kinds = _kinds(text)
    for place in _get(text, "cross_attention_layers") or ():  # text alone does not reach them
        kinds[place : place + 1] = ["cross_attention"]
    window = _size(text, "sliding_window", "window_size", "local_attention", "attention_window_size")
    chunk = _size(text, "attention_chunk_size")
    causal = _is_causal(text)
    return tuple(_layer(place, kind, window, chunk, causal) for place, kind in enumerate(kinds))


def _is_causal(text: Any) -> bool:
    if _get(text, "use_bidirectional_attention") in (True, "all"):
        return False
    return bool(_get(text, "is_causal", True)) and _get(text, "causal") is not False


def _kinds(text: Any) -> list[str]:
    for name in _LISTS:
        listed = _get(text, name)
        if isinstance(listed, list | tuple) and listed:
            return [str(kind) for kind in listed]
    without = _WITHOUT_ATTENTION.get(str(_get(text, "model_type")))
    count = _size(text, "decoder_layers", "num_hidden_layers", "n_layer", "num_layers", "n_layers") or 0
    window = _size(text, "sliding_window")
    slides = window is not None and _get(text, "use_sliding_window", True) is not False
    return [without or ("sliding_attention" if slides else "full_attention")] * count


def _layer(place: int, kind: str, window: int | None, chunk: int | None, causal: bool) -> Layer:
    if kind in _NONE:
        return Layer(index=place, kind=kind, attention=False)
    if not causal:
        return Layer(index=place, kind="bidirectional")
    if kind in _SLIDING and window:
        return Layer(index=place, kind="sliding", size=window)
    if kind == "chunked_attention" and chunk:
        return Layer(index=place, kind="chunked", size=chunk)
    if kind in _FULL or kind in _SLIDING or kind == "chunked_attention":
        return Layer(index=place, kind="full")
    return Layer(index=place, kind=kind)


def _size(text: Any, *names: str) -> int | None:
    for name in names:
        size = _get(text, name)
        if isinstance(size, int) and not isinstance(size, bool) and size > 0:
            return size
    return None


def _get(config: Any, name: str, default: Any = None) -> Any:
    """Return a field; some configs raise when layers differ in it."""
    try:
        return getattr(config, name, default)
    except Exception:  # transformers raises its own classes here, one for each version
        return default
