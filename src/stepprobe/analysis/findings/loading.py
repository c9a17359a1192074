"""Findings about the way from the dataset to the step."""

import math
from collections.abc import Iterator

from stepprobe.analysis.findings.view import SAMPLES_FEWEST, Rule, View, all_of, most_of, up_to
from stepprobe.model.estimate import Estimate
from stepprobe.model.finding import Finding, Remedy

LOADING = ("data.wait", "data.fetch", "data.collate")

SLOW_WORKERS_SHARE = 0.1
"""Waiting, over the step, from which workers cannot keep up; below it, it is what handing over a batch costs."""

WORKERS_FEWEST = 2
"""One worker loads while the other hands over."""


def data_slow(view: View) -> Iterator[Finding]:
    """The step waits for its batch: rows are fetched, tokenised and collated while nothing trains."""
    cost = view.account(*LOADING)
    if not view.worth(cost):
        return
    workers = int(view.fact("loader_workers") or 0)
    remedies = tuple(_remedies(view, cost, workers))
    if not remedies:
        return
    parts = ", ".join(f"{name[5:]} {view.account(name).value:.3g} ms" for name in LOADING if view.account(name).value)
    yield Finding(
        kind="data.slow",
        title=f"Each step waits {cost.value:.3g} ms for its batch ({parts}).",
        where=view.process.hottest(_own_accounts(workers)),
        cost=cost,
        share=view.share(cost),
        accounts=LOADING,
        remedies=remedies,
        cites=tuple(f"ledger.{name}" for name in LOADING),
    )


def _own_accounts(workers: int) -> tuple[str, ...]:
    """Return the accounts whose lines name a cause: with workers, the line that waits is the loader's own."""
    return LOADING[1:] if workers else LOADING


def _remedies(view: View, cost: Estimate, workers: int) -> Iterator[Remedy]:
    accounts = _own_accounts(workers)
    line = view.process.hottest(accounts)
    if line and view.process.sampled(accounts)[line] >= SAMPLES_FEWEST and view.worth(view.account(*accounts)):
        action = f"do the work of {line} once, before training: pre-tokenise, or cache what it returns"
        yield Remedy(name="loader.precompute", action=action, predicted=view.line_cost(accounts, line))
    elif not workers:
        action = "fetch and collate once, before training: pre-tokenise, or cache the rows"
        predicted = up_to(cost, "no line was sampled often enough to size it")
        yield Remedy(name="loader.precompute", action=action, predicted=predicted)
    if not workers:
        yield _workers(view, cost)
    elif view.worth(view.account("data.wait"), SLOW_WORKERS_SHARE):
        yield _more_workers(view, cost, workers)


def _workers(view: View, cost: Estimate) -> Remedy:
    rest = view.wall_ms - cost.value
    count = max(WORKERS_FEWEST, math.ceil(cost.value / rest) + 1 if rest > 0 else WORKERS_FEWEST)
    action = f"DataLoader(num_workers={count}): load the next batches while this one trains"
    if view.on_cpu:
        predicted = up_to(cost, "workers share the processor with the training")
    else:
        # Even with no overlap at all, `count` workers share the loading among them.
        low = (cost.low if cost.low is not None else cost.value) * (1 - 1 / count)
        predicted = Estimate(
            value=cost.value, unit="ms", low=low, high=cost.high, n=cost.n, method=f"loading hidden by {count} workers"
        )
    return Remedy(name="loader.workers", action=action, predicted=predicted)


def _more_workers(view: View, cost: Estimate, workers: int) -> Remedy:
    # The workers deliver one batch per step: the step cannot be shorter than their time divided by their number.
    return Remedy(
        name="loader.workers",
        action=f"DataLoader(num_workers={2 * workers}), now {workers}: the workers are slower than the training",
        predicted=up_to(cost, "twice the workers deliver at most twice as fast", limit=most_of(view.wall) / 2),
    )


def data_start(view: View) -> Iterator[Finding]:
    """The loader is set up again and again: workers are started, and the first batch is waited for."""
    cost = view.account("data.start")
    if not view.worth(cost):
        return
    restarts = view.fact("loader_workers") and not view.fact("loader_persistent")
    actions = {"loader.once": "build the DataLoader and its iterator once, outside the loop over steps"}
    if restarts:
        actions = {
            "loader.persistent": "DataLoader(persistent_workers=True): keep the workers between passes",
            **actions,
        }
    yield Finding(
        kind="data.start",
        title=f"Starting the loader takes {cost.value:.3g} ms of each step: it is made anew while training.",
        where=view.process.hottest(("data.start",)),
        cost=cost,
        share=view.share(cost),
        accounts=("data.start",),
        remedies=tuple(
            Remedy(name=name, action=action, predicted=all_of(cost, "nothing left to start"))
            for name, action in actions.items()
        ),
        cites=("ledger.data.start",),
    )


RULES: tuple[Rule, ...] = (data_slow, data_start)
