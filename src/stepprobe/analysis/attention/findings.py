"""What is wrong or slow, where, what to do about it, and what that should win back."""

from collections.abc import Callable, Iterator, Sequence

from stepprobe.analysis.attention.answer import LOOP, Answer
from stepprobe.analysis.attention.views import SQUARE, View
from stepprobe.model.attention import ONE_SHORT
from stepprobe.model.estimate import exact
from stepprobe.model.finding import Finding, Remedy

BELOW_WINDOW = "mask.below_window"
"""Name of the remedy that a profile forecasts as ``fast_path``."""


def mask_findings(told: Answer) -> tuple[Finding, ...]:
    """Return the findings, wrong answers before slow ones."""
    return (*_wrong(told), *_lost(told), *_slow(told))


def places(views: list[View]) -> str:
    """Return the layers of like calls: ``layers 0–27 (Qwen3Attention)``."""
    numbers = [view.layer.index for view in views]
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    told = [str(first) if first == last else f"{first}–{last}" for first, last in runs]
    shown = ", ".join(told[:6]) + (", …" if len(told) > 6 else "")
    return f"layers {shown} ({views[0].call.module})" if views else ""


def _finding(
    told: Answer, kind: str, title: str, views: list[View], remedies: tuple[Remedy, ...], cite: str
) -> Finding:
    count = len(views)
    return Finding(
        kind=kind,
        title=title,
        where=places(views),
        cost=exact(count, "layers", count, "counted"),
        share=count / max(len(told.views), 1),
        remedies=remedies,
        cites=(cite,),
    )


def _remedy(action: str, layers: int, name: str = "") -> Remedy:
    return Remedy(
        name=name,
        action=action,
        predicted=exact(layers, "layers", layers, "predicted from the rules of mask and kernel"),
    )


def _wrong(told: Answer) -> Iterator[Finding]:
    for kind, words, pairs in (
        ("mask.future_leak", "see tokens of the future", lambda view: view.difference.future),
        ("mask.document_leak", "see other documents of the row", lambda view: view.difference.document),
    ):
        if views := _where(told, pairs):
            most = max(map(pairs, views))
            yield _finding(
                told, kind, f"{_layers(views, words)}: {most:,} pairs", views, _cures(told, kind), "mask.leak_pairs"
            )

    def other(view: View) -> int:
        one = view.difference
        return one.padding + one.reach + one.missing + one.blind + one.empty if one is not None else 0

    if views := _where(told, other):
        title = f"{len(views)} masks differ from what the config asks for: {_differs(views[0])}"
        yield _finding(told, "mask.wrong", title, views, (), "mask.layers_correct")
    yield from _odd_calls(told)
    yield from _twin_only(told)


def _where(told: Answer, count: Callable[[View], int]) -> list[View]:
    return [view for view in told.views if view.difference is not None and count(view)]


def _differs(view: View) -> str:
    one = view.difference
    counts = {name: getattr(one, name) for name in ("padding", "reach", "missing", "blind", "empty")}
    told = {
        "padding": "pairs with padding",
        "reach": "pairs beyond the window or chunk",
        "missing": "pairs that are hidden and should not be",
        "blind": "tokens that do not see themselves",
        "empty": "tokens that see nothing",
    }
    return ", ".join(f"{count:,} {told[name]}" for name, count in counts.items() if count)


def _odd_calls(told: Answer) -> Iterator[Finding]:
    odd = [
        view
        for view in told.views
        if view.call.api == "sdpa"
        and ((view.call.is_causal and view.call.query[2] != view.call.key[2])
             or (view.call.mask is not None and view.call.mask_dtype not in ("bool", view.call.dtype)))
    ]  # fmt: skip
    if odd:
        call = odd[0].call
        told_mask = f"mask of {call.mask_dtype or 'no type'} beside {call.dtype}, is_causal={call.is_causal}"
        title = f"{len(odd)} calls that torch reads otherwise: {told_mask}"
        yield _finding(told, "mask.wrong", title, odd, (), "mask.layers")


def _twin_only(told: Answer) -> Iterator[Finding]:
    """Yield what only the twin shows: layers without a mask, or with one that cannot be read."""
    if told.twin is None:
        return
    unseen = {
        "future": ("mask.future_leak", "the future"),
        "document": ("mask.document_leak", "other documents"),
        "padding": ("mask.wrong", "padding"),
        "reach": ("mask.wrong", "tokens beyond every window"),
    }
    for name, (kind, words) in unseen.items():
        pairs = getattr(told.twin, name)
        masks = any(getattr(view.difference, name) for view in told.views if view.difference is not None)
        if not pairs or masks:
            continue
        others = [layer for layer in told.capture.layers if not layer.attention]
        what = f"layers of {others[0].kind}" if others else "layers whose mask cannot be read"
        where = ", ".join(part.module for part in told.capture.slow if part.kind == "linear_attention")
        count = len(others) or len([view for view in told.views if view.difference is None])
        yield Finding(
            kind=kind,
            title=f"{words} reach the logits through {what}: {pairs:,} pairs in the small model; no mask shows it",
            where=where,
            cost=exact(count, "layers", count, "counted"),
            share=count / max(len(told.capture.layers), 1),
            remedies=_cures(told, kind),
            cites=("twin.leak_pairs",),
        )


def _cures(told: Answer, kind: str) -> tuple[Remedy, ...]:
    if kind != "mask.document_leak":
        return ()
    batch, layers = told.capture.batch, len(told.views)
    if batch.use_cache is not False:
        return (_remedy("pass use_cache=False: with a cache, packed position_ids are not looked at", layers),)
    if batch.valid:
        return (_remedy("pass no all-ones attention_mask: beside one, packed position_ids are not looked at", layers),)
    linear = [part for part in told.capture.slow if part.kind == "linear_attention"]
    if linear:
        needs = " ".join(dict.fromkeys(name for part in linear for name in part.missing))
        install = f"install {needs} and pass seq_idx and cu_seq_lens" if needs else "pass seq_idx and cu_seq_lens"
        return (_remedy(f"{install}, or train on one document a row", len(told.capture.layers) - layers),)
    return (_remedy("this class does not read packed position_ids: train on one document a row, with flash "
                    "attention, or pass a 4-D mask", layers),)  # fmt: skip


def _layers(views: Sequence[object], said: str) -> str:
    """Return ``3 layers fall …`` or ``1 layer falls …``."""
    verb, space, rest = said.partition(" ")
    if len(views) != 1:
        return f"{len(views)} layers {said}"
    return f"1 layer {'is' if verb == 'are' else verb + 's'}{space}{rest}"


def _lost(told: Answer) -> Iterator[Finding]:
    wasted = [view for view in told.views if view.for_nothing and _decides(told, view)]
    if wasted:
        title = f"{_layers(wasted, 'are')} given a mask that is plainly causal: the fast path is lost for nothing"
        yield _finding(told, "mask.lost_for_nothing", title, wasted, _unwaste(told, wasted), "mask.layers_fast")
    lost: dict[str, list[View]] = {}
    for view in told.views:
        if view.mask is not None and not view.for_nothing and _decides(told, view):
            lost.setdefault(view.found + (", learned" if view.call.mask_grad else ""), []).append(view)
    for found, views in lost.items():
        kernel = f"{views[0].choice(told.card).kernel} on {told.card.name}"
        fused = f"{kernel} stays fused, but computes all pairs" if told.fast(views[0]) else kernel
        title = f"{_layers(views, 'lose')} the fast path to a mask ({found}): {fused}"
        yield _finding(told, "mask.lost", title, views, _advice(told, views), "mask.bytes")


def _decides(told: Answer, view: View) -> bool:
    """Tell whether it is the mask that keeps a call from the fast path: without it, nothing else would."""
    return view.call.api == "sdpa" and view.mask is not None and view.unmasked(told.card).fast


def _unwaste(told: Answer, wasted: list[View]) -> tuple[Remedy, ...]:
    batch, layers = told.capture.batch, len(wasted)
    if told.capture.compiled:
        return (
            _remedy(
                "torch older than 2.14 always makes the mask under torch.compile: upgrade torch, or do not compile",
                layers,
            ),
        )
    size = wasted[0].layer.size
    if wasted[0].layer.kind in ("sliding", "chunked") and batch.length == size:  # in shorter rows it hides nothing
        return (*_cut_below(size, batch.length, layers), _remedy("drop the window from the config", layers))
    if any(name in batch.names for name in ("block_sequence_ids", "token_type_ids", "mm_token_type_ids")):
        return (_remedy("leave image block ids out of batches that hold text alone", layers),)
    if told.capture.batch.use_cache is not False:
        return (_remedy("pass use_cache=False", layers),)
    return (_remedy("transformers makes this mask always here: upgrade it, or choose another attention "
                    "implementation", layers),)  # fmt: skip


def _cut_below(window: int, length: int, layers: int) -> tuple[Remedy, ...]:
    """Return what rows below a window cost: tokens of each row that is as long as those that were seen."""
    lost = length - (window - 1)
    if lost < 1:
        return ()
    action = (
        f"max_length={window - 1}: rows cut to window − 1 = {window - 1:,} tokens, where no mask is made; a row of "
        f"{length:,} loses {lost:,} of its tokens ({lost / length:.1%})"
    )
    return (_remedy(action, layers, BELOW_WINDOW),)


def _advice(told: Answer, lost: list[View]) -> tuple[Remedy, ...]:
    batch = told.capture.batch
    free = [view for view in lost if view.layer.kind == "full" or (view.layer.size or 0) > batch.length]
    short = sum(runs != ((0, batch.length),) for runs in batch.valid)
    told_so = []
    if short and free:
        many = f"{short} short row" + ("s" if short > 1 else "") + f" of {batch.size} cost all"
        if batch.kind in ONE_SHORT and batch.size > 1:  # how many are short in the job is not known
            many = "one short row costs the whole batch"
        how = "sort by length or go padding-free"
        if short == batch.size:  # sorted or not, each of them would stay as long
            then = f"; then {how}" if batch.size > 1 else ", without pad_to_multiple_of"
            how = f"no row is as long as the batch: pad to the longest row{then}"
        told_so.append(_remedy(f"{many} the fast path: {how}", len(free)))
    if told.packed and free:
        told_so.append(_remedy("pack with flash's variable-length path or flex attention: SDPA takes documents "
                               "only as a full mask", len(free)))  # fmt: skip
    windows = [
        view for view in lost if view.layer.kind == "sliding" and view.layer.size and not short and not told.packed
    ]
    if windows:
        size = windows[0].layer.size or 0
        told_so.append(_remedy("SDPA takes a window as a full mask only: flash or flex attention skips what is outside "
                               f"{size:,} tokens", len(windows)))  # fmt: skip
        told_so += _cut_below(size, batch.length, len(windows)) if batch.length <= 2 * size else ()
    return tuple(told_so)


def _slow(told: Answer) -> Iterator[Finding]:
    square = [view for view in told.views if view.call.api in SQUARE]
    if square:
        call = square[0].call
        why = (
            "softmax sinks"
            if call.sinks
            else "soft-capped scores"
            if call.softcap
            else "the class or the setting asks for it"
        )
        title = f"{_layers(square, 'attend')} eagerly ({why}): all {call.query[2]:,}² scores of every head are kept"
        cure = _remedy(
            "use an attention kernel that this class supports (flex attention, or flash attention 3 for sinks)",
            len(square),
        )
        yield _finding(told, "kernel.eager", title, square, (cure,), "mask.fallback_layers")
    math = [view for view in told.views if view.call.api == "sdpa" and view.choice(told.card).kernel == "math"]
    if math:
        why = "; ".join(f"{name}: {reasons[0]}" for name, reasons in math[0].choice(told.card).refused.items())
        title = f"{_layers(math, 'fall')} to the math kernel on {told.card.name} ({why})"
        yield _finding(told, "kernel.fallback", title, math, _undrop(told, math), "mask.fallback_layers")
    slow = [view for view in told.views if view.call.api == "sdpa" and view not in math and not told.fast(view)]
    if slow := [view for view in slow if not _decides(told, view)]:
        kernel, why = slow[0].choice(told.card).kernel, slow[0].unmasked(told.card).why
        title = f"{_layers(slow, 'get')} no flash kernel on {told.card.name} ({why}): {kernel}"
        yield _finding(told, "kernel.fallback", title, slow, _undrop(told, slow), "mask.layers_fast")
    yield from _loops(told)


def _undrop(told: Answer, slow: list[View]) -> tuple[Remedy, ...]:
    """Return the remedy for calls that attention dropout alone keeps from a faster kernel."""
    kernels = [(view.choice(told.card).kernel, view.undropped(told.card).kernel) for view in slow]
    freed = [then for now, then in kernels if then != now]
    if not freed:
        return ()
    action = (
        "attention dropout 0 (attn_pdrop or attention_dropout = 0.0 in the config; the model is regularised less): "
        f"the kernel is {freed[0]} then" + (", with the mask as it is" if slow[0].mask is not None else "")
    )
    return (_remedy(action, len(freed)),)


def _loops(told: Answer) -> Iterator[Finding]:
    total = max(len(told.capture.layers), 1)
    for part in told.capture.slow:
        if not part.missing and part.path != LOOP:
            continue
        needs = " ".join(part.missing)
        title = f"{part.layers} {part.module} run as {part.path}"
        action = f"pip install {needs}" if part.missing else "set experts_implementation to grouped_mm"
        yield Finding(
            kind="kernel.fallback",
            title=title,
            where=part.module,
            cost=exact(part.layers, "layers", part.layers, "counted"),
            share=min(1.0, part.layers / total),
            remedies=(_remedy(action, part.layers),),
            cites=("mask.fallback_layers",),
        )
