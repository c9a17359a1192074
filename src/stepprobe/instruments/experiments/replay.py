"""The harness of a script's own loop: its root module, then the calls that it made on the way to its loss."""

import inspect
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

from stepprobe.instruments.experiments.captured import Shape, reshaped, shape_of, tensors_of
from stepprobe.instruments.experiments.sizes import computed
from stepprobe.instruments.experiments.tape import (
    Call,
    Mode,
    Rule,
    Slot,
    Tape,
    mode_now,
    modes_kept,
    set_mode,
    tensors_of_output,
)

OUTSIDE = "outside"
"""Key of a batch under which lie the tensors that the loss uses and that the root is not given."""
_LOSSES = frozenset({"cross_entropy", "nll_loss", "linear_cross_entropy"})


class RootCall:
    """One call of the root, as the script made it: its arguments by name."""

    def __init__(self, torch: ModuleType, root: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.mode: Mode = mode_now(torch)
        self.root = root
        self._signature: inspect.Signature | None
        try:
            self._signature = inspect.signature(root.forward)
            self.given = dict(self._signature.bind(*args, **kwargs).arguments)
        except (TypeError, ValueError):  # a forward that cannot be asked, or that is bound to fail
            self._signature, self.given = None, {"args": args, "kwargs": dict(kwargs)}

    def again(self, given: Mapping[str, Any]) -> Any:
        """Call the root with other arguments of the same names."""
        own = {name: given[name] for name in self.given}
        if self._signature is None:
            return self.root(*own["args"], **own["kwargs"])
        bound = inspect.BoundArguments(self._signature, own)
        return self.root(*bound.args, **bound.kwargs)


class ReplayHarness:
    """Drives the root and the tape of one micro-step (a ``model.harness.Harness``)."""

    source = "replay"

    def __init__(self, torch: ModuleType, root: Any, call: RootCall, tape: Tape) -> None:
        self._torch = torch
        self._root = root
        self._call = call
        self._tape = tape
        self._same: dict[int, tuple[Any, ...]] = {}
        self._fixed: dict[int, Any] = {}
        self.captured = {**call.given, OUTSIDE: self._sort_outside()}
        """The micro-batch of the tape, in the form that ``batch`` returns."""
        self._shape = shape_of(torch, self.captured)
        self._sized = _sized(tape.calls)
        self._dropped = _dropped(tape)

    def refusal(self) -> str:
        """Return why the micro-step cannot be played again; empty where it can."""
        if self._tape.refusals:
            return self._tape.refusals[0]
        if self._shape is None:
            return "the root module is given no tensor of rows × tokens"
        return ""

    def batch(self, rows: int, length: int, real: Sequence[int] | None = None) -> dict[str, Any]:
        """Return a batch of the run's own tokens.

        Raises:
            ValueError: It cannot have this shape, and why.
        """
        new: dict[str, Any] = reshaped(self._torch, [self.captured], Shape(rows, length), real)
        return new

    def step(self, batch: Mapping[str, Any]) -> Any:
        """Run the root, the script's own calls and backward; return the loss."""
        torch, tape = self._torch, self._tape
        with modes_kept(torch):
            set_mode(torch, self._call.mode)
            output = self._call.again(batch)
            values = {slot: tensor for slot, tensor in self._outside(batch).items()}
            new = dict(tensors_of_output(torch, output))
            values.update((slot, new[path]) for path, slot in tape.outputs if path in new)
            del new
            loss = self._play(values)
            assert tape.loss_mode is not None
            set_mode(torch, tape.loss_mode)
            torch.autograd.backward(loss)
        return loss.detach()

    def root(self) -> Any:
        """Return the root module."""
        return self._root

    def trainable_modules(self) -> list[Any]:
        """Return the root; other modules of the loss are told by their parameters."""
        return [self._root]

    def _sort_outside(self) -> dict[str, Any]:
        """Tell the outside tensors that belong to the batch from those that stay; return the former by name."""
        torch, tape = self._torch, self._tape
        given = {id(tensor): path for path, tensor in tensors_of(torch, self._call.given)}
        targets = any(getattr(one.function, "__name__", "") in _LOSSES for one in tape.calls)
        found: dict[str, Any] = {}
        for slot, tensor in tape.outside.items():
            if id(tensor) in given:
                self._same[slot] = given[id(tensor)]
            elif tensor.requires_grad or tensor.dim() == 0:
                self._fixed[slot] = tensor
            else:
                whole = not tensor.is_floating_point() and tensor.dtype != torch.bool
                name = f"{'labels' if whole and targets else 'tensor'}-{slot}"
                self._same[slot] = (OUTSIDE, name)
                found[name] = tape.before.get(slot, tensor)
        return found

    def _outside(self, batch: Mapping[str, Any]) -> dict[int, Any]:
        tensors = dict(tensors_of(self._torch, batch))
        values = {slot: tensors[path] for slot, path in self._same.items()}
        values.update(self._fixed)
        for slot, before in self._tape.before.items():
            # a call changes it in place: it gets one of its own, as it was
            values[slot] = (before if slot in self._fixed else values[slot]).detach().clone()
        return values

    def _play(self, values: dict[int, Any]) -> Any:
        torch, tape = self._torch, self._tape
        sizes = {slot: tuple(values[slot].shape) for slot in self._sized if slot in values}
        mode: Mode | None = None
        for place, call in enumerate(tape.calls):
            if call.mode != mode:
                mode = call.mode
                set_mode(torch, mode)
            result = call.function(*_fill(call.args, values, sizes), **_fill(call.kwargs, values, sizes))
            for slot, (_, tensor) in zip(call.results, tensors_of(torch, result), strict=True):
                values[slot] = tensor
                if slot in self._sized:
                    sizes[slot] = tuple(tensor.shape)
            del result
            for slot in self._dropped[place]:
                values.pop(slot, None)
        assert tape.loss is not None
        return values[tape.loss]


def _fill(kept: Any, values: Mapping[int, Any], sizes: Mapping[int, Sequence[int]]) -> Any:
    if isinstance(kept, Slot):
        return values[kept.number]
    if isinstance(kept, Rule):
        return computed(kept.rule, sizes)
    if isinstance(kept, dict):
        return {key: _fill(inside, values, sizes) for key, inside in kept.items()}
    if isinstance(kept, slice):
        return slice(*(_fill(one, values, sizes) for one in (kept.start, kept.stop, kept.step)))
    if type(kept) in (tuple, list):
        return type(kept)(_fill(inside, values, sizes) for inside in kept)
    return kept


def _sized(calls: Sequence[Call]) -> set[int]:
    """Return the slots whose shape a number of a call was computed from."""
    found: set[int] = set()

    def look(value: Any) -> None:
        if isinstance(value, Rule):
            _slots_of(value.rule, found)
        elif isinstance(value, dict):
            look(tuple(value.values()))
        elif isinstance(value, slice):
            look((value.start, value.stop, value.step))
        elif isinstance(value, (tuple, list)):
            for inside in value:
                look(inside)

    for call in calls:
        look((call.args, call.kwargs))
    return found


def _slots_of(rule: Any, found: set[int]) -> None:
    if isinstance(rule, tuple):
        if rule[0] == "size":
            found.add(rule[1])
        else:
            _slots_of(rule[1], found)
            _slots_of(rule[2], found)


def _dropped(tape: Tape) -> list[list[int]]:
    """Return, for each call, the slots that nothing needs behind it and that the script did not hold either."""
    last: dict[int, int] = {}

    def look(value: Any, place: int) -> None:
        if isinstance(value, Slot):
            last[value.number] = place
        elif isinstance(value, dict):
            look(tuple(value.values()), place)
        elif isinstance(value, (tuple, list)):
            for inside in value:
                look(inside, place)

    for place, call in enumerate(tape.calls):
        look((call.args, call.kwargs, tuple(Slot(slot) for slot in call.results)), place)
    dropped: list[list[int]] = [[] for _ in tape.calls]
    for slot, place in last.items():
        if slot not in tape.alive and slot != tape.loss:
            dropped[place].append(slot)
    return dropped
