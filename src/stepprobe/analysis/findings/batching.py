"""Findings about batching that was asked for and did not happen."""

from collections.abc import Iterator

from stepprobe.analysis.findings.view import View, scaled, up_to
from stepprobe.analysis.ledger.tokens import observed
from stepprobe.model.accounts import BACKWARD, FORWARD
from stepprobe.model.finding import Finding, Remedy

COMPUTE = (*FORWARD, "recompute", *BACKWARD)

PACKED_PADDING = 0.10
"""Packs of real datasets waste a few per cent; above this share of padding there was no packing."""
GROUPED_PADDING = 0.30
"""Rows that are grouped by length, fifty batches at a time, waste about a tenth; above this they were not grouped."""


def packing_did_not_happen(view: View) -> Iterator[Finding]:
    """Packing is set, and the batches that were collated hold padding all the same."""
    if view.fact("packing") is True:
        yield from _ignored(
            view,
            PACKED_PADDING,
            "packing.ignored",
            "packing=True was set",
            "see why packing is skipped: the framework's warnings at the start name the reason",
        )


def grouping_did_not_happen(view: View) -> Iterator[Finding]:
    """Grouping by length is set, and the batches that were collated are as padded as in random order."""
    if view.fact("group_by_length") is True or view.fact("train_sampling_strategy") == "group_by_length":
        yield from _ignored(
            view,
            GROUPED_PADDING,
            "grouping.ignored",
            "group_by_length was set",
            "give the Trainer a dataset that has a length (an IterableDataset is never grouped), or a length column",
        )


def _ignored(view: View, most: float, kind: str, asked: str, action: str) -> Iterator[Finding]:
    process = view.process
    if not (observed(process, "slots") and observed(process, "real")):
        return
    slots, rows = process.counter("slots").value, view.fact("per_device_train_batch_size")
    share = 1 - process.counter("real").value / slots
    if share <= most or rows == 1:
        return
    beyond = scaled(view.account(*COMPUTE), share - most, "")
    cost = up_to(beyond, "padding beyond what it leaves when it works")
    yield Finding(
        kind=kind,
        title=f"{asked}, but {share:.0%} of the slots that were collated are padding: it did not happen.",
        where="",
        cost=cost,
        share=view.share(cost),
        accounts=COMPUTE,
        remedies=(Remedy(name=kind.replace("ignored", "repaired"), action=action, predicted=cost),),
        cites=("tokens.padding_share", "tokens.slots_per_step"),
    )


RULES = (packing_did_not_happen, grouping_did_not_happen)
