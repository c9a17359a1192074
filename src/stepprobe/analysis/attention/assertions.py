"""The fourteen things that are asserted of every capture."""

from collections.abc import Callable, Iterator

import msgspec

from stepprobe.analysis.attention.answer import Answer
from stepprobe.analysis.attention.reference import Difference
from stepprobe.analysis.attention.views import View
from stepprobe.analysis.wording import counted


class Assertion(msgspec.Struct, frozen=True, kw_only=True):
    """One of them."""

    number: int
    claim: str
    holds: bool | None
    """None when it does not apply to this batch and model, or could not be looked at."""
    seen: str = ""
    """What speaks against it."""
    warns: bool = False
    """Whether a breach costs time only."""


def assertions(told: Answer) -> tuple[Assertion, ...]:
    """Return all of them, in order."""
    return tuple(_assertions(told))


def _assertions(told: Answer) -> Iterator[Assertion]:
    batch = told.capture.batch
    padded = any(runs != ((0, batch.length),) for runs in batch.valid)
    yield _pairs(told, 1, "no query sees the future", lambda one: one.future, _twin(told, "future"))
    yield _pairs(told, 2, "every real query sees itself", lambda one: one.blind)
    yield _pairs(told, 3, "no real query sees padding", lambda one: one.padding, _twin(told, "padding"), asked=padded)
    yield _pairs(
        told, 4, "no pair across documents", lambda one: one.document, _twin(told, "document"), asked=told.packed
    )
    reaching = [view for view in told.views if view.layer.kind != "chunked"]
    yield _group(
        5, "windows end where the config says, other layers see all", reaching, lambda one: one.reach + one.missing
    )
    chunked = [view for view in told.views if view.layer.kind == "chunked"]
    yield _group(6, "chunks are counted from the first real token", chunked, lambda one: one.reach + one.missing)
    imaged = list(told.views) if any(batch.blocks) else []
    yield _group(7, "image blocks see each other, text does not", imaged, lambda one: one.future + one.missing)
    yield _pairs(told, 8, "no real query sees nothing", lambda one: one.empty)
    waste = sum(view.for_nothing for view in told.views)
    seen = counted(waste, "layer") if waste else ""
    yield Assertion(number=9, claim="no plain causal mask is made for nothing", holds=not waste, seen=seen, warns=True)
    yield from _calls(told)
    yield Assertion(
        number=13, claim="attention calls are those of the config's layers", holds=not told.joined.reason,
        seen=told.joined.reason,
    )  # fmt: skip
    yield _agreement(told)


def _pairs(
    told: Answer, number: int, claim: str, count: Callable[[Difference], int], twin: int = 0, asked: bool = True
) -> Assertion:
    """Assert that no layer has such pairs, nor the twin."""
    if not asked:
        return Assertion(number=number, claim=claim, holds=None)
    found = _group(number, claim, list(told.views), count)
    if twin:
        seen = "; ".join(filter(None, (found.seen, f"twin: {twin} pairs")))
        return msgspec.structs.replace(found, holds=False, seen=seen)
    return found if found.holds is not None or told.twin is None else msgspec.structs.replace(found, holds=True)


def _group(number: int, claim: str, views: list[View], count: Callable[[Difference], int]) -> Assertion:
    told = [view.difference for view in views if view.difference is not None]
    if not told:
        return Assertion(number=number, claim=claim, holds=None)
    wrong = [one for one in map(count, told) if one]
    seen = f"{counted(len(wrong), 'layer')}, up to {max(wrong):,} pairs" if wrong else ""
    return Assertion(number=number, claim=claim, holds=not wrong, seen=seen)


def _twin(told: Answer, name: str) -> int:
    return int(getattr(told.twin, name)) if told.twin is not None else 0


def _calls(told: Answer) -> Iterator[Assertion]:
    calls = [view.call for view in told.views]
    skewed = sum(call.is_causal and call.query[2] != call.key[2] for call in calls)
    yield _count(10, "is_causal only where queries and keys are as many", skewed)
    decoding = [view for view in told.views if view.layer.kind != "bidirectional" and view.call.api == "sdpa"]
    open_calls = sum(view.call.mask is None and not view.call.is_causal for view in decoding)
    yield _count(11, "a decoder's call has a mask or is_causal", open_calls)
    odd = sum(
        call.mask is not None and (call.mask_dtype not in ("bool", call.dtype) or call.mask_last_stride != 1)
        for call in calls
        if call.api == "sdpa"
    )
    learned = sum(call.mask_grad for call in calls)
    claim = "masks are boolean or of the queries' type, without gradient, dense"
    if odd or not learned:
        yield _count(12, claim, odd)
    else:
        seen = f"{learned} calls with a learned mask: not every fused kernel can give it a gradient"
        yield Assertion(number=12, claim=claim, holds=False, seen=seen, warns=True)


def _count(number: int, claim: str, wrong: int) -> Assertion:
    return Assertion(number=number, claim=claim, holds=not wrong, seen=f"{wrong} calls" if wrong else "")


def _agreement(told: Answer) -> Assertion:
    claim = "the twin leaks what the masks leak, nothing else"
    readable = bool(told.views) and all(view.difference is not None for view in told.views)
    if told.twin is None or not readable:
        return Assertion(number=14, claim=claim, holds=None)
    kinds = ("future", "document", "padding")
    masks = {kind for kind in kinds if any(getattr(view.difference, kind) for view in told.views)}
    twin = {kind for kind in kinds if getattr(told.twin, kind)}
    if masks == twin:
        return Assertion(number=14, claim=claim, holds=True)
    seen = f"masks leak {_listed(masks)}, the twin leaks {_listed(twin)}"
    return Assertion(number=14, claim=claim, holds=False, seen=seen)


def _listed(kinds: set[str]) -> str:
    return ", ".join(sorted(kinds)) or "nothing"
