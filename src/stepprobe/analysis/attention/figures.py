"""The figures of the mask probe."""

from stepprobe.analysis.attention.answer import Answer
from stepprobe.analysis.attention.views import View
from stepprobe.model.estimate import Estimate, exact

_WIDTH = {"bool": 1, "float32": 4, "float64": 8}
_ALIGNED = 16
"""Elements to which the bias of the memory-efficient kernel is padded."""


def mask_figures(told: Answer) -> dict[str, Estimate]:
    """Return the figures by name."""
    views, card = told.views, told.card.name
    n = len(views)
    worst = told.worst
    figures = {
        "mask.layers": exact(n, "layers", n, "attention calls joined with the config's layers"),
        "mask.layers_fast": exact(
            sum(map(told.fast, views)), "layers", n, f"calls that flash or cuDNN takes on {card}, predicted"
        ),
        "mask.layers_correct": exact(
            sum(map(told.correct, views)), "layers", n, "masks equal to the reference; unreadable ones by the twin"
        ),
        "mask.bytes": exact(mask_bytes(views), "bytes", n, "distinct masks, and the largest as a bias of the kernel"),
        "mask.repeat_kv_bytes": exact(repeat_bytes(views), "bytes", n, "keys and values repeated, largest layer"),
        "mask.leak_pairs": exact(worst.leaked, "pairs", n, "pairs seen and not allowed, in the layer with most"),
        "mask.missing_pairs": exact(worst.missing, "pairs", n, "pairs allowed and not seen, in that layer"),
        "mask.fallback_layers": exact(told.fallback_layers, "layers", n, f"layers on a slow path on {card}"),
    }
    if views:
        figures["mask.flops_needed_share"] = exact(
            needed_share(told), "1", n, f"pairs that the batch needs over pairs computed on {card}, by multiply-adds"
        )
    for control in told.controls:
        figures[control.name] = exact(control.recovered, "pairs", 1, "pairs that moved in the twin, attention forced")
    if told.twin is not None:
        figures["twin.leak_pairs"] = exact(
            told.twin.total, "pairs", 1, "pairs that moved and no path allows, tiny model"
        )
        figures["twin.reach"] = exact(
            told.twin.reached, "tokens", 1, "farthest token that moved a later logit, tiny model"
        )
    return figures


def mask_bytes(views: tuple[View, ...]) -> int:
    """Return the bytes of all distinct masks, and of the largest one turned into a bias for one call."""
    sizes: dict[str, int] = {}
    bias = 0
    for view in views:
        if view.call.mask is None:
            continue
        count = 1
        for side in view.call.mask_shape:
            count *= side
        sizes[view.call.mask] = count * _WIDTH.get(view.call.mask_dtype, 2)
        if view.call.api == "sdpa" and view.call.mask_dtype == "bool":
            keys = view.call.mask_shape[-1]
            bias = max(bias, count // keys * -(-keys // _ALIGNED) * _ALIGNED * _WIDTH.get(view.call.dtype, 2))
    return sum(sizes.values()) + bias


def repeat_bytes(views: tuple[View, ...]) -> int:
    """Return the bytes of keys and values that are repeated for their query heads, in the layer with most."""
    sizes = [0]
    for view in views:
        call = view.call
        if call.kv_heads and call.kv_heads < call.key[1]:
            tokens = call.key[0] * call.key[1] * call.key[2]
            sizes.append(tokens * (call.key[3] + call.value[3]) * _WIDTH.get(call.dtype, 2))
    return max(sizes)


def needed_share(told: Answer) -> float:
    """Return the attention work that the batch needs over the work that is done on the card."""
    needed = sum(view.needed * view.work for view in told.views)
    computed = sum(view.computed(told.card) * view.work for view in told.views)
    return needed / computed if computed else 0.0
