"""PyTorch itself: optimizers, backward, losses, loaders, gradient scaling. Every framework ends here."""

import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

from stepprobe.instruments.attach import callers, copies, tensors
from stepprobe.instruments.attach.batches import Batches
from stepprobe.instruments.attach.callers import unseen
from stepprobe.instruments.attach.clock import INDEX, UNATTRIBUTED
from stepprobe.instruments.attach.first_calls import FirstCalls
from stepprobe.instruments.attach.modules import ModuleHooks
from stepprobe.instruments.attach.observer import Observer
from stepprobe.instruments.attach.patches import booked, same, swallowed
from stepprobe.instruments.attach.pieces import Pieces
from stepprobe.instruments.attach.roots import RootFinder
from stepprobe.instruments.attach.unit_costs import unit_costs_ns

OURS = tensors.__file__.rpartition("instruments")[0]
CLIPPING = ("clip_grad_norm_", "clip_grad_value_", "get_total_norm", "clip_grads_with_norm_")


def attach(observer: Observer, torch: ModuleType) -> None:
    """Put the hooks of PyTorch in place."""
    observer.tell("torch")
    batches = Batches(observer, torch)
    hooks = ModuleHooks(observer, batches, torch)
    hooks.first_calls = first = FirstCalls(observer, batches, torch)
    observer.part, observer.unwind, observer.batch_loaded = hooks.part, hooks.unwind, batches.loaded
    observer.on.begin.append(lambda: observer.budget.unit_cost_ns.update(unit_costs_ns(torch)))
    RootFinder(observer, hooks, Pieces(observer, hooks, batches, torch), torch).watch()
    if observer.take_over is not None:
        observer.take_over.torch_imported(torch)
    _optimizers(observer, torch)
    _functions(observer, hooks, torch, first)
    tensors.watch(observer, torch)
    copies.watch(observer.patches, torch)


def _optimizers(observer: Observer, torch: ModuleType) -> None:
    from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

    clock, gate, patches = observer.clock, observer.gate, observer.patches
    compiling = torch.compiler.is_compiling
    register_optimizer_step_pre_hook(_outside_graphs(torch, observer.optimizer_begins, _scripts_own(observer)))
    register_optimizer_step_post_hook(_outside_graphs(torch, observer.optimizer_ended))
    for owner in (torch.optim.Optimizer, torch.nn.Module):
        patches.replace(owner, "zero_grad", booked(clock, gate, INDEX["zero_grad"], compiling))
    for scheduler in _subclasses(torch.optim.lr_scheduler.LRScheduler):
        patches.replace(scheduler, "step", booked(clock, gate, INDEX["scheduler"], compiling))
    clipping = torch.nn.utils.clip_grad
    for name in CLIPPING:
        if patches.replace(clipping, name, booked(clock, gate, INDEX["clip"], compiling)) and hasattr(
            torch.nn.utils, name
        ):
            patches.replace(torch.nn.utils, name, same(getattr(clipping, name)))
    patches.replace(torch.amp.GradScaler, "step", lambda step: _scaled(observer, step))


Call = tuple[tuple[Any, ...], dict[str, Any]]


def _outside_graphs(
    torch: ModuleType, tell: Callable[[], None], changed: Callable[..., Call | None] = lambda *_: None
) -> Callable[..., Call | None]:
    """Return a hook for ``tell`` that a compiled optimizer step leaves its graph for, as it does for its own hooks.

    ``changed`` may return other arguments for a step that is not compiled.
    """
    compiling, aside = torch.compiler.is_compiling, torch._disable_dynamo(tell)

    def hook(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
        if compiling():
            aside()
            return None
        tell()
        return changed(args, kwargs)

    return hook


def _scripts_own(observer: Observer) -> Callable[..., Call | None]:
    """Return what lets an optimizer call a closure of the script's outside of its own account: it trains in there."""
    outside = booked(observer.clock, observer.gate, UNATTRIBUTED)

    def scripts_own(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
        optimizer, *rest = args
        if not any(map(callable, (*rest, *kwargs.values()))):
            return None
        own = [outside(one) if callable(one) else one for one in rest]
        return (optimizer, *own), {name: outside(one) if callable(one) else one for name, one in kwargs.items()}

    return scripts_own


def _subclasses(root: type) -> set[type]:
    return {root}.union(*map(_subclasses, root.__subclasses__()))


def _scaled(observer: Observer, step: Any) -> Any:
    @unseen(step)
    def scaled(scaler: Any, *args: Any, **kwargs: Any) -> Any:
        before = observer.optimizer_steps
        result = step(scaler, *args, **kwargs)
        if observer.gate.open and observer.optimizer_steps == before:
            observer.optimizer_skipped()
        return result

    return scaled


def _functions(observer: Observer, hooks: ModuleHooks, torch: ModuleType, first: FirstCalls) -> None:
    patches, functional = observer.patches, torch.nn.functional
    patches.replace(torch.autograd, "backward", hooks.backward)
    attention, loss = hooks.part("attention", first.attended), hooks.part("loss")
    patches.replace(functional, "scaled_dot_product_attention", copies.scriptable(torch, attention))
    patches.replace(functional, "cross_entropy", copies.scriptable(torch, hooks.loss))
    patches.replace(functional, "linear_cross_entropy", copies.scriptable(torch, loss))
    saving = swallowed(observer.clock, observer.gate, INDEX["checkpoint"])
    if patches.replace(torch.serialization, "save", saving):  # pickle looks for it where it is defined
        patches.replace(torch, "save", same(torch.serialization.save))


def attach_loader(observer: Observer, dataloader: ModuleType) -> None:
    """Put the hooks of ``torch.utils.data`` in place."""
    clock, gate, patches = observer.clock, observer.gate, observer.patches
    for_training = dataloader.torch.is_grad_enabled  # what is drawn without gradients begins and ends no step

    def waiting(next_: Any) -> Any:
        @unseen(next_)
        def waiting(iterator: Any) -> Any:
            if for_training():
                observer.data_asked()
            batch = wait(iterator)
            begin = time.perf_counter_ns()
            observer.batch_loaded(batch)
            observer.add_cost(time.perf_counter_ns() - begin)
            return batch

        wait = booked(clock, gate, INDEX["data.wait"])(next_)
        return waiting

    def starting(iter_: Any) -> Any:
        @unseen(iter_)
        def starting(loader: Any) -> Any:
            if for_training():
                observer.data_asked()
            if gate.open:
                _loader_facts(observer, loader)
                observer.count("loader_starts", int(for_training()))
            return start(loader)

        start = booked(clock, gate, INDEX["data.start"])(iter_)
        return starting

    patches.replace(dataloader._BaseDataLoaderIter, "__next__", waiting)
    patches.replace(dataloader.DataLoader, "__iter__", starting)
    # a loader that is made again waits for the workers of the one before to end
    stopping = booked(clock, gate, INDEX["data.start"])
    patches.replace(dataloader._MultiProcessingDataLoaderIter, "_shutdown_workers", stopping)


def _loader_facts(observer: Observer, loader: Any) -> None:
    try:
        observer.facts.update(
            loader_workers=int(loader.num_workers),
            loader_prefetch=int(loader.prefetch_factor or 0),
            loader_batch_size=int(loader.batch_size or 0),
            loader_persistent=bool(loader.persistent_workers),
            loader_pinned=bool(loader.pin_memory),
        )
    except Exception as error:  # a class of the user's own may lack any of them
        observer.note(f"the settings of a loader were not read: {type(error).__name__}")


def attach_fetch(observer: Observer, fetch: ModuleType) -> None:
    """Split the fetching of rows from their collation (in this process; workers observe nothing)."""
    clock, gate = observer.clock, observer.gate
    collate = booked(clock, gate, INDEX["data.collate"])

    def splitting(fetch_: Any) -> Any:
        @unseen(fetch_)
        def splitting(fetcher: Any, indices: Any) -> Any:
            if not gate.open:
                return fetch_(fetcher, indices)
            own = fetcher.collate_fn
            fetcher.collate_fn = collate(own)
            try:
                return booked_fetch(fetcher, indices)
            finally:
                fetcher.collate_fn = own

        booked_fetch = booked(clock, gate, INDEX["data.fetch"])(fetch_)
        return splitting

    for name in ("_MapDatasetFetcher", "_IterableDatasetFetcher"):
        observer.patches.replace(getattr(fetch, name), "fetch", splitting)


def attach_compiler(observer: Observer, callback: ModuleType) -> None:
    """Book the time in which ``torch.compile`` compiles."""
    clock, gate = observer.clock, observer.gate
    depths: list[int] = []

    def begins(*_: Any) -> None:
        if gate.open:
            depths.append(clock.push(INDEX["compile"]))

    def ended(*_: Any) -> None:
        if depths:
            clock.pop_to(depths.pop())

    callback.callback_handler.register_start_callback(begins)
    callback.callback_handler.register_end_callback(ended)


def attach_rules(_: Observer, rules: Any) -> None:
    """Let ``torch.compile`` look into a wrapper of ours where a compiled function calls it, and compile none itself."""
    rules.SKIP_DIRS.append(OURS)
    rules._recompile_re()
    called = rules.BUILTIN_INLINE_WHEN_CALLED
    rules.BUILTIN_INLINE_WHEN_CALLED = type(called)((*called, OURS))


def attach_frames(_: Observer, eval_frame: Any) -> None:
    """Let ``torch.compile`` compile none of the stand-ins, which say that they lie in the user's files."""
    callers.tell(eval_frame.skip_code)


ON_IMPORT = {
    "torch": attach,
    "torch.utils.data.dataloader": attach_loader,
    "torch.utils.data._utils.fetch": attach_fetch,
    "torch._dynamo.callback": attach_compiler,
    "torch._dynamo.trace_rules": attach_rules,
    "torch._dynamo.eval_frame": attach_frames,
}
