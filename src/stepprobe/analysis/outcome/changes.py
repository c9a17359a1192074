"""Which remedies were made between two runs: each is known by what only it does, in settings and in the steps."""

from collections.abc import Sequence

from stepprobe.analysis.findings.loading import LOADING
from stepprobe.analysis.outcome import batching, loading, work
from stepprobe.analysis.outcome.gains import Gains
from stepprobe.analysis.outcome.sign import Detector, Sign, cheaper, setting
from stepprobe.model.finding import Finding, Remedy

DETECTORS: dict[str, Detector] = {
    "loader.workers": loading.workers,
    "loader.precompute": loading.precomputed,
    "loader.persistent": loading.persistent,
    "loader.once": loading.once,
    "padding.longest": batching.longest,
    "padding.group": batching.grouped,
    "padding.pack": batching.packed,
    "packing.repaired": batching.packed,
    "grouping.repaired": batching.grouped,
    "loss.labelled_rows": work.labelled_rows,
    "shapes.few": batching.fewer_shapes,
    "checkpointing.off": work.not_recomputed,
    "forward.reuse": work.fewer_forwards,
    "optimizer.foreach": work.optimizer,
    "train.once": work.walks,
    "amp.bfloat16": work.scaler,
    "sync.kept": work.site_gone,
    "line.removed": work.line_gone,
    "steps.spikes": work.spikes_gone,
    "rank.evened": work.evened,
    "logging.less": work.Occasional("logging", "logging_steps"),
    "eval.less": work.Occasional("eval", "eval_steps"),
    "checkpoint.less": work.Occasional("checkpoint", "save_steps"),
    "forecast.longest": batching.longest,
    "forecast.bucketing": batching.grouped,
    "forecast.packing": batching.packed_apart,
    "forecast.padding_free": batching.joined,
    "forecast.chunked_loss": work.chunked,
    "forecast.labelled_rows": work.labelled_rows,
    "forecast.fast_path": batching.shorter,
    "forecast.workers": loading.workers,
    "forecast.fewer_syncs": work.fewer_syncs,
    "forecast.checkpointing_off": work.not_recomputed,
    "forecast.batch_size": batching.more_rows,
}
"""By name of the remedy; any other is looked for in the time of its finding's accounts."""

BY_TIME = ("steps.spikes",)
"""Remedies with a detector that sees a time alone, as that of all without a detector does."""

OF_TOKENS = (*LOADING, "h2d", "eval", "sync", "d2h", "gc", "compile", "unattributed")
"""Where other rows or fewer slots may save beside forward and backward."""

TOUCHES = {
    **dict.fromkeys(("padding.longest", "padding.group", "padding.pack"), OF_TOKENS),
    **dict.fromkeys(("forecast.fast_path", "forecast.batch_size", "shapes.few"), OF_TOKENS),
    "checkpointing.off": ("gc", "compile", "forward.other", "backward.other", "unattributed"),
    "forward.reuse": ("gc", "h2d"),
    "loader.workers": ("gc", "unattributed"),
}
"""Accounts beside those of its finding in which a remedy may save."""

EXPLAINED = {
    "loader.workers": ("loader_workers", "loader_persistent", "loader_prefetch", "dataloader_num_workers"),
    "loader.persistent": ("loader_persistent",),
    "padding.group": ("group_by_length", "train_sampling_strategy"),
    "padding.pack": ("packing", "padding_free", "loader_batch_size", "per_device_train_batch_size"),
    "checkpointing.off": ("gradient_checkpointing",),
    "optimizer.foreach": ("optimizer_foreach", "optimizer_fused"),
    "amp.bfloat16": ("bf16", "fp16"),
    "logging.less": ("logging_steps",),
    "eval.less": ("eval_steps",),
    "checkpoint.less": ("save_steps",),
    "forecast.fast_path": ("max_length",),
    "forecast.batch_size": ("loader_batch_size", "per_device_train_batch_size", "gradient_accumulation_steps"),
}
"""Settings that a remedy changes."""

ALIAS = {
    "grouping.repaired": "padding.group",
    "packing.repaired": "padding.pack",
    "forecast.longest": "padding.longest",
    "forecast.bucketing": "padding.group",
    "forecast.packing": "padding.pack",
    "forecast.padding_free": "padding.pack",
    "forecast.workers": "loader.workers",
    "forecast.checkpointing_off": "checkpointing.off",
}
"""Remedies that are the same change under another name."""

SETTINGS = (
    *("loader_workers", "dataloader_num_workers", "loader_persistent", "loader_pinned", "loader_prefetch"),
    *("loader_batch_size", "per_device_train_batch_size", "gradient_accumulation_steps", "gradient_checkpointing"),
    *("bf16", "fp16", "packing", "padding_free", "max_length", "group_by_length", "train_sampling_strategy"),
    *("optimizer", "optimizer_foreach", "optimizer_fused", "logging_steps", "eval_steps", "save_steps"),
    *("compiled", "device", "framework"),
)
"""Settings of the job that change what a step costs."""


def seen(gains: Gains, finding: Finding, remedy: Remedy) -> Sign:
    """Return what shows that a remedy of the first run was made before the second; empty where nothing does."""
    return DETECTORS.get(remedy.name, cheaper)(gains, finding, remedy)


def by_time_alone(name: str) -> bool:
    """Return whether a remedy is seen by less time alone, so that any change that saves there is seen as it."""
    return name not in DETECTORS or name in BY_TIME


def same_change(name: str) -> str:
    """Return the name under which a change is known whatever proposed it."""
    return ALIAS.get(name, name)


def proposed_twice(change: str) -> bool:
    """Return whether findings of several kinds propose a change, each under its own name."""
    return change in ALIAS.values()


def touched(finding: Finding, remedy: Remedy) -> frozenset[str]:
    """Return the accounts in which a remedy may save."""
    return frozenset((*finding.accounts, *TOUCHES.get(same_change(remedy.name), ())))


def unexplained(gains: Gains, made: Sequence[str]) -> list[str]:
    """Return the settings that changed without a remedy that changes them."""
    known = {name for remedy in made for name in EXPLAINED.get(same_change(remedy), ())}
    return [said for name in SETTINGS if name not in known and (said := setting(gains, name))]
