"""Micro-batches of the script, and new ones of any shape made of their tokens.

Which dimension of a tensor is rows and which is tokens is told by the ids (the first integer tensor of two dimensions,
else the first of any kind). What cannot be told is refused, never guessed.
"""

import copy
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any, NamedTuple

IGNORED = -100
"""The label that cross-entropy ignores by default."""
KEPT_BYTES = 64 << 20
"""Bytes of the micro-batches that are kept; the oldest go first."""
KEPT_BATCHES = 256


SOURCES = 32
"""Micro-batches, the newest first, whose tokens a new one is made of."""


class Shape(NamedTuple):
    """Rows, and slots of each."""

    rows: int
    length: int


class Leaf(NamedTuple):
    """One tensor of a batch: where it is, and how its shape follows from the batch's."""

    path: tuple[Any, ...]
    tensor: Any
    kind: str
    """``tokens`` (rows × length × …), ``flat`` (rows·length × …), ``rows``, ``positions`` (… × length) or ``fixed``."""
    shift: int
    """Tokens more than the ids have in a row: -1 for labels that were shifted before."""


def tensors_of(torch: ModuleType, value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yield (path, tensor) of everything inside mappings, sequences and dataclasses."""
    if isinstance(value, torch.Tensor):
        yield path, value
    elif isinstance(value, Mapping):
        for key in value:
            yield from tensors_of(torch, value[key], (*path, key))
    elif isinstance(value, (tuple, list)):
        for place, item in enumerate(value):
            yield from tensors_of(torch, item, (*path, place))
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield from tensors_of(torch, fields_of(value), path)


def replaced(value: Any, by: Mapping[tuple[Any, ...], Any], path: tuple[Any, ...] = ()) -> Any:
    """Return the same structure with the values at some paths replaced; the original stays as it is."""
    if path in by:
        return by[path]
    if isinstance(value, Mapping):
        inside = {key: replaced(value[key], by, (*path, key)) for key in value}
        try:
            kind: Any = type(value)
            return inside if kind is dict else kind(inside)
        except Exception:  # a mapping of the user's own kind
            return inside
    if type(value) in (tuple, list):
        return type(value)(replaced(item, by, (*path, place)) for place, item in enumerate(value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        new = copy.copy(value)
        for name, item in fields_of(value).items():
            object.__setattr__(new, name, replaced(item, by, (*path, name)))  # a frozen one, too
        return new
    return value


def fields_of(value: Any) -> dict[str, Any]:
    """Return the fields of a dataclass by name, without those that are not set."""
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if hasattr(value, field.name)}


def shape_of(torch: ModuleType, batch: Any) -> Shape | None:
    """Return rows and length of a batch; None where no tensor tells."""
    found = _ids(torch, list(tensors_of(torch, batch)))
    return Shape(*found[1].shape[:2]) if found is not None else None


def _ids(torch: ModuleType, leaves: Sequence[tuple[tuple[Any, ...], Any]]) -> tuple[tuple[Any, ...], Any] | None:
    wide = [(path, tensor) for path, tensor in leaves if tensor.dim() >= 2]
    named = [one for one in wide if one[0][-1:] == ("input_ids",)]
    whole = [one for one in wide if not one[1].is_floating_point() and one[1].dtype != torch.bool]
    return next(iter((*named, *whole, *wide)), None)


class CapturedBatches:
    """The micro-batches that the script used, newest last."""

    def __init__(self, torch: ModuleType) -> None:
        self._torch = torch
        self._batches: list[Any] = []

    def add(self, batch: Any) -> None:
        """Keep a micro-batch as it is now: its structure is copied, its tensors are neither copied nor read."""
        found = _ids(self._torch, list(tensors_of(self._torch, batch)))
        if found is None:
            return
        self._batches.append(replaced(batch, {}))
        while len(self._batches) > 1 and (len(self._batches) > KEPT_BATCHES or self._bytes() > KEPT_BYTES):
            del self._batches[0]

    @property
    def last(self) -> Any:
        """The newest micro-batch.

        Raises:
            ValueError: There is none.
        """
        if not self._batches:
            raise ValueError("no micro-batch with a tensor of rows × tokens was seen")
        return self._batches[-1]

    def counted(self) -> tuple[list[list[int]], float | None]:
        """Return the real tokens of each row of each micro-batch, and labelled tokens (after the shift) over real ones.

        Reads the tensors: where they lie on a device, the host waits for it.
        """
        real: list[list[int]] = []
        labelled = labels_of = 0
        for batch in self._batches:
            counts, labels = self._count(batch)
            real.append(counts)
            if labels is not None:
                labelled += labels
                labels_of += sum(counts)
        return real, labelled / labels_of if labels_of else None

    def batch(self, rows: int, length: int, real: Sequence[int] | None = None) -> Any:
        """Return a batch of the run's own tokens, as ``model.harness.Harness.batch`` has it.

        Raises:
            ValueError: It cannot have this shape, and why.
        """
        signature = _signature(self._torch, self.last)
        alike = [one for one in self._batches if _signature(self._torch, one) == signature]
        return reshaped(self._torch, alike[: -SOURCES - 1 : -1], Shape(rows, length), real)

    def _bytes(self) -> int:
        return sum(
            tensor.numel() * tensor.element_size()
            for batch in self._batches
            for _, tensor in tensors_of(self._torch, batch)
        )

    def _count(self, batch: Any) -> tuple[list[int], int | None]:
        leaves = list(tensors_of(self._torch, batch))
        found = _ids(self._torch, leaves)
        assert found is not None
        rows, length = found[1].shape[:2]
        mask = next((one for path, one in leaves if one.dim() == 2 and is_mask(path, one)), None)
        real = [length] * rows if mask is None else mask.to(self._torch.int64).sum(dim=1).tolist()
        labels = next((one for path, one in leaves if _is_labels(path) and one.dim() >= 2), None)
        counts = [int(count) for count in real]
        return counts, None if labels is None else int((labels[:, 1:] != IGNORED).sum())


def _signature(torch: ModuleType, batch: Any) -> list[tuple[Any, ...]]:
    return [(path, tensor.dtype, tensor.dim()) for path, tensor in tensors_of(torch, batch)]


def reshaped(
    torch: ModuleType, batches: Sequence[Any], shape: Shape, real: Sequence[int] | None, like: Shape | None = None
) -> Any:
    """Return the first batch's structure with tensors of another shape, filled with the tokens of all batches.

    Args:
        torch: The user's.
        batches: Batches of one structure.
        shape: What the ids will have.
        real: Tokens of each row that are no padding; None for no padding.
        like: Rows and length of the batches, where no tensor in them tells (the same for all of them).

    Raises:
        ValueError: A tensor cannot have this shape, and why.
    """
    if shape.rows < 1 or shape.length < 1:
        raise ValueError(f"{shape.rows} × {shape.length} is no shape")
    counts = [shape.length] * shape.rows if real is None else [int(count) for count in real]
    if len(counts) != shape.rows or not all(0 < count <= shape.length for count in counts):
        raise ValueError(f"{len(counts)} counts of real tokens do not fit {shape.rows} rows of {shape.length} slots")
    sources = [_Source(torch, batch, like) for batch in batches]
    start = _start(torch, sources, sum(counts))
    new = {leaf.path: _filled(torch, leaf, sources, Wanted(shape, counts, start)) for leaf in sources[0].leaves}
    return replaced(batches[0], new)


class Wanted(NamedTuple):
    """What a new batch is to be."""

    shape: Shape
    counts: Sequence[int]
    """Real tokens of each row."""
    start: int
    """Place of the first of them among the tokens of the captured batches."""


STARTS = 32
"""Places from which tokens may be taken, evenly among those that there are."""


def _start(torch: ModuleType, sources: Sequence["_Source"], wanted: int) -> int:
    """Return from where as many tokens have a label as have on average: a prompt alone would have no loss."""
    label = next(
        (leaf for leaf in sources[0].leaves if _is_labels(leaf.path) and leaf.kind in ("tokens", "flat")), None
    )
    if label is None:
        return 0
    labelled = torch.cat([source.stream(label) for source in sources]).reshape(-1) != IGNORED
    count = int(labelled.shape[0])
    sums: list[int] = [0, *labelled.to(torch.int64).cumsum(0).tolist()]

    def before(place: int) -> int:
        """Return the labelled tokens before a place of the tokens, which begin again at their end."""
        rounds, rest = divmod(place, count)
        return rounds * sums[-1] + sums[rest]

    def worth(start: int) -> tuple[bool, float]:
        """Return whether nothing is to be predicted (the first token is nobody's target), and how far off it is."""
        targets = before(start + wanted) - before(start + 1)
        return targets == 0, abs((before(start + wanted) - before(start)) / wanted - sums[-1] / count)

    starts: list[int] = sorted({count * place // STARTS for place in range(STARTS)})
    return min(starts, key=worth)


class _Source:
    """A batch, its tensors told apart, and which of its slots are real."""

    def __init__(self, torch: ModuleType, batch: Any, like: Shape | None) -> None:
        leaves = list(tensors_of(torch, batch))
        found = _ids(torch, leaves)
        if like is None and found is None:
            raise ValueError("no tensor of the batch has rows and tokens")
        self.shape = like or Shape(*found[1].shape[:2])  # type: ignore[index]
        self.leaves = [_told(torch, path, tensor, self.shape) for path, tensor in leaves]
        mask = next((leaf.tensor for leaf in self.leaves if leaf.kind == "tokens" and _is_mask(leaf)), None)
        self.real = mask.bool() if mask is not None and mask.dim() == 2 and bool(mask.any()) else None

    def stream(self, leaf: Leaf) -> Any:
        """Return the leaf's values at real tokens, row by row."""
        own = next(one for one in self.leaves if one.path == leaf.path)
        values = own.tensor.detach()
        if own.kind == "flat":
            values = values.unflatten(0, (self.shape.rows, -1))
        real = self.real
        if real is None or leaf.shift:
            return values.flatten(0, 1)
        return values[real]


def _told(torch: ModuleType, path: tuple[Any, ...], tensor: Any, shape: Shape) -> Leaf:
    """Say how a tensor's shape follows from the batch's.

    Raises:
        ValueError: It cannot be told.
    """
    sizes, (rows, length) = tuple(tensor.shape), shape
    for shift in (0, -1, 1):
        slots = length + shift
        if slots > 1 and sizes[:2] == (rows, slots) and slots not in sizes[2:]:
            return Leaf(path, tensor, "tokens", shift)
        if slots > 1 and sizes[:1] == (rows * slots,) and (rows > 1 or not _is_position(torch, tensor)):
            return Leaf(path, tensor, "flat", shift)
    if length > 1 and length in sizes[1:]:
        if tensor.dim() == 2 and sizes[0] == 1 and _is_position(torch, tensor):
            return Leaf(path, tensor, "positions", 0)
        raise ValueError(f"{_name(path)} has the shape {list(sizes)}: which mask or table that is cannot be told")
    if sizes[:1] == (length,) != (rows,) and length > 1:
        if tensor.dim() == 1 and _is_position(torch, tensor):
            return Leaf(path, tensor, "positions", 0)
        raise ValueError(f"{_name(path)} has the shape {list(sizes)}, one entry for each slot; which cannot be told")
    if tensor.dim() and sizes[0] == rows:
        return Leaf(path, tensor, "rows", 0)
    return Leaf(path, tensor, "fixed", 0)


def _filled(torch: ModuleType, leaf: Leaf, sources: Sequence[_Source], wanted: Wanted) -> Any:
    """Return what takes a leaf's place in a batch of another shape."""
    shape = wanted.shape
    if leaf.kind == "fixed":
        return leaf.tensor
    if leaf.kind == "positions":
        return torch.arange(shape.length, dtype=leaf.tensor.dtype, device=leaf.tensor.device).expand(
            *leaf.tensor.shape[:-1], shape.length
        )
    if leaf.kind == "rows":
        place = torch.arange(shape.rows, device=leaf.tensor.device) % leaf.tensor.shape[0]
        return leaf.tensor.detach()[place]
    if leaf.shift:
        slots = Shape(shape.rows, shape.length + leaf.shift)
        wanted = Wanted(slots, [count + leaf.shift for count in wanted.counts], wanted.start)
    new = _rows(torch, leaf, torch.cat([source.stream(leaf) for source in sources]), wanted)
    return new.flatten(0, 1) if leaf.kind == "flat" else new


def _rows(torch: ModuleType, leaf: Leaf, stream: Any, wanted: Wanted) -> Any:
    device = stream.device
    new = torch.full(
        (*wanted.shape, *stream.shape[1:]), _padding(torch, leaf, stream), dtype=stream.dtype, device=device
    )
    offset = wanted.start
    for row, count in enumerate(wanted.counts):
        if _is_mask(leaf):
            new[row, :count] = 1
        elif "position" in _name(leaf.path):
            new[row, :count] = torch.arange(count, dtype=stream.dtype, device=device).reshape(
                -1, *([1] * (stream.dim() - 1))
            )
        else:
            place: Any = torch.arange(offset, offset + count, device=device) % stream.shape[0]
            new[row, :count] = stream[place]
        offset += count
    return new.requires_grad_(leaf.tensor.requires_grad and leaf.tensor.is_leaf)


def _padding(torch: ModuleType, leaf: Leaf, stream: Any) -> Any:
    """Return what stands on slots that are padding."""
    if leaf.tensor.is_floating_point() or leaf.tensor.dtype == torch.bool or _is_mask(leaf):
        return 0
    if _is_labels(leaf.path) or bool((leaf.tensor == IGNORED).any()):
        return IGNORED
    if "position" in _name(leaf.path):
        return 0
    return int(leaf.tensor.reshape(-1)[-1]) if leaf.tensor.dim() == 2 and leaf.kind == "tokens" else 0


def is_mask(path: tuple[Any, ...], tensor: Any) -> bool:
    """Return whether a tensor is a mask of ones and zeros by its name and values."""
    return "attention_mask" in _name(path) and bool(((tensor == 0) | (tensor == 1)).all())


def _is_mask(leaf: Leaf) -> bool:
    return is_mask(leaf.path, leaf.tensor)


def _is_labels(path: tuple[Any, ...]) -> bool:
    return "label" in _name(path)


def _is_position(torch: ModuleType, tensor: Any) -> bool:
    if tensor.is_floating_point() or tensor.is_complex():
        return False
    expected = torch.arange(tensor.shape[-1], device=tensor.device)
    return bool((tensor.to(torch.int64) == expected).all())


def _name(path: tuple[Any, ...]) -> str:
    return ".".join(map(str, path)) or "the batch"
