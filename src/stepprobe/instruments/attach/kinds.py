"""Which part of the forward pass a module is, told by its class and, failing that, by its name."""

from typing import Any

_BY_NAME = {
    "attention": ("self_attn", "attn", "attention", "self_attention", "cross_attn", "linear_attn"),
    "mlp": ("mlp", "feed_forward", "ffn", "feedforward", "fc1", "fc2", "linear1", "linear2"),
    "lm_head": ("lm_head", "embed_out"),
}
_LM_HEAD_NEAR_THE_TOP = ("output", "head")
"""Names of the head where they stand at most one level deep; further down they are other things."""


def kind_of(name: str, module: Any) -> str | None:
    """Return the part (``attention``, ``mlp``, ``moe``, ``norm``, ``embed``, ``lm_head``, ``loss``), or None.

    The class is asked before the name: a mixture of experts often sits in an attribute called ``mlp``.
    """
    kind = _kind_of_class(type(module).__name__.lower())
    if kind is not None:
        return kind or None
    last = name.rpartition(".")[2].lower()
    if "experts" in last:
        return "moe"
    if last in _LM_HEAD_NEAR_THE_TOP and name.count(".") <= 1:
        return "lm_head"
    return next((kind for kind, names in _BY_NAME.items() if last in names), None)


def _kind_of_class(name: str) -> str | None:
    """Return the part; "" where the class says that it is none; None where the class says nothing."""
    if "lora" in name or (name.endswith(("layer", "layers", "block", "model")) and "moe" not in name):
        return "" if "lora" in name else None
    if "expert" in name or name.endswith(("moe", "moeblock", "sparsemoe")):
        return "moe"
    if name.endswith(("attention", "attn")):
        return "attention"
    if name.endswith("mlp"):
        return "mlp"
    if "norm" in name:
        return "norm"
    if "embedding" in name:
        return "embed"
    return "loss" if name.endswith("loss") else None
