"""The first line of the experiments: whose step is driven, and what it was given before."""

from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any, NamedTuple


class Control(NamedTuple):
    """Whether the harness gives back what the script computed."""

    captured_loss: float | None = None
    replayed_loss: float | None = None


TOLERANCE = 1e-5
"""Relative difference of two losses of one batch that atomic additions on a device may make."""


def same_loss(one: float, other: float) -> bool:
    """Return whether two losses of one batch are equal but for rounding."""
    return one == other or abs(one - other) <= TOLERANCE * max(abs(one), abs(other))


def describe(torch: ModuleType, harness: Any, control: Control) -> dict[str, Any]:
    """Return those fields of a ``harness`` line that its modules tell, and the control."""
    root = harness.root()
    floats = [one for one in root.parameters() if one.is_floating_point()]
    first = next(iter(floats), None)
    return {
        "root": type(root).__name__,
        "device": first.device.type if first is not None else "cpu",
        "dtype": str(_dtype(torch, first)).removeprefix("torch."),
        "threads": torch.get_num_threads(),
        "captured_loss": control.captured_loss,
        "replayed_loss": control.replayed_loss,
        "longest": _setting(root, "max_position_embeddings"),
        "vocabulary": _setting(root, "vocab_size"),
    }


def _dtype(torch: ModuleType, parameter: Any) -> Any:
    """Return what products are computed in: autocast's type where it is on, else the parameters'."""
    if parameter is None:
        return torch.get_default_dtype()
    kind = parameter.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else parameter.dtype


def _setting(root: Any, name: str) -> int | None:
    for config in _configs(root):
        value = getattr(config, name, None)
        if isinstance(value, int) and value > 0:
            return value
    return None


def sliding_window(root: Any) -> int | None:
    """Return the tokens that a model's sliding layers see at once; None where it has none."""
    for config in _configs(root):
        window, kinds = getattr(config, "sliding_window", None), getattr(config, "layer_types", None)
        sliding = getattr(config, "use_sliding_window", True) and (not kinds or "sliding_attention" in kinds)
        if isinstance(window, int) and window > 0 and sliding:
            return window
    return None


def _configs(root: Any) -> Iterator[Any]:
    """Yield the configurations of a root and of what it wraps, with those of their text parts."""
    modules: Sequence[Any] = [root, *(one for _, one in zip(range(8), root.modules(), strict=False))]
    for module in modules:
        config = getattr(module, "config", None)
        if config is not None:
            yield from (config, getattr(config, "text_config", None))
