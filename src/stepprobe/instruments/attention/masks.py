"""The masks that a model makes, caught where they are made, before they would become a matrix."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from stepprobe.instruments.attention.rows import RowReader, TooIrregularError, patterns
from stepprobe.model.attention import Mask

if TYPE_CHECKING:
    import numpy as np

DEEPEST = 8
"""Functions inside functions that are searched for the tensors a mask is made from."""


class Caught:
    """The masks of one forward pass by the tensor that stands for each."""

    def __init__(self) -> None:
        self._made: dict[int, tuple[Any, Mask]] = {}
        self._by_content: dict[object, str] = {}
        self.masks: dict[str, Mask] = {}

    def stand_in(self, build: Callable[..., Any], arguments: Mapping[str, Any], dtype: Any) -> Any:
        """Return a tensor without storage in the place of a mask, and keep what the mask holds."""
        import torch

        shape = (arguments["batch_size"], 1, _queries(arguments), arguments["kv_length"])
        tensor = torch.empty(shape, dtype=dtype, device="meta")
        self._made[id(tensor)] = (tensor, self._keep(read_mask(*shape[::2], shape[3], *_reader(build, arguments))))
        return tensor

    def name(self, tensor: Any) -> str | None:
        """Return the name of the mask that a call was given; views are followed to what they are views of."""
        if tensor is None:
            return None
        base = tensor
        while base is not None:
            if id(base) in self._made:
                return self._made[id(base)][1].name
            base = base._base
        return self._foreign(tensor)

    def _foreign(self, tensor: Any) -> str:
        """Keep a mask that the model or the user made without the mask functions."""
        import torch

        if tensor.device.type == "meta" or tensor.dim() != 4 or tensor.shape[1] != 1:
            shown = "x".join(map(str, tensor.shape))
            mask = Mask(
                name="", queries=tensor.shape[-2], keys=tensor.shape[-1], opaque=f"the model computes it ({shown})"
            )
        else:
            seen = tensor if tensor.dtype == torch.bool else tensor > torch.finfo(tensor.dtype).min / 2
            values = seen[:, 0].cpu().numpy()
            batch, queries, keys = values.shape
            mask = read_mask(batch, queries, keys, lambda first, end: values[:, first:end], ())
        kept = self._keep(mask)
        self._made[id(tensor)] = (tensor, kept)
        return kept.name

    def _keep(self, mask: Mask) -> Mask:
        import msgspec

        content = (mask.queries, mask.keys, mask.patterns, mask.batch, mask.opaque)
        name = self._by_content.setdefault(content, f"mask{len(self._by_content) + 1}")
        named = msgspec.structs.replace(mask, name=name)
        return self.masks.setdefault(name, named)


def read_mask(
    batch: int,
    queries: int,
    keys: int,
    read: Callable[[int, int], "np.ndarray"],
    hints: "Iterator[int] | tuple[int, ...]",
) -> Mask:
    """Read a mask into runs; one without structure becomes opaque and says why."""
    reader = RowReader(read, queries, keys, batch)
    try:
        found, checked = patterns(reader, hints)
    except TooIrregularError as error:
        return Mask(name="", queries=queries, keys=keys, opaque=str(error), rows_read=reader.read_rows)
    distinct = list(dict.fromkeys(found))
    return Mask(
        name="",
        queries=queries,
        keys=keys,
        patterns=tuple(distinct),
        batch=tuple(distinct.index(rows) for rows in found),
        rows_read=reader.read_rows,
        rows_checked=checked,
    )


def _reader(
    build: Callable[..., Any], arguments: Mapping[str, Any]
) -> tuple[Callable[[int, int], "np.ndarray"], tuple[int, ...]]:
    """Return a function that evaluates rows of transformers' own mask, and where its rows can change."""
    length, places = _queries(arguments), arguments.get("cache_position")
    offset = int(arguments.get("q_offset", 0))
    fixed = {**arguments, "allow_is_causal_skip": False, "allow_is_bidirectional_skip": False, "device": "cpu"}

    def read(first: int, end: int) -> "np.ndarray":
        chosen = {"q_length": end - first, "q_offset": offset + first}
        if places is not None:  # before transformers 5
            chosen = {"cache_position": places[first:end]}
        rows = build(**{**fixed, **chosen})
        wide = rows[:, 0].expand(arguments["batch_size"], end - first, arguments["kv_length"])
        return wide.numpy()  # type: ignore[no-any-return]

    sources = [*_tensors_of(arguments.get("mask_function"), DEEPEST), arguments.get("attention_mask")]
    return read, tuple(sorted({point for source in sources for point in _changes(source, length)}))


def _tensors_of(function: Any, depth: int) -> Iterator[Any]:
    """Yield the tensors that a mask function and the functions inside it hold."""
    import torch

    for cell in getattr(function, "__closure__", None) or ():
        with contextlib.suppress(ValueError):  # an empty cell
            held = cell.cell_contents
            for inner in held if isinstance(held, tuple | list) else (held,):
                if isinstance(inner, torch.Tensor):
                    yield inner
                elif callable(inner) and depth:
                    yield from _tensors_of(inner, depth - 1)


def _changes(source: Any, length: int) -> list[int]:
    """Return where the values of a tensor along the tokens stop being equal or going on by one."""
    import torch

    if not isinstance(source, torch.Tensor) or source.device.type == "meta" or source.shape[-1:] != (length,):
        return []
    if source.is_floating_point() or source.numel() < 2:
        return []
    steps = torch.diff(source.reshape(-1, length).to(torch.int64), dim=-1)
    kinks = torch.diff(steps, dim=-1, prepend=steps[:, :1]) != 0
    places = torch.nonzero(kinks.any(0) | (steps.abs() > 1).any(0)).flatten() + 1
    return sorted({int(place) + near for place in places for near in (-1, 0)})


@contextlib.contextmanager
def caught_masks(caught: Caught, compiled: bool) -> Iterator[bool]:
    """Let mask functions hand out stand-ins while the context lasts; yield whether this transformers has them.

    Args:
        caught: Keeps what is made.
        compiled: Decide as under ``torch.compile``.
    """
    try:
        from transformers import masking_utils
        from transformers.masking_utils import AttentionMaskInterface
    except ImportError:  # before transformers 4.53 every model made its own
        yield False
        return
    mapping = AttentionMaskInterface._global_mapping
    kept = dict(mapping)
    exporting = getattr(masking_utils, "is_torchdynamo_exporting", None)
    try:
        for name, original in kept.items():
            mapping[name] = _wrapped(original, kept["sdpa"], name, caught)
        if compiled and exporting is not None and _exports_while_compiling():
            masking_utils.is_torchdynamo_exporting = lambda: True
        yield True
    finally:
        mapping.clear()
        mapping.update(kept)
        if exporting is not None:
            masking_utils.is_torchdynamo_exporting = exporting


def _exports_while_compiling() -> bool:
    """Tell whether this torch replaces ``is_exporting()`` by True when it compiles (before 2.14)."""
    import torch

    major, minor = (int(part) for part in torch.__version__.split(".")[:2])
    return (major, minor) < (2, 14)


def _wrapped(original: Callable[..., Any], build: Callable[..., Any], name: str, caught: Caught) -> Callable[..., Any]:
    """Return a mask function that decides as the original does and makes no matrix."""

    def made(*args: Any, **arguments: Any) -> Any:
        import torch

        arguments = {**dict(zip(_POSITIONAL, args, strict=False)), **arguments}
        if name.startswith("flash"):  # gives a 2-D mask or none: no matrix to save
            return original(**arguments)
        if _skipped(original, name, arguments):
            return None
        dtype = arguments.get("dtype", torch.float32) if name.endswith("eager") else torch.bool
        return caught.stand_in(build, arguments, dtype)

    return made


def _queries(arguments: Mapping[str, Any]) -> int:
    """Return the number of query rows of a mask."""
    places = arguments.get("cache_position")
    return int(arguments["q_length"]) if places is None else int(places.shape[0])


_POSITIONAL = ("batch_size", "q_length", "kv_length", "q_offset", "kv_offset", "mask_function", "attention_mask")


def _skipped(original: Callable[..., Any], name: str, arguments: Mapping[str, Any]) -> bool:
    """Ask transformers' own conditions, with the batch's true values, whether it would make no mask at all."""
    from transformers import masking_utils as made

    padding = made.prepare_padding_mask(
        arguments.get("attention_mask"), arguments["kv_length"], arguments.get("kv_offset", 0)
    )
    padding = padding[0] if isinstance(padding, tuple) else padding
    queries, keys, local = _queries(arguments), arguments["kv_length"], arguments.get("local_size")
    offsets = (arguments.get("q_offset", 0), arguments.get("kv_offset", 0))
    causal = name.endswith("sdpa") and arguments.get("allow_is_causal_skip", True)
    if causal and made._ignore_causal_mask_sdpa(padding, queries, keys, *_supported(offsets, made), local):
        return True
    both_ways = arguments.get("allow_is_bidirectional_skip", False) and not name.startswith("flex")
    return bool(both_ways and made._ignore_bidirectional_mask_sdpa(padding, keys, local))


def _supported(offsets: tuple[Any, Any], made: Any) -> tuple[Any, ...]:
    """Return the offsets that this version's condition takes: both since 5.0, the keys' alone before."""
    import inspect

    takes = inspect.signature(made._ignore_causal_mask_sdpa).parameters
    return offsets if "q_offset" in takes else offsets[1:]
