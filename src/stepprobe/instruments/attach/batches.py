"""What a micro-batch holds: slots, real tokens, labelled tokens, and whether its shape is new.

Counted on the host's own copy of the batch, never on the device: reading a device tensor would make the host wait,
and change what is measured.
"""

import weakref
from collections import deque
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, NamedTuple

from stepprobe.instruments.attach.observer import Observer

IGNORED = -100
"""The label that cross-entropy ignores by default in every framework that we know."""


LOADED = 64
"""Batches remembered between a loader and the model: more than any prefetch that we know."""


class Loaded(NamedTuple):
    """What a loader gave with some ids. Tensors are referred to weakly: a batch is not kept alive by being observed."""

    ids: Callable[[], Any]
    shape: tuple[int, ...]
    mask: Callable[[], Any]
    """The mask, or the real tokens of each row where they had to be taken at once; None where there is neither."""
    labels: Callable[[], Any]
    """The labels, or how many of them are no padding; None where there is neither."""


def _constant(value: Any) -> Callable[[], Any]:
    return lambda: value


class Batches:
    """Counts tokens when the root is called, from its own arguments or, on a device, from the loader's batch."""

    def __init__(self, observer: Observer, torch: ModuleType) -> None:
        self._observer = observer
        self._facts = observer.facts
        self._tensor = torch.Tensor
        self._integers = (torch.int64, torch.int32, torch.int16, torch.uint8)
        # the method as it was before anything was replaced: our own reading is nobody's synchronisation.
        # PyTorch counts, not NumPy: its code is in the caches already, NumPy's first call after a step takes 50 us
        self.item, self._list = torch._C.TensorBase.item, torch._C.TensorBase.tolist
        self._nonzero: Callable[..., Any] = torch.count_nonzero  # one operation, where a sum is of two and converts
        self._loaded: deque[Loaded] = deque(maxlen=LOADED)
        self._labels_from_loss = self._counted = False
        self._unseen = torch._C.DisableTorchFunction
        self._dispatch_modes: Callable[[], int] = torch._C._len_torch_dispatch_stack
        self._trace: Callable[[], Any] = torch._C._get_tracing_state
        self._transform: Callable[[], Any] = torch._C._functorch.peek_interpreter_stack

    def loaded(self, batch: Any) -> None:
        """A loader gave a batch: remember what a model may be called without.

        On a device job this is the last moment at which it can be read for nothing; on the CPU it is read only if the
        model's own arguments do not say it.
        """
        if isinstance(batch, Mapping):
            self.quietly(self._remember, batch)

    def _remember(self, batch: Mapping[str, Any]) -> None:
        ids, mask, labels = batch.get("input_ids"), batch.get("attention_mask"), batch.get("labels")
        if not isinstance(ids, self._tensor):
            return
        if self._facts.get("device", "cpu") == "cpu":
            kept = [self._reference(mask), self._reference(labels)]
        else:
            kept = [_constant(self._real(mask)), _constant(self._labelled(labels))]
        self._loaded.append(Loaded(weakref.ref(ids), tuple(ids.shape), *kept))

    def forward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """The root is called: count its batch."""
        self._labels_from_loss = False
        self.quietly(self._count, args, kwargs)

    def quietly(self, count: Callable[..., None], *arguments: Any) -> None:
        """Count unless our operations would be seen, recorded or transformed; what fails here is not the user's."""
        if self._dispatch_modes() or self._trace() is not None or self._transform() is not None:
            self._observer.note("batches under torch.func, a tracer or a dispatch mode were not counted")
            return
        try:
            with self._unseen():
                count(*arguments)
        except Exception as error:  # tensors of the user's own kind may lack any operation
            self._observer.note(f"a batch was not counted: {type(error).__name__}")

    def _count(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        ids = self.ids(args, kwargs)
        if ids is None:
            if not self._counted:  # of several roots, another may get them
                self._facts["counts.slots"] = "not observed: the model got no integer tensor"
            return
        if not self._counted and "counts.slots" in self._facts:
            self._facts["counts.slots"] = "counted"
        self._counted = True
        mask = kwargs.get("attention_mask")
        loaded = self._loader_s(ids)
        self._observer.count("slots", ids.numel())
        if ids.dim() > 1:  # else all tokens lie in one row, whose examples only the model knows
            self._observer.count("rows", ids.shape[0])
        self._count_real(ids, mask, loaded.mask() if loaded else None)
        self._count_labelled(kwargs.get("labels"), loaded.labels() if loaded else None)
        shape = "×".join(map(str, ids.shape)) + ("" if mask is None else " masked")
        if self._observer.sites.shape(shape):
            self._observer.count("new_shapes")

    def ids(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the ids among the arguments of a call, or None."""
        ids = kwargs.get("input_ids")
        if ids is None:
            ids = next((value for value in (*args, *kwargs.values()) if self._is_ids(value)), None)
        return ids

    def loss(self, target: Any, ignored: int) -> None:
        """A cross-entropy was called: over how many rows of the output layer, and by how many calls.

        Its targets also say which tokens are labelled, where nobody else said.
        """
        self.quietly(self._count_targets, target, ignored)

    def _count_targets(self, target: Any, ignored: int) -> None:
        if not isinstance(target, self._tensor) or target.dtype not in self._integers:
            return
        self._observer.count("losses")
        self._observer.count("loss_rows", target.numel())
        if self._labels_from_loss and self._on_host(target):
            self._observer.count("labelled", self.item(self._nonzero(target != ignored)))
            self._facts["counts.labelled"] = "targets of cross_entropy"

    def _loader_s(self, ids: Any) -> Loaded | None:
        """Return what the loader gave with these ids: the same tensor, or, once it was copied, the oldest like it."""
        for place, loaded in enumerate(self._loaded):
            if loaded.ids() is ids:
                for _ in range(place):
                    self._loaded.popleft()  # a model may be called twice with one batch: the entry itself stays
                return loaded
        if self._loaded and self._loaded[0].shape == tuple(ids.shape):
            return self._loaded.popleft()
        return None

    def _count_real(self, ids: Any, mask: Any, loaded: Any) -> None:
        real = loaded if isinstance(loaded, list) else self._real(loaded if mask is None else mask)
        if real and sum(real) <= ids.numel():
            self._facts["counts.real"] = "attention mask"
            self._count_lengths(real)
        elif mask is None:
            self._facts["counts.real"] = "no attention mask: every slot counted"
            self._observer.count("real", ids.numel())
        else:
            self._facts["counts.real"] = "not observed: the mask lies on the device or is not the batch's rows × tokens"

    def _count_lengths(self, real: list[int]) -> None:
        """Count the real tokens of a batch's rows, and what tells how alike the rows of a batch are."""
        count, tokens = self._observer.count, sum(real)
        squares = sum(length * length for length in real)
        count("real", tokens)
        count("longest_slots", len(real) * max(real))
        count("row_squares", squares)
        count("mixed_squares", squares - tokens * tokens // len(real))

    def _count_labelled(self, labels: Any, loaded: Any) -> None:
        labelled = loaded if isinstance(loaded, int) else self._labelled(loaded if labels is None else labels)
        self._labels_from_loss = labelled is None
        if labelled is not None:
            self._facts["counts.labelled"] = "labels after the shift"
            self._observer.count("labelled", labelled)
        elif "counts.labelled" not in self._facts:
            self._facts["counts.labelled"] = "not observed: no labels on the host"

    def _real(self, mask: Any) -> list[int] | None:
        if not self._on_host(mask) or mask.dim() != 2:
            return None
        # some number the examples of a packed row: 1 1 2 2 2 0
        return [int(length) for length in self._list(self._nonzero(mask, 1))]

    def _labelled(self, labels: Any) -> int | None:
        if not self._on_host(labels) or labels.dim() < 2:
            return None
        # the first token of a row is nobody's target
        return int(self.item(self._nonzero(labels[..., 1:] != IGNORED)))

    def _reference(self, value: Any) -> Callable[[], Any]:
        return weakref.ref(value) if isinstance(value, self._tensor) else _constant(None)

    def _is_ids(self, value: Any) -> bool:
        return isinstance(value, self._tensor) and value.dtype in self._integers and value.dim() >= 2

    def _on_host(self, value: Any) -> bool:
        return isinstance(value, self._tensor) and value.device.type == "cpu" and not value.is_floating_point()
