"""Every attention call that a model makes, caught at three places: SDPA, transformers' attention interface, softmax."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from stepprobe.instruments.attention.dispatch import interfaces
from stepprobe.instruments.attention.hybrid import ValueReads, autocast_without_device, hybrid_mode
from stepprobe.instruments.attention.masks import Caught, caught_masks
from stepprobe.model.attention import Call

_SDPA = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")


class Calls:
    """The calls of one forward pass, in order."""

    def __init__(self, model: Any) -> None:
        self.made: list[Call] = []
        self.caught = Caught()
        self.reads = ValueReads()
        self._names = {id(module): name for name, module in model.named_modules()}
        self._stack: list[Any] = []
        self._inside: Mapping[str, Any] | None = None
        self.length = 0
        self.rows = 1

    def enter(self, module: Any) -> None:
        """Note that a module's forward has begun."""
        self._stack.append(module)

    def leave(self, module: Any) -> None:
        """Note that a module's forward has ended."""
        while self._stack and self._stack.pop() is not module:
            pass

    def place(self) -> tuple[str, str]:
        """Return the name and class of the innermost module that is at work."""
        for module in reversed(self._stack):
            if id(module) in self._names:
                return self._names[id(module)], type(module).__name__
        return "", ""

    def sdpa(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Record a call of ``scaled_dot_product_attention`` and return an output of its shape."""
        given = {**dict(zip(_SDPA, args, strict=False)), **kwargs}
        query, key, value = given["query"], given["key"], given["value"]
        self._record("sdpa", query, key, value, given.get("attn_mask"), given, self._inside or {})
        return query.new_empty((*query.shape[:-1], value.shape[-1]))

    def interface(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a stand-in for one of transformers' attention functions."""

        def attend(module: Any, query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
            mask = args[0] if args else kwargs.get("attention_mask")
            extra = {**kwargs, "module": module, "kv_heads": key.shape[1]}
            if name.endswith("sdpa"):
                outer, self._inside = self._inside, extra
                try:
                    return function(module, query, key, value, *args, **kwargs)
                finally:
                    self._inside = outer
            causal = kwargs.get("is_causal")
            causal = getattr(module, "is_causal", True) if causal is None else causal
            flagged = {
                "is_causal": bool(causal and mask is None and name != "eager"),
                "dropout_p": kwargs.get("dropout"),
            }
            self._record(name, query, key, value, mask, flagged, extra)
            return query.new_empty((query.shape[0], query.shape[2], query.shape[1], value.shape[-1])), None

        return attend

    def softmax(self, scores: Any) -> None:
        """Record hand-written attention: a softmax over a square of scores outside the two places above."""
        if scores.dim() not in (3, 4) or not scores.shape[-1] == scores.shape[-2] == self.length:
            return
        if scores.dim() == 3 and scores.shape[0] % self.rows:  # old models fold the heads into the rows
            return
        layer, module = self.place()
        heads = scores.shape[1] if scores.dim() == 4 else scores.shape[0] // self.rows
        shape = (self.rows, heads, self.length, 0)
        dtype = str(scores.dtype).removeprefix("torch.")
        self.made.append(
            Call(layer=layer, module=module, api="softmax", query=shape, key=shape, value=shape, dtype=dtype)
        )

    def _record(  # noqa: PLR0913 - what SDPA takes, and where it came from
        self, api: str, query: Any, key: Any, value: Any, mask: Any, given: Mapping[str, Any], extra: Mapping[str, Any]
    ) -> None:
        layer, module = self.place()
        told: dict[str, Any] = {}
        if getattr(mask, "dim", None) and mask.dim() == 4:
            told = {
                "mask": self.caught.name(mask),
                "mask_shape": tuple(mask.shape),
                "mask_dtype": str(mask.dtype).removeprefix("torch."),
                "mask_last_stride": mask.stride(-1),
                "mask_grad": mask.requires_grad,
            }
        self.made.append(
            Call(
                layer=layer,
                module=module,
                api=api,
                query=tuple(query.shape),
                key=tuple(key.shape),
                value=tuple(value.shape),
                dtype=str(query.dtype).removeprefix("torch."),
                is_causal=bool(given.get("is_causal")),
                gqa=bool(given.get("enable_gqa")),
                kv_heads=int(extra.get("kv_heads", key.shape[1])),
                dropout=float(given.get("dropout_p") or 0.0),
                softcap=extra.get("softcap") is not None,
                sinks=extra.get("s_aux") is not None,
                bias=extra.get("position_bias") is not None,
                window=extra.get("sliding_window") if isinstance(extra.get("sliding_window"), int) else None,
                **told,
            )
        )


def watch(model: Any, inputs: Mapping[str, Any], compiled: bool = False) -> Calls:
    """Run one forward pass of a model on the ``meta`` device and return every attention call that it made.

    Args:
        model: Built without storage.
        inputs: What the loop passes, integers and booleans with their values.
        compiled: Decide on masks as under ``torch.compile``.

    Raises:
        Exception: What the model itself raises.
    """
    calls = Calls(model)
    calls.rows, calls.length = (int(side) for side in inputs["input_ids"].shape)
    with caught_masks(calls.caught, compiled), _functions(calls), hybrid_mode(calls.reads, calls.softmax):
        model(**inputs)
    return calls


@contextlib.contextmanager
def _functions(calls: Calls) -> Iterator[None]:
    """Watch modules, SDPA and the attention interface while the context lasts."""
    import torch
    from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
    from torch.overrides import TorchFunctionMode

    sdpa = torch.nn.functional.scaled_dot_product_attention

    class Functions(TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if function is sdpa:
                return calls.sdpa(args, kwargs or {})
            return function(*args, **(kwargs or {}))

    before = register_module_forward_pre_hook(lambda module, args: calls.enter(module))
    after = register_module_forward_hook(lambda module, args, output: calls.leave(module), always_call=True)
    try:
        with autocast_without_device(), interfaces(calls.interface), Functions():
            yield
    finally:
        before.remove()
        after.remove()
