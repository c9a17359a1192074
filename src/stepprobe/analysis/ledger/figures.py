"""Every number of a run's report, by its stable name.

What was not observed gives a note and no figure: a zero would claim that it was counted.
"""

import math
import re
from collections.abc import Sequence

from stepprobe.analysis.distributions import t_quantile
from stepprobe.analysis.ledger.attribution import PARTS, Entry
from stepprobe.analysis.ledger.process import NS_PER_MS, Process, estimate
from stepprobe.analysis.ledger.shapes import first_seen
from stepprobe.analysis.ledger.tokens import TokenRate, framework_rates, observed, token_rates
from stepprobe.analysis.statistics import (
    CONFIDENCE,
    Blocks,
    Mean,
    difference,
    histogram_points,
    median,
    robust_spread,
    weighted_percentile,
)
from stepprobe.model.accounts import ACCOUNTS
from stepprobe.model.estimate import Estimate, exact
from stepprobe.model.ledger import LedgerRow

MEDIAN_ERROR = 1.2533
"""Standard error of a median over that of a mean, for normal noise."""

PLACE_SAMPLES = 5
"""Samples of one line from which a row of the ledger names it; fewer may be anywhere."""

MEAN = "mean of steady steps, interval from block means"

COUNTERS = {
    "syncs.per_step": "syncs",
    "forwards.no_grad_per_step": "no_grad_forwards",
    "train_walks.per_step": "train_walks",
}
"""Figures that are a counter's mean."""

Figures = dict[str, Estimate]
Found = tuple[Figures, list[str]]
"""Figures, and a note for each that could not be had."""


def run_figures(process: Process, ranks: Sequence[Process]) -> Found:
    """Return all figures of a run.

    Args:
        process: The process whose ledger is shown.
        ranks: One process per rank, that one among them; tokens are summed over them.
    """
    figures = count_figures(process) | step_figures(process) | counter_figures(process) | ledger_figures(process)
    notes: list[str] = []
    for found, missing in (
        attach_figures(process),
        token_figures(process, token_rates(process, ranks)),
        shape_figures(process),
    ):
        figures |= found
        notes += missing
    return figures, notes


def count_figures(process: Process) -> Figures:
    """Return how many steps were seen, cut and averaged, and whether their ledgers close."""
    return {
        "step.count": exact(process.count, "steps", process.count, "optimizer steps seen, warm-up included"),
        "step.measured": exact(process.measured, "steps", process.measured, "steps behind the means"),
        "step.warmup": exact(process.warmup, "steps", process.count, "first steps cut"),
        "ledger.closure_ns": exact(process.closure_ns, "ns", process.count, "largest |wall − sum of accounts|"),
    }


def step_figures(process: Process) -> Figures:
    """Return the wall time of a step: mean, median, 90th percentile and spread."""
    walls = [step.wall_ns / NS_PER_MS for step in process.steady]
    binned = [
        (wall / NS_PER_MS, n) for summary in process.summaries for wall, n in histogram_points(summary.wall_histogram)
    ]
    points = [(wall, 1) for wall in walls] + binned
    rest = f"; {sum(n for _, n in binned)} steps from histogram bins 9 % wide" if binned else ""
    middle, high = (weighted_percentile(points, percent) for percent in (50, 90))
    if binned or not walls:
        centre = Estimate(value=middle, unit="ms", n=process.measured, method=f"median{rest}")
    else:
        centre = estimate(Blocks([1] * len(walls)).median(walls), "ms", "median, interval from block medians")
    figures = {
        "step.wall": estimate(process.wall, "ms", MEAN),
        "step.wall_median": centre,
        "step.wall_p90": Estimate(value=high, unit="ms", n=process.measured, method=f"90th percentile{rest}"),
    }
    if walls:
        spread = robust_spread(walls)
        figures["step.robust_cv"] = Estimate(value=spread, unit="1", n=len(walls), method="1.4826 · MAD / median")
    return figures


def ledger_figures(process: Process) -> Figures:
    """Return ms per step by account, what is unattributed, and how much of the wall the thread was off the CPU."""
    figures = {f"ledger.{account}": account_estimate(process, account) for account in ACCOUNTS}
    rest = process.ratio(lambda entry: entry.accounts.get("unattributed", 0), lambda entry: entry.wall_ns)
    away = process.ratio(lambda entry: sum(entry.off_cpu.values()), lambda entry: entry.wall_ns)
    figures["ledger.unattributed_share"] = estimate(rest, "1", "ratio of sums, interval from blocks")
    figures["off_cpu.share"] = estimate(away, "1", "wall minus thread CPU time over wall, interval from blocks")
    return figures


def account_estimate(process: Process, account: str) -> Estimate:
    """Return ms per step in one account; a divided one carries the uncertainty of its share too."""
    mean = process.account(account)
    whole = process.divided_from(account)
    if not whole or not mean.value:
        return estimate(mean, "ms", MEAN)
    if not process.detailed:
        shares = "those of warm-up steps" if process.borrowed_detail else "unknown: no step was observed in detail"
        return Estimate(value=mean.value, unit="ms", n=mean.n, method=f"booked whole, its shares {shares}")
    method = f"mean of steady steps, divided by the shares of {process.detailed} detailed ones"
    share = _share(process, account, whole)
    if mean.error is None or share.error is None:
        return Estimate(value=mean.value, unit="ms", n=mean.n, method=f"{method}; too few of them for an interval")
    # only what was not seen in detail hangs on the share
    guessed = mean.value * (1 - process.detailed / process.measured)
    error = math.hypot(mean.error, guessed * share.error / share.value if share.value else 0.0)
    return estimate(Mean(mean.value, error, min(mean.blocks, share.blocks), mean.n), "ms", method)


def _share(process: Process, account: str, whole: str) -> Mean:
    """Return the part of a pass that one account takes in the detailed steps."""
    seen = [entry for entry in process.entries if entry.detail]
    return Blocks([entry.weight for entry in seen]).ratio(
        [entry.accounts.get(account, 0) for entry in seen],
        [sum(entry.accounts.get(part, 0) for part in PARTS[whole]) for entry in seen],
    )


def ledger_rows(process: Process) -> tuple[LedgerRow, ...]:
    """Return the accounts in which time was booked, in their fixed order; they sum to the wall time."""
    return tuple(_row(process, account) for account in ACCOUNTS if process.account(account).value)


def _row(process: Process, account: str) -> LedgerRow:
    time = account_estimate(process, account)
    spent = sum(entry.accounts.get(account, 0) for entry in process.entries)
    away = sum(entry.off_cpu.get(account, 0) for entry in process.entries)
    return LedgerRow(
        account=account,
        time=time,
        share=time.value / process.wall.value,
        off_cpu=min(1.0, away / spent),
        where=process.hottest((account,), fewest=PLACE_SAMPLES),
    )


def attach_figures(process: Process) -> Found:
    """Return what observing cost, and how much more a step in detail costs than one without."""
    cost = process.mean(lambda entry: entry.self_ns / NS_PER_MS)
    share = process.ratio(lambda entry: entry.self_ns, lambda entry: entry.wall_ns)
    detail = process.detailed / process.measured
    figures = {
        "attach.self_cost": estimate(cost, "ms", "timed inside hooks plus calls times calibrated unit cost"),
        "attach.self_share": estimate(share, "1", "ratio of sums, interval from blocks"),
        "attach.detail_share": exact(detail, "1", process.measured, "steady steps observed in detail"),
    }
    fine = [entry for entry in process.entries if entry.detail]
    coarse = [entry for entry in process.entries if not entry.detail]
    if not fine or not coarse:
        kind = "in detail" if fine else "without detail"
        return figures, [f"every steady step was observed {kind}, so what detail costs could not be compared"]
    value, low, high = difference(_own_cost(coarse), _own_cost(fine))
    figures["attach.distortion"] = Estimate(
        value=value, unit="ms", low=low, high=high, n=process.measured, method="own cost, detailed minus other steps"
    )
    cpu = [[step.cpu_ns / NS_PER_MS for step in process.steady if step.detail is kind] for kind in (True, False)]
    if all(len(times) >= 3 for times in cpu):
        figures["attach.distortion_cpu"] = _median_difference(*cpu)
    return figures, []


def _median_difference(fine: Sequence[float], coarse: Sequence[float]) -> Estimate:
    """Return how much the median of the first exceeds that of the second, its interval from their robust spread."""
    middles = median(fine), median(coarse)
    errors = [
        MEDIAN_ERROR * robust_spread(times) * middle / math.sqrt(len(times))
        for times, middle in zip((fine, coarse), middles, strict=True)
    ]
    half = t_quantile((1 + CONFIDENCE) / 2, min(len(fine), len(coarse)) - 1) * math.hypot(*errors)
    value = middles[0] - middles[1]
    method = "median CPU time, detailed minus other steps: the check on attach.distortion"
    n = len(fine) + len(coarse)
    return Estimate(value=value, unit="ms", low=value - half, high=value + half, n=n, method=method)


def _own_cost(entries: Sequence[Entry]) -> Mean:
    return Blocks([entry.weight for entry in entries]).mean([entry.self_ns / NS_PER_MS for entry in entries])


def token_figures(process: Process, rates: Sequence[TokenRate]) -> Found:
    """Return tokens per step and per second, the padding share, and the framework's own rate over ours."""
    figures: Figures = {}
    notes = [f"{rate.kind} tokens: {rate.missing}; no figure" for rate in rates if rate.missing]
    for rate in rates:
        if rate.per_step and rate.per_second:
            figures[f"tokens.{rate.kind}_per_step"] = estimate(rate.per_step, "tokens/step", rate.method)
            figures[f"tokens.{rate.kind}_per_second"] = estimate(rate.per_second, "tokens/s", rate.method)
    if observed(process, "slots") and observed(process, "real"):
        padding = process.ratio(
            lambda entry: entry.counters.get("slots", 0) - entry.counters.get("real", 0),
            lambda entry: entry.counters.get("slots", 0),
        )
        figures["tokens.padding_share"] = estimate(padding, "1", "slots that hold no real token")
    for logged in framework_rates(process, rates):
        if logged.ratio is not None and "tokens" in logged.name:
            name = f"tokens.framework.{re.sub('[^a-z0-9_]+', '_', logged.name.lower())}"
            figures[name] = exact(logged.theirs, "count", 1, "as the framework logged it")
            figures[f"{name}_ratio"] = exact(logged.ratio, "1", 1, f"over {logged.meaning}")
    return figures, notes


def shape_figures(process: Process) -> Found:
    """Return distinct batch shapes and the time that first-seen ones took."""
    shapes = process.records.sites.shapes if process.records.sites else []
    if not shapes:
        return {}, ["batch shapes were not observed; no figure"]
    # the table holds the most frequent shapes only, the steps count each new one
    distinct = max(len(shapes), sum(one.counters.get("new_shapes", 0) for one in process.everything))
    figures = {"shapes.distinct": exact(distinct, "count", process.count, "shapes of the input ids")}
    found = first_seen(process)
    if found is None:
        return figures, ["too few steps of known shapes to tell what first-seen ones cost"]
    method = "wall of steps with a new shape (the first step left out) above steps of known shapes, over all wall"
    figures["shapes.first_seen_time_share"] = Estimate(value=found.share, unit="1", n=found.steps, method=method)
    if found.unplaced:
        return figures, [f"{found.unplaced} first-seen shapes fell in steps kept only in sums: not in their time share"]
    return figures, []


def counter_figures(process: Process) -> Figures:
    """Return counts per step."""
    figures = {name: estimate(process.counter(key), "count/step", "counted") for name, key in COUNTERS.items()}
    walks = process.mean(lambda entry: entry.counters.get("train_walk_ns", 0) / NS_PER_MS)
    figures["train_walks.time"] = estimate(walks, "ms", "timed around model.train()")
    # each micro-step ends in one backward: a writer need not count both
    micro_steps = process.counter("micro_steps")
    figures["micro_steps.per_step"] = estimate(
        micro_steps if micro_steps.value else process.counter("backwards"), "count/step", "backward calls"
    )
    skipped = sum(entry.counters.get("amp_skipped", 0) for entry in process.entries)
    figures["amp.skipped"] = exact(skipped, "steps", process.measured, "steady steps that the loss scaler skipped")
    if process.counter("backwards").value:
        per = process.ratio(
            lambda entry: entry.counters.get("forwards", 0), lambda entry: entry.counters.get("backwards", 0)
        )
        figures["forwards.per_backward"] = estimate(per, "1", "forwards over backwards while training")
    return figures
