"""What attention masks depend on, kept of the first calls of the root: the batch without its text, and the config.

Standard library and the user's own torch. From this the masks of the job are foretold when it has ended; what the model
itself then passed to ``scaled_dot_product_attention`` is counted beside it, so that the two can be compared.
"""

import inspect
import json
import os
from collections.abc import Callable
from types import ModuleType
from typing import Any

from stepprobe.instruments.attach.batches import Batches
from stepprobe.instruments.attach.budget import launched_as
from stepprobe.instruments.attach.observer import Observer
from stepprobe.instruments.attach.recorder import Recorder

MOST = 4
"""Calls that are kept: the first, the first in detail, and later ones whose shapes are new."""
LOOKED_AT = 1000
"""Calls after which no new shape is looked for."""
MOST_VALUES = 1 << 22
"""Elements of a tensor up to which its values are kept."""
MOST_CHANGES = 20_000
"""Changes of slope in one tensor up to which its values are kept."""
MOST_CONFIG = 1 << 20
"""Bytes of a config up to which it is kept."""
KEPT = frozenset(
    {
        *("attention_mask", "position_ids", "token_type_ids", "mm_token_type_ids", "block_sequence_ids"),
        *("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "seq_idx", "use_cache"),
    }
)
"""Arguments whose values are kept. Of all others, the ids and labels of the text among them, the shape alone."""
LEFT_OUT = ("_name_or_path", "id2label", "label2id", "task_specific_params")
"""Fields of a config that may hold paths or words of the user's."""
_SDPA = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")
_WRAPPERS = ("module", "_orig_mod")


class FirstCalls:
    """Writes ``batches-rank0-pid<P>.jsonl``: one line for each model, one for each call that is kept.

    Args:
        observer: Says which steps are in detail.
        batches: Knows when a tensor can be looked at unseen.
        torch: The user's own.
    """

    def __init__(self, observer: Observer, batches: Batches, torch: ModuleType) -> None:
        self._observer, self._batches, self._torch = observer, batches, torch
        self._folder = observer.journal.folder
        self.left = MOST if self._folder and launched_as("RANK", 0) == 0 else 0
        """Calls that may still be kept."""
        self._looked = 0
        self._shapes: set[tuple[Any, ...]] = set()
        self._models: dict[int, int] = {}
        self._recorder: Recorder | None = None
        self._call: dict[str, Any] | None = None
        self._had_detail = False
        self._seen: tuple[Any, ...] = ()
        self._cpu: Callable[[Any], Any] = torch._C.TensorBase.cpu
        self._tolist: Callable[[Any], Any] = torch._C.TensorBase.tolist

    def begins(self, root: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """The root is called."""
        if not self.left:
            return
        self._call = None
        self._looked += 1
        if self._looked > LOOKED_AT:
            self.left = 0
            return
        ids = kwargs.get("input_ids", args[0] if args else None)
        seen = (getattr(ids, "shape", None), len(args), len(kwargs))
        if seen == self._seen and (self._had_detail or not self._observer.detail):
            return  # the same as last time, as far as can be told for almost nothing
        self._seen = seen
        self._batches.quietly(self._look, root, args, kwargs)

    def attended(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """``scaled_dot_product_attention`` is called: count it by what decides about its kernel."""
        if self._call is not None and self._call["attended"] is not None and not self._observer.backward_depth:
            self._batches.quietly(self._count, self._call["attended"], args, kwargs)

    def _count(self, counts: dict[str, int], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = {**dict(zip(_SDPA, args, strict=False)), **kwargs}
        query, key, mask, causal = given["query"], given["key"], given.get("attn_mask"), given.get("is_causal", False)
        lengths = f"{query.shape[-2]}x{key.shape[-2]}"
        told = f"{_plain(query.dtype)} {'none' if mask is None else _plain(mask.dtype)} {int(bool(causal))} {lengths}"
        counts[told] = counts.get(told, 0) + 1

    def ended(self) -> None:
        """The root has returned: write what was kept."""
        call, self._call = self._call, None
        if call is not None:
            self._write("call", call)
            self.left -= 1
            if not self.left and self._recorder is not None:
                self._recorder.close()

    def _look(self, root: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        base, compiled = unwrapped(root)
        named = {**dict(zip(_names(base), args, strict=False)), **kwargs}
        tensor = self._torch.Tensor
        shapes = tuple((name, tuple(value.shape)) for name, value in named.items() if isinstance(value, tensor))
        detail = self._observer.detail
        early = not self._shapes or (detail and not self._had_detail)
        if shapes in self._shapes and not early:
            return
        if not early and any(value.device.type != "cpu" for value in named.values() if isinstance(value, tensor)):
            return  # reading it would make the host wait in a step that is measured
        model = self._model(base, compiled)
        if model is None:
            self.left = 0
            return
        self._shapes.add(shapes)
        self._had_detail = self._had_detail or detail
        arguments = {str(name)[:80]: self._told(name, value) for name, value in named.items() if value is not None}
        training = bool(base.training and self._torch.is_grad_enabled())
        self._call = {"model": model, "training": training, "arguments": arguments, "attended": {} if detail else None}
        self._call["autocast"] = self._autocast(root, base)

    def _model(self, base: Any, compiled: bool) -> int | None:
        """Return the number of a model whose config is kept; None for what is no model of transformers."""
        if id(base) in self._models:
            return self._models[id(base)]
        config: Any = getattr(base, "config", None)
        if not hasattr(config, "model_type") or not hasattr(config, "to_json_string"):
            return None
        text = json.dumps(_without_words(json.loads(config.to_json_string(use_diff=False))))
        known = type(config).__module__.startswith("transformers.") and type(base).__module__.startswith(
            "transformers."
        )
        text_config = config.get_text_config() if hasattr(config, "get_text_config") else config
        floats = (one.dtype for one in base.parameters() if one.is_floating_point())
        number = self._models[id(base)] = len(self._models)
        self._write(
            "model",
            {
                "number": number,
                "name": type(base).__name__,
                "known": known,
                "config": text if len(text) <= MOST_CONFIG else "",
                "attention": str(getattr(text_config, "_attn_implementation", None) or ""),
                "dtype": _plain(next(floats, "")),
                "compiled": compiled,
                "checkpointing": any(getattr(module, "gradient_checkpointing", False) for module in base.modules()),
                "card": self._card(),
            },
        )
        return number

    def _card(self) -> str:
        """Return the name of the device that trains."""
        cuda = self._torch.cuda
        if self._observer.facts.get("device") == "cuda" and cuda.is_initialized():
            return str(cuda.get_device_name())
        return str(self._observer.facts.get("device", "cpu"))

    def _autocast(self, root: Any, base: Any) -> str | None:
        """Return the element type of the autocast in force; None where a forward of its own may yet begin one."""
        if "forward" in vars(root) or "forward" in vars(base):
            return None
        device = next(base.parameters()).device.type
        try:
            on = self._torch.is_autocast_enabled(device)
        except TypeError:  # before torch 2.4
            return None
        return _plain(self._torch.get_autocast_dtype(device)) if on else ""

    def _told(self, name: str, value: Any) -> dict[str, Any]:
        if not isinstance(value, self._torch.Tensor):
            told: dict[str, Any] = {"kind": type(value).__name__}
            if name in KEPT and isinstance(value, (bool, int)):
                told["value"] = int(value)
            return told
        told = {"kind": _plain(value.dtype), "shape": list(value.shape)}
        if name in KEPT:
            rows, why = self._rows(value)
            told.update({"rows": rows} if rows is not None else {"cut": why})
        return told

    def _rows(self, value: Any) -> tuple[list[list[int]] | None, str]:
        """Return each row as its first value and then (slope, steps) in turn, exact; or why it was not kept."""
        if value.is_floating_point() or not 0 < value.dim() <= 3 or not value.numel():
            return None, f"{_plain(value.dtype)}, {value.dim()} dimensions"
        if value.numel() > MOST_VALUES:
            return None, f"{value.numel()} values"
        torch = self._torch
        with torch.no_grad():
            flat = self._cpu(value.detach()).reshape(-1, value.shape[-1]).long()
            steps = flat[:, 1:] - flat[:, :-1]
            changes = torch.nonzero(steps[:, 1:] != steps[:, :-1])
            if len(changes) + len(flat) > MOST_CHANGES:
                return None, f"{len(changes)} changes of slope"
            ends: list[list[int]] = [[] for _ in range(len(flat))]
            for row, place in self._tolist(changes):
                ends[row].append(place + 1)
            firsts = self._tolist(flat[:, 0])
            rows = []
            for row, first in enumerate(firsts):
                told, begin = [first], 0
                for end in (*ends[row], steps.shape[1]) if steps.shape[1] else ():
                    told += [int(self._batches.item(steps[row, begin])), end - begin]
                    begin = end
                rows.append(told)
        return rows, ""

    def _write(self, kind: str, record: dict[str, Any]) -> None:
        if self._recorder is None:
            self._recorder = Recorder(os.path.join(self._folder, f"batches-rank0-pid{os.getpid()}.jsonl"))
        self._recorder.write(kind, record)


def unwrapped(model: Any) -> tuple[Any, bool]:
    """Return the model inside DDP, ``torch.compile`` and PEFT, and whether it is compiled."""
    compiled = False
    while True:
        wrapper = next((name for name in _WRAPPERS if name in model._modules), None)
        if wrapper is not None:
            compiled = compiled or wrapper == "_orig_mod"
            model = model._modules[wrapper]
        elif hasattr(model, "get_base_model"):
            model = model.get_base_model()
        else:
            return model, compiled or getattr(model, "_compiled_call_impl", None) is not None


def _names(base: Any) -> list[str]:
    """Return the names of a forward's parameters, in order."""
    code = getattr(inspect.unwrap(type(base).forward), "__code__", None)
    return list(code.co_varnames[1 : code.co_argcount]) if code is not None else []


def _without_words(config: Any) -> Any:
    if isinstance(config, dict):
        return {name: _without_words(value) for name, value in config.items() if name not in LEFT_OUT}
    return config


def _plain(dtype: Any) -> str:
    return str(dtype).rpartition(".")[2]
