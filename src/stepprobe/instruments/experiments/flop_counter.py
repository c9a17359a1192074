"""FLOPs of one micro-step of the user's own model, counted on a copy without storage.

The copy shares no tensor with the model: each parameter and buffer becomes a fake one, which has a shape and nothing
else. Attention and experts are switched on the copy alone, to implementations whose products PyTorch's counter sees:
it misses ``scaled_dot_product_attention`` on the CPU, and experts that are chosen by data cannot run without data.
"""

import copy
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from stepprobe.instruments.attach.kinds import kind_of

WRAPPERS = ("_orig_mod", "module")
"""Attributes in which ``torch.compile`` and ``DistributedDataParallel`` keep the model."""
HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_pre_hooks_with_kwargs",
    "_forward_hooks_always_called",
)
ASKS_GRADIENT = "make_inputs_require_grads"
"""Hook by which PEFT and transformers let a gradient flow to frozen embeddings."""
TEXT = 300


def count_flops(torch: Any, root: Any, rows: int, length: int) -> "dict[str, Any]":
    """Return the fields of a line ``counted``: forward and backward of one micro-step, or a ``failure``.

    Neither weights, gradients, buffers, hooks nor the generator of random numbers of ``root`` are touched.

    Args:
        torch: The user's torch.
        root: The module that the step calls.
        rows: Sequences.
        length: Slots of each.
    """
    line: dict[str, Any] = {"rows": rows, "length": length, "flops": {}}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            line.update(_counted(torch, unwrapped(torch, root), rows, length))
    except Exception as error:  # a model may do anything that tensors without values cannot
        line["failure"] = f"{type(error).__name__}: {' '.join(str(error).split())}"[:TEXT]
    return line


def structure(torch: Any, root: Any, attention: str | None = None, autocast: str = "") -> "dict[str, Any]":
    """Return the fields of the line ``structure``: what the arithmetic of the user's model depends on.

    Args:
        torch: The user's torch.
        root: The module that the step calls.
        attention: Attention implementation of the step; None for what the config says.
        autocast: Element type of autocast in the step, if there is any.
    """
    model = unwrapped(torch, root)
    config: Any = getattr(model, "config", None)
    asked = any(_asks_gradient(part) for part in model.modules())
    embeddings = [part for part in model.modules() if isinstance(part, torch.nn.Embedding)]
    trained = any(part.weight.requires_grad for part in embeddings)
    return {
        "config": config.to_dict() if hasattr(config, "to_dict") else {},
        "weights": list(_weights(model)),
        "embedding_gradient": asked or trained or not embeddings,
        "checkpointing": any(bool(getattr(part, "gradient_checkpointing", False)) for part in model.modules()),
        "attention": attention or str(getattr(config, "_attn_implementation", None) or ""),
        "autocast": autocast,
    }


def unwrapped(torch: Any, root: Any) -> Any:
    """Return the model itself, out of what compiles or distributes it."""
    while True:
        name = next((name for name in WRAPPERS if isinstance(root._modules.get(name), torch.nn.Module)), None)
        if name is None or type(root).__module__.partition(".")[0] not in ("torch", "deepspeed"):
            return root
        root = root._modules[name]


def _counted(torch: Any, model: Any, rows: int, length: int) -> "dict[str, Any]":
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils.flop_counter import FlopCounterMode

    formulas, seen = _formulas(torch)
    fakes = FakeTensorMode(allow_non_fake_inputs=True)
    clone = without_storage(torch, model, fakes)
    _make_countable(clone)
    parts = _Parts(torch, clone)
    counter = FlopCounterMode(display=False, custom_mapping=formulas)
    with torch.inference_mode(False), torch.enable_grad(), fakes, counter, parts.mode:
        loss = _loss(torch, clone, rows, length)
        parts.backward = True
        loss.backward()
    missed = sorted(name for name in parts.attention_calls if name not in seen)
    if missed:
        raise NotImplementedError(f"attention ran in {missed[0]}, whose FLOPs the counter does not see")
    return {
        "flops": {str(name): int(flops) for name, flops in counter.get_flop_counts()["Global"].items()},
        "operators": parts.operators,
        "backward_operators": parts.backward_operators,
        "corrected": "scaled_dot_product_attention on the CPU" if seen & parts.attention_calls else "",
    }


def without_storage(torch: Any, model: Any, fakes: Any) -> Any:
    """Return a copy of a model whose tensors are fake: no hooks, no patched forwards, nothing shared with it."""
    if any(type(tensor).__name__ == "DTensor" for tensor in model.parameters()):
        raise NotImplementedError("the parameters are sharded (DTensor): no process holds the whole model")
    memo: dict[int, Any] = {}
    with fakes, torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            fake = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
            if isinstance(tensor, torch.nn.Parameter):
                fake = torch.nn.Parameter(fake, requires_grad=tensor.requires_grad)
            memo[id(tensor)] = fake
        for part in model.modules():  # hooks and patched forwards reach back into the user's model
            _without_hooks(part, memo)
        clone = copy.deepcopy(model, memo)
    asking = [name for name, part in model.named_modules() if _asks_gradient(part)]
    for name, part in clone.named_modules():
        part.__dict__.pop("forward", None)
        if name in asking:
            part.register_forward_hook(_ask_gradient)
    return clone


def _without_hooks(part: Any, memo: "dict[int, Any]") -> None:
    """Let a copy begin without the hooks of a module: what stands in the memo is taken as already copied."""
    for name in HOOKS:
        held = part.__dict__.get(name)
        if held is not None:
            memo[id(held)] = type(held)()


def _asks_gradient(part: Any) -> bool:
    return any(getattr(hook, "__name__", "") == ASKS_GRADIENT for hook in part._forward_hooks.values())


def _ask_gradient(part: Any, given: Any, result: Any) -> None:
    result.requires_grad_(True)


def _make_countable(clone: Any) -> None:
    """Switch a copy to attention and experts that consist of matrix products whose sizes data does not decide."""
    clone.train()
    for part in clone.modules():
        if getattr(part, "gradient_checkpointing", False):
            part.gradient_checkpointing = False
    for name, implementation in (("set_attn_implementation", "eager"), ("set_experts_implementation", "batched_mm")):
        switch = getattr(clone, name, None)
        if switch is None:
            continue
        try:
            switch(implementation)
        except Exception as error:  # the count itself tells what then cannot be counted
            sys.audit("stepprobe.not_switched", implementation, str(error))


def _loss(torch: Any, clone: Any, rows: int, length: int) -> Any:
    ids = torch.zeros(rows, length, dtype=torch.long)
    if getattr(clone, "config", None) is not None:
        result = clone(input_ids=ids, labels=ids, use_cache=False)
        if getattr(result, "loss", None) is not None:
            return result.loss
        return result.logits.float().sum()
    result = clone(ids)
    result = result[0] if isinstance(result, (tuple, list)) else result
    return result.float().sum()


def _formulas(torch: Any) -> "tuple[dict[Any, Callable[..., int]], set[str]]":
    """Return formulas for attention on the CPU, which PyTorch's counter passes over, and the names that it knows."""
    from torch.utils import flop_counter

    aten = torch.ops.aten

    def forward(query: Any, key: Any, value: Any, *args: Any, out_shape: Any = None, **kwargs: Any) -> int:
        return int(flop_counter.sdpa_flop_count(query, key, value))

    def backward(grad: Any, query: Any, key: Any, value: Any, *args: Any, out_shape: Any = None, **kwargs: Any) -> int:
        return 2 * int(flop_counter.sdpa_flop_count(query, key, value))  # without what is computed again

    named: dict[str, Callable[..., int]] = {
        "_scaled_dot_product_flash_attention_for_cpu": forward,
        "_scaled_dot_product_flash_attention_for_cpu_backward": backward,
    }
    mapping = {getattr(aten, name): formula for name, formula in named.items() if hasattr(aten, name)}
    return mapping, set(named)


class _Parts:
    """Counts the operators that each part of the model dispatches."""

    def __init__(self, torch: Any, clone: Any) -> None:
        self.operators: dict[str, int] = {}
        self.backward_operators = 0
        self.backward = False
        self.attention_calls: set[str] = set()
        self._stack = ["other"]
        for name, part in clone.named_modules():
            kind = kind_of(name, part)
            if kind is not None and kind != "loss":
                part.register_forward_pre_hook(self._begins(kind))
                part.register_forward_hook(self._ends, always_call=True)
        self.mode = _mode(self)

    def _begins(self, kind: str) -> Callable[..., None]:
        def begins(part: Any, given: Any) -> None:
            self._stack.append(kind)

        return begins

    def _ends(self, part: Any, given: Any, result: Any) -> None:
        self._stack.pop()

    def dispatched(self, name: str) -> None:
        """Count one operator."""
        if self.backward:
            self.backward_operators += 1
        else:
            kind = self._stack[-1]
            self.operators[kind] = self.operators.get(kind, 0) + 1
        if "attention" in name:
            self.attention_calls.add(name)


def _mode(parts: _Parts) -> Any:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Listening(TorchDispatchMode):  # type: ignore[misc]
        """Sees each operator."""

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            name = func._schema.name.rpartition("::")[2] if hasattr(func, "_schema") else str(func)
            if not getattr(func, "is_view", False):
                parts.dispatched(name)
            return func(*args, **(kwargs or {}))

    return Listening()


def _weights(model: Any) -> "Iterator[dict[str, Any]]":
    """Yield the kinds of weights: names that differ in their numbers alone are one."""
    kinds: dict[tuple[str, tuple[int, ...]], tuple[set[int], set[int]]] = {}
    for name, weight in model.named_parameters():
        plain = plain_name(name)
        if plain is None:
            continue
        segments = plain.split(".")
        number = next((int(segment) for segment in segments if segment.isdigit()), -1)
        pattern = ".".join("*" if segment.isdigit() else segment for segment in segments)
        layers, trained = kinds.setdefault((pattern, tuple(weight.shape)), (set(), set()))
        layers.add(number)
        if weight.requires_grad:
            trained.add(number)
    for (pattern, shape), (layers, trained) in kinds.items():
        yield {"name": pattern, "shape": list(shape), "layers": sorted(layers), "trained": sorted(trained)}


def plain_name(name: str) -> str | None:
    """Return a parameter's name without what PEFT puts around it; None for a weight that another one stands in for."""
    segments = name.split(".")
    if "original_module" in segments:
        return None
    if segments[:2] == ["base_model", "model"]:
        segments = segments[2:]
    if "modules_to_save" in segments:
        at = segments.index("modules_to_save")
        del segments[at : at + 2]
    return ".".join(segment for segment in segments if segment != "base_layer")
