"""Which remedies were made between two runs: seen in settings that changed and in what the steps no longer do."""

from collections.abc import Callable, Sequence

from stepprobe.analysis.findings.tokens import HEAD
from stepprobe.analysis.findings.view import SAMPLES_FEWEST
from stepprobe.analysis.ledger.process import Process
from stepprobe.analysis.ledger.shapes import ROWS, mean_rows
from stepprobe.analysis.ledger.tokens import observed
from stepprobe.analysis.outcome.gains import LESS, Gains
from stepprobe.analysis.statistics import difference
from stepprobe.model.accounts import LABELS
from stepprobe.model.finding import Finding, Remedy

OWN_LOADING = ("data.fetch", "data.collate")
PACKED_ROWS = 1.25
"""Ratio of tokens in a row from which rows must hold more than one example: grouping leaves it as it is."""
MORE_ROWS = 1.5
"""Ratio of rows in a micro-batch from which the batch size was raised."""
VANISHED = 0.05
"""Part of a cost that may remain where a change has taken it out."""

NOT_SAID = ("loader_batch_size", "per_device_train_batch_size", "device", "framework", "optimizer")
"""Settings that say nothing where they are absent or zero: a sampler of the user's own may make the batches."""

Detector = Callable[[Gains, Finding, Remedy], str]
"""Says what shows that a remedy was made; empty where nothing does."""


def seen(gains: Gains, finding: Finding, remedy: Remedy) -> str:
    """Return what shows that a remedy of the first run was made before the second; empty where nothing does."""
    return DETECTORS.get(remedy.name, _cheaper)(gains, finding, remedy)


def setting(gains: Gains, *names: str) -> str:
    """Return ``gradient_checkpointing True → False`` for the first of some settings that changed; empty for none."""
    for name in names:
        before, after = (one.facts.get(name) for one in (gains.first, gains.second))
        unknown = name in NOT_SAID and not (before and after)
        if not unknown and (before or None) != (after or None):
            return f"{name} {before} → {after}"
    return ""


def _cheaper(gains: Gains, finding: Finding, _: Remedy) -> str:
    """The accounts of the finding take decidedly less."""
    names = tuple(name for name in finding.accounts if name in LABELS)
    if not names or not gains.less(*names, least=min(LESS, finding.cost.value / max(gains.before(*names), 1e-9) / 2)):
        return ""
    return f"{_named(names)} {_from_to(gains, names)}"


def _workers(gains: Gains, *_: object) -> str:
    before, after = (int(one.facts.get("loader_workers") or 0) for one in (gains.first, gains.second))
    return f"loader_workers {before} → {after}" if after > before else ""


def _precomputed(gains: Gains, finding: Finding, remedy: Remedy) -> str:
    if setting(gains, "loader_workers"):
        return ""
    names = OWN_LOADING if any(gains.before(name) for name in OWN_LOADING) else ("data.wait",)
    return f"{_named(names)} {_from_to(gains, names)}" if gains.less(*names) else ""


def _persistent(gains: Gains, finding: Finding, remedy: Remedy) -> str:
    return setting(gains, "loader_persistent") and _cheaper(gains, finding, remedy)


def _once(gains: Gains, finding: Finding, remedy: Remedy) -> str:
    return "" if setting(gains, "loader_persistent") else _cheaper(gains, finding, remedy)


def _padding(process: Process) -> float | None:
    """Return the share of padding; without a mask only a batch of one row, as padding-free ones are, is known."""
    if process.unmasked:
        return 0.0 if mean_rows(process) == 1 else None
    if not (observed(process, "slots") and observed(process, "real")):
        return None
    return 1 - process.counter("real").value / process.counter("slots").value


def _padding_by_labels(gains: Gains) -> float | None:
    """Return the share of padding of a run without a mask: as many of its tokens have a label as before, no padding."""
    first, second = gains.first, gains.second
    if not second.unmasked or not all(observed(one, "labelled") and observed(one, "slots") for one in (first, second)):
        return None
    real, labelled = first.counter("real").value, first.counter("labelled").value
    if not labelled:
        return None
    return max(0.0, 1 - second.counter("labelled").value / second.counter("slots").value * real / labelled)


def _tokens_of_a_row(process: Process) -> float | None:
    rows, micro_steps = mean_rows(process), process.counter("micro_steps").value
    return (
        process.counter("real").value / (rows * max(1.0, micro_steps)) if rows and observed(process, "real") else None
    )


def _less_padding(gains: Gains) -> str:
    before, after = _padding(gains.first), _padding(gains.second)
    if after is None:
        after = _padding_by_labels(gains)
    if before is None or after is None or before - after < LESS * before:
        return ""
    return f"padding {before:.0%} → {after:.0%} of the slots"


def _longer_rows(gains: Gains) -> str:
    before, after = _tokens_of_a_row(gains.first), _tokens_of_a_row(gains.second)
    return f"{before:,.0f} → {after:,.0f} tokens in a row" if before and after and after >= PACKED_ROWS * before else ""


def _packed(gains: Gains, *_: object) -> str:
    padding, rows = _less_padding(gains), _longer_rows(gains)
    return f"{padding}, {rows}" if padding and rows else ""


def _grouped(gains: Gains, *_: object) -> str:
    return "" if _longer_rows(gains) else _less_padding(gains)


def _one_row(gains: Gains) -> bool:
    """Whether a batch became one row of the tokens that it had before: its rows were joined, none were added."""
    return mean_rows(gains.second) == 1 and abs(gains.tokens[1] / gains.tokens[0] - 1) < LESS


def _packed_apart(gains: Gains, *_: object) -> str:
    return "" if gains.counted and _one_row(gains) else _packed(gains)


def _joined(gains: Gains, *_: object) -> str:
    return _packed(gains) if gains.counted and _one_row(gains) else ""


def _chunked(gains: Gains, *_: object) -> str:
    """A slot costs less of the head although all have a label; where many have none, labelled rows are likelier."""
    labelled = gains.first
    if not (observed(labelled, "labelled") and observed(labelled, "slots")):
        return ""
    share = labelled.counter("labelled").value / labelled.counter("slots").value
    return _labelled_rows(gains) if share > 1 - LESS else ""


def _shorter(gains: Gains, *_: object) -> str:
    """No row is as long as the longest was, and attention takes decidedly less."""
    longest = [_longest(one) for one in (gains.first, gains.second)]
    attention = ("forward.attention", "backward.attention")
    if not 0 < longest[1] < longest[0] or not gains.less(*attention, least=0.0):
        return ""
    return f"longest row {longest[0]} → {longest[1]} slots, attention {_from_to(gains, attention)}"


def _longest(process: Process) -> int:
    shapes = process.records.sites.shapes if process.records.sites else []
    return max((int(match[2]) for shape, _ in shapes if (match := ROWS.match(shape))), default=0)


def _more_rows(gains: Gains, *_: object) -> str:
    before, after = mean_rows(gains.first), mean_rows(gains.second)
    if not before or not after or after < MORE_ROWS * before or _longer_rows(gains):
        return ""
    return f"{before:.3g} → {after:.3g} rows in a micro-batch"


def _fewer_syncs(gains: Gains, *_: object) -> str:
    if gains.first.unmasked != gains.second.unmasked:  # models ask a mask on the host whether it hides anything
        return ""
    return _counter(gains, "syncs")


def _repaired(gains: Gains, *_: object) -> str:
    return _less_padding(gains)


def _labelled_rows(gains: Gains, *_: object) -> str:
    """A slot costs less of the head: fewer slots alone do not show as this."""
    if not all(observed(one, "slots") for one in (gains.first, gains.second)):
        return ""
    before, after = (
        one.ratio(
            lambda entry: sum(entry.accounts.get(name, 0) for name in HEAD),
            lambda entry: entry.counters.get("slots", 0),
        )
        for one in (gains.first, gains.second)
    )
    low = difference(after, before)[1]
    if low is None or low <= 0 or after.value > (1 - LESS) * before.value:
        return ""
    return f"head and loss {before.value / 1000:.3g} → {after.value / 1000:.3g} µs a slot"


def _fewer_shapes(gains: Gains, *_: object) -> str:
    before, after = (
        len(one.records.sites.shapes) / one.sited if one.records.sites else 0.0 for one in (gains.first, gains.second)
    )
    return f"distinct shapes a step {before:.2g} → {after:.2g}" if 0 < after <= before * (1 - LESS) else ""


def _not_recomputed(gains: Gains, *_: object) -> str:
    after = gains.second.account("recompute").value
    return f"recompute {_from_to(gains, ('recompute',))}" if after <= VANISHED * gains.before("recompute") else ""


def _counter(gains: Gains, name: str) -> str:
    before, after = (one.counter(name).value for one in (gains.first, gains.second))
    return f"{name} {before:.3g} → {after:.3g} a step" if after <= before * (1 - LESS) else ""


def _fewer_forwards(gains: Gains, *_: object) -> str:
    before, after = (
        one.counter("forwards").value - one.counter("backwards").value for one in (gains.first, gains.second)
    )
    without = _counter(gains, "no_grad_forwards")
    return without or (f"extra forwards {before:.3g} → {after:.3g} a step" if after <= before * (1 - LESS) else "")


def _optimizer(gains: Gains, *_: object) -> str:
    return setting(gains, "optimizer_foreach", "optimizer_fused", "optimizer")


def _walks(gains: Gains, *_: object) -> str:
    return _counter(gains, "train_walks")


def _scaler(gains: Gains, *_: object) -> str:
    return setting(gains, "bf16", "fp16") or _counter(gains, "amp_skipped")


def _site_gone(gains: Gains, finding: Finding, _: Remedy) -> str:
    """The calls at the site are gone or rarer; the line's number may have moved."""
    before, after = (_calls(one, finding.where) for one in (gains.first, gains.second))
    return f"{before:.3g} → {after:.3g} calls a step there" if before and after <= before / 2 else ""


def _calls(process: Process, where: str) -> float:
    sites = process.records.sites.syncs if process.records.sites else []
    return sum(calls for place, _, calls, _, _ in sites if _function(place) == _function(where)) / process.sited


def _line_gone(gains: Gains, finding: Finding, remedy: Remedy) -> str:
    """The sampler finds the line no more; or far less often, and the account takes decidedly less."""
    lines = gains.second.sampled(("unattributed",))
    hits = sum(taken for line, taken in lines.items() if _function(line) == _function(finding.where))
    sites = gains.second.records.sites
    if not hits and sites and sum(sample[3] for sample in sites.samples) >= SAMPLES_FEWEST:
        return f"{finding.where} in none of the samples"
    left = gains.second.account("unattributed").value * hits / max(1, sum(lines.values()))
    if left > finding.cost.value * (1 - LESS) or not gains.less("unattributed", least=0.0):
        return ""
    return f"{finding.where} {finding.cost.value:.3g} → {left:.3g} ms"


def _function(place: str) -> str:
    """Return ``file function`` of ``folder/file.py:88 function``: an edit elsewhere moves the number of a line."""
    file, _, function = place.partition(" ")
    return f"{file.rpartition('/')[2].partition(':')[0]} {function}"


def _named(names: Sequence[str]) -> str:
    short = [name for name in names if name in LABELS]
    return short[0] if len(short) == 1 else f"{short[0]} and {len(short) - 1} more"


def _from_to(gains: Gains, names: Sequence[str]) -> str:
    before = gains.before(*names)
    return f"{before:.3g} → {before - gains.saved(*names).value:.3g} ms"


DETECTORS: dict[str, Detector] = {
    "loader.workers": _workers,
    "loader.precompute": _precomputed,
    "loader.persistent": _persistent,
    "loader.once": _once,
    "padding.longest": _grouped,
    "padding.group": _grouped,
    "padding.pack": _packed,
    "packing.repaired": _repaired,
    "grouping.repaired": _repaired,
    "loss.labelled_rows": _labelled_rows,
    "shapes.few": _fewer_shapes,
    "checkpointing.off": _not_recomputed,
    "forward.reuse": _fewer_forwards,
    "optimizer.foreach": _optimizer,
    "train.once": _walks,
    "amp.bfloat16": _scaler,
    "sync.kept": _site_gone,
    "line.removed": _line_gone,
    "forecast.bucketing": _grouped,
    "forecast.packing": _packed_apart,
    "forecast.padding_free": _joined,
    "forecast.chunked_loss": _chunked,
    "forecast.labelled_rows": _labelled_rows,
    "forecast.fast_path": _shorter,
    "forecast.workers": _workers,
    "forecast.fewer_syncs": _fewer_syncs,
    "forecast.checkpointing_off": _not_recomputed,
    "forecast.batch_size": _more_rows,
}
"""By name of the remedy; any other is looked for in the time of its finding's accounts."""

EXPLAINED = {
    "loader.workers": ("loader_workers", "loader_persistent", "dataloader_num_workers"),
    "loader.persistent": ("loader_persistent",),
    "padding.group": ("group_by_length", "train_sampling_strategy"),
    "grouping.repaired": ("group_by_length", "train_sampling_strategy"),
    "padding.pack": ("packing", "loader_batch_size", "per_device_train_batch_size"),
    "packing.repaired": ("packing", "loader_batch_size", "per_device_train_batch_size"),
    "checkpointing.off": ("gradient_checkpointing",),
    "optimizer.foreach": ("optimizer_foreach", "optimizer_fused", "optimizer"),
    "amp.bfloat16": ("bf16", "fp16"),
    "forecast.batch_size": ("loader_batch_size", "per_device_train_batch_size", "gradient_accumulation_steps"),
}
"""Settings that a remedy changes."""

ALIAS = {
    "forecast.bucketing": "padding.group",
    "forecast.packing": "padding.pack",
    "forecast.padding_free": "padding.pack",
    "forecast.workers": "loader.workers",
    "forecast.checkpointing_off": "checkpointing.off",
}
"""Forecasts that change the settings of a remedy of the ledger."""

SETTINGS = (
    *("loader_workers", "dataloader_num_workers", "loader_persistent", "loader_pinned", "loader_batch_size"),
    *("per_device_train_batch_size", "gradient_accumulation_steps", "gradient_checkpointing", "bf16", "fp16"),
    *("packing", "group_by_length", "train_sampling_strategy", "optimizer", "optimizer_foreach", "optimizer_fused"),
    *("compiled", "device", "framework"),
)
"""Settings of the job that change what a step costs."""


def unexplained(gains: Gains, made: Sequence[str]) -> list[str]:
    """Return the settings that changed without a remedy that changes them."""
    known = {name for remedy in made for name in EXPLAINED.get(ALIAS.get(remedy, remedy), ())}
    return [said for name in SETTINGS if name not in known and (said := setting(gains, name))]
