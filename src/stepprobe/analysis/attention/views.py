"""Each attention layer of a capture, judged: what it sees against what it should see, and the kernel that it gets."""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from stepprobe.analysis.attention.kernels import CARDS, FAST, Card, Choice, Shape, choose
from stepprobe.analysis.attention.reference import (
    Difference,
    Expected,
    difference,
    expected,
    needed_pairs,
    packed,
    seen_in_batch,
    seen_without_mask,
)
from stepprobe.analysis.attention.structure import OPAQUE, describe_expected, structure
from stepprobe.model.attention import Call, Capture, Layer, Mask

if TYPE_CHECKING:
    from stepprobe.analysis.attention.reference import Seen

_NUMBER = re.compile(r"\.(\d+)(?:\.|$)")
SQUARE = ("eager", "softmax")
"""Ways of attending that hold the whole matrix of scores."""


class View(msgspec.Struct, frozen=True, kw_only=True):
    """One layer with its call."""

    layer: Layer
    call: Call
    mask: Mask | None
    found: str
    """Structure of what it sees."""
    wanted: str
    """Structure of what it should see."""
    difference: Difference | None
    """None when the mask could not be read."""
    needed: int
    """Pairs of query and key that the batch needs."""
    pairs: int
    """Pairs of query and key in the full matrix."""

    @property
    def right(self) -> bool | None:
        """Whether the mask is the reference; None when it could not be read."""
        return None if self.difference is None else self.difference.clean

    @property
    def for_nothing(self) -> bool:
        """Whether a mask was made that hides nothing but the future: plain causal attention would do."""
        return self.mask is not None and self.found == "causal" and self.call.api == "sdpa"

    def choice(self, card: Card) -> Choice:
        """Return the kernel that this call gets on a card."""
        if self.call.api == "softmax":
            return Choice(kernel="eager", refused={"flash": ("attention is written by hand",)})
        if self.call.api != "sdpa":
            reasons = _not_sdpa(self.call)
            return Choice(kernel="flash" if self.call.api.startswith("flash") else self.call.api, refused=reasons)
        return choose(shape_of(self.call, card), card)

    def unmasked(self, card: Card) -> Choice:
        """Return the kernel that a card takes where the mask alone is left out."""
        if self.call.api != "sdpa":
            return self.choice(card)
        plain = {"mask": False, "mask_grad": False, "mask_last_stride": 1}
        square = self.call.query[2] == self.call.key[2]
        return choose(msgspec.structs.replace(shape_of(self.call, card), **plain, is_causal=square), card)

    def undropped(self, card: Card) -> Choice:
        """Return the kernel that a card takes where attention dropout alone is left out."""
        if self.call.api != "sdpa":
            return self.choice(card)
        return choose(msgspec.structs.replace(shape_of(self.call, card), dropout=0.0), card)

    def computed(self, card: Card) -> int:
        """Return how many pairs the kernel computes on a card."""
        if self.choice(card).kernel in FAST and self.call.mask is None and self.call.is_causal:
            queries = self.call.query[2]
            return self.call.query[0] * queries * (queries + 1) // 2
        return self.pairs

    @property
    def work(self) -> int:
        """Multiply-adds of one pair, over all heads."""
        return self.call.query[1] * (self.call.query[3] + self.call.value[3]) or self.call.query[1]


def _not_sdpa(call: Call) -> dict[str, tuple[str, ...]]:
    if call.api.startswith("flash"):
        return {}
    why = ("softmax sinks" if call.sinks else "") or ("soft-capped scores" if call.softcap else "")
    return {"flash": (why or f"attention implementation {call.api}",)}


def shape_of(call: Call, card: Card) -> Shape:
    """Return what a card's choice of kernel depends on."""
    half = call.dtype in ("bfloat16", "float16")
    return Shape(
        heads=call.query[1],
        kv_heads=call.key[1],
        queries=call.query[2],
        keys=call.key[2],
        head_dim=call.query[3],
        value_dim=call.value[3],
        dtype=card.dtype if half else call.dtype,
        mask=call.mask is not None,
        mask_grad=call.mask_grad,
        mask_last_stride=call.mask_last_stride,
        is_causal=call.is_causal,
        gqa=call.gqa,
        dropout=call.dropout,
    )


class Joined(msgspec.Struct, frozen=True, kw_only=True):
    """The layers with their calls, and what could not be joined."""

    views: tuple[View, ...] = ()
    expected: int = 0
    """Layers with attention that the config declares."""
    called: int = 0
    """Modules that made an attention call."""
    reason: str = ""
    """Why the two do not fit together; empty when they do."""


def join(capture: Capture) -> Joined:
    """Give each declared layer its call and judge it."""
    wanted = [layer for layer in capture.layers if layer.attention]
    calls = {call.layer: call for call in reversed(capture.calls)}
    first = list(dict.fromkeys(call.layer for call in capture.calls))
    if len(first) != len(wanted):  # some attend over other things than tokens as well, such as their own depth
        over_tokens = [call for call in capture.calls if call.query[2] == capture.batch.length]
        first = list(dict.fromkeys(call.layer for call in over_tokens))
        calls = {call.layer: call for call in reversed(over_tokens)}
        if len(over_tokens) == len(wanted) and len({(layer.kind, layer.size) for layer in wanted}) == 1:
            return _joined(capture, list(zip(wanted, over_tokens, strict=True)))  # like layers, each run several times
    if len(first) != len(wanted):
        reason = f"{len(first)} modules made an attention call, the config declares {len(wanted)} layers with attention"
        return Joined(expected=len(wanted), called=len(first), reason=reason)
    numbers = [int(found[1]) if (found := _NUMBER.search(name)) else -1 for name in first]
    by_index = dict(zip(numbers, first, strict=True))
    if len(by_index) == len(first) and set(by_index) == {layer.index for layer in wanted}:
        pairs = [(layer, calls[by_index[layer.index]]) for layer in wanted]
    else:
        pairs = [(layer, calls[name]) for layer, name in zip(wanted, first, strict=True)]
    return _joined(capture, pairs)


def _joined(capture: Capture, pairs: list[tuple[Layer, Call]]) -> Joined:
    judge = _Judge(capture)
    return Joined(views=tuple(judge.view(*pair) for pair in pairs), expected=len(pairs), called=len(pairs))


class _Judge:
    """Judges layers; like layers are judged once."""

    def __init__(self, capture: Capture) -> None:
        self._capture = capture
        self._masks = {mask.name: mask for mask in capture.masks}
        self._structures = {name: structure(mask) for name, mask in self._masks.items()}
        self._judged: dict[object, Difference] = {}
        self._wanted: dict[object, tuple[Expected, int]] = {}

    def view(self, layer: Layer, call: Call) -> View:
        batch, mask = self._capture.batch, self._masks.get(call.mask or "")
        padded = bool(batch.valid) and any(runs != ((0, batch.length),) for runs in batch.valid)
        odd = mask is not None and (mask.queries, mask.keys) != (batch.length, batch.length)
        unread = call.api == "softmax" or odd or (mask is not None and bool(mask.opaque))
        told, needed = self._compare(layer, call, mask, unread)
        return View(
            layer=layer,
            call=call,
            mask=mask,
            found=OPAQUE if unread else self._structures[mask.name] if mask else _unmasked(call),
            wanted=describe_expected(layer.kind, layer.size, batch.length, packed(batch), padded),
            difference=told,
            needed=needed,
            pairs=batch.size * call.query[2] * (call.key[2] or call.query[2]),
        )

    def _compare(self, layer: Layer, call: Call, mask: Mask | None, unread: bool) -> tuple[Difference | None, int]:
        whole, needed = Difference(), 0
        for row in range(self._capture.batch.size):
            wanted_key = (layer.kind, layer.size, *self._row(row))
            if wanted_key not in self._wanted:
                wanted = expected(self._capture.batch, layer, row, self._capture.model_type)
                self._wanted[wanted_key] = (wanted, needed_pairs(wanted))
            wanted, pairs = self._wanted[wanted_key]
            needed += pairs
            if unread:
                continue
            key = (*_pattern(call, mask, row), *wanted_key)
            if key not in self._judged:
                self._judged[key] = difference(_seen(call, mask, row), wanted)
            whole += self._judged[key]
        return (None if unread else whole), needed

    def _row(self, row: int) -> Sequence[object]:
        batch = self._capture.batch
        return (
            batch.valid[row] if batch.valid else (),
            tuple(place for place, _ in batch.positions[row]) if batch.positions else (),
            (batch.boundaries, row) if batch.boundaries else (),
            batch.blocks[row] if batch.blocks else (),
        )


def _seen(call: Call, mask: Mask | None, row: int) -> "Seen":
    if mask is not None:
        return seen_in_batch(mask, row)
    window = call.window if call.api.startswith("flash") else None
    return seen_without_mask(call.query[2], call.key[2], call.is_causal, window)


def _pattern(call: Call, mask: Mask | None, row: int) -> tuple[object, ...]:
    """Return what tells two rows of a batch apart, as far as a call sees them."""
    if mask is None:
        return call.api, call.is_causal, call.window
    return call.api, mask.name, mask.batch[row if row < len(mask.batch) else 0]


def _unmasked(call: Call) -> str:
    return "causal" if call.is_causal else "bidirectional"


def cards(name: str) -> Card:
    """Return a card by its name, in any case."""
    return CARDS[name.lower()]
