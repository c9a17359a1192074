"""The report of ``stepprobe bucket``: figures, tables and charts of the sweep, of packing, and of all ways together."""

import math
from collections.abc import Iterator, Sequence

from stepprobe.analysis.lengths import packs
from stepprobe.analysis.lengths.bucket_sweep import Bucket, Sweep, one_length
from stepprobe.analysis.lengths.options import Cut, Options
from stepprobe.analysis.lengths.packs import Packs
from stepprobe.analysis.lengths.strategies import Strategy, without_empty
from stepprobe.model.estimate import Estimate, exact
from stepprobe.model.report import Cell, Chart, Column, Table

NORMAL = 1.959964


def bucket_figures(seen: Cut, sweep: Sweep, sampled: float) -> dict[str, Estimate]:
    """Return every figure of the sweep.

    Args:
        seen: The rows as batches see them.
        sweep: The sweep.
        sampled: Half width that the sample of the dataset adds to a share of waste; 0 where every row is known.
    """
    rows = seen.known.rows
    best = sweep.best
    figures = {
        "bucket.best_k": exact(best.size, "count", rows, "smallest bucket within 2 % of the lowest predicted time"),
        "bucket.best_speedup": _speedup(sweep.buckets[0], best, rows, sampled),
    }
    for one in sweep.buckets:
        figures[f"bucket.waste_share.k{one.size}"] = _waste(one, rows, sampled)
        if mixing := one.mixing:
            figures[f"bucket.effective_batch.k{one.size}"] = Estimate(
                value=mixing.effective,
                unit="1",
                low=mixing.low,
                high=mixing.high,
                n=one.formed.groups if one.formed else 0,
                method="B / (1 + (B − 1)ρ), ρ from the unbiased chance that two rows of a batch share their source",
            )
    figures["bucket.waste_share.full_sort"] = _waste(sweep.full_sort, rows, sampled)
    return figures


def _time(bucket: Bucket) -> float:
    return bucket.cost * bucket.slowest


def _speedup(first: Bucket, best: Bucket, rows: int, sampled: float) -> Estimate:
    """Return predicted time of the random order over that of a bucket; both scatter as their waste does."""
    value = _time(first) / _time(best)
    errors = [math.hypot(NORMAL * one.spread, sampled) / (1 - one.waste) for one in (first, best)]
    half = value * math.hypot(*errors) if best is not first else 0.0
    method = "predicted time of the random order over the best bucket's; the interval holds one epoch of each"
    return Estimate(value=value, unit="1", low=max(0.0, value - half), high=value + half, n=rows, method=method)


def _waste(bucket: Bucket, rows: int, sampled: float) -> Estimate:
    half = ((NORMAL * bucket.spread) ** 2 + sampled**2) ** 0.5
    method = "expected over random orders, from the histogram; the interval holds one epoch"
    if not bucket.formed:
        method = "expected over random orders, from the histogram"
    return Estimate(
        value=bucket.waste,
        unit="1",
        low=max(0.0, bucket.waste - half),
        high=min(1.0, bucket.waste + half),
        n=rows,
        method=method,
    )


def packing_figures(seen: Cut, packed: Packs) -> dict[str, Estimate]:
    """Return every figure of packing."""
    tokens, rows = seen.known.tokens, seen.known.rows
    per_map = Estimate(
        value=packed.per_map,
        unit="count",
        low=max(packed.bound, packed.per_map - packed.per_map_error),
        high=packed.per_map + packed.per_map_error,
        n=packs.MAP_BATCHES,
        method="best fit decreasing on 1,000 random rows at a time, as Dataset.map hands them over",
    )
    if not (per_map.low or 0.0) <= per_map.value:
        per_map = exact(packed.per_map, "count", packs.MAP_BATCHES, per_map.method)
    return {
        "packing.cap": exact(packed.cap, "tokens", rows, "tokens of a pack"),
        "packing.bins": exact(packed.bins, "count", rows, "best fit decreasing over the whole set"),
        "packing.bins_bound": exact(packed.bound, "count", rows, "no packing needs fewer (Martello and Toth's L2)"),
        "packing.bins_by_tokens": exact(packed.by_tokens, "count", rows, "tokens over the size of a pack, rounded up"),
        "packing.waste_share": exact(
            packs.waste(tokens, packed.bins, packed.cap), "1", rows, "slots of packs without a token"
        ),
        "packing.bins_per_map": per_map,
        "packing.bins_in_order": exact(packed.in_order, "count", min(rows, packs.IN_ORDER), "next fit on random rows"),
        "packing.bins_wrapped": exact(packed.wrapped, "count", rows, "all tokens joined and cut"),
        "packing.wrapped_cut_share": exact(packed.wrapped_cut, "1", rows, "rows that a cut goes through, expected"),
        "packing.rows_per_bin": exact(rows / packed.bins, "1", rows, "rows over bins"),
    }


def sweep_table(sweep: Sweep, options: Options) -> Table:
    """Return the sweep, size by size."""
    heads = ["bucket", "waste|1", "speed-up|", "effective batch|", "one source|1", "lag-1|", "token weight|"]
    if options.ranks > 1:
        heads += ["one by one|", "k per rank|"]
    first, rows = sweep.buckets[0], []
    for one in (*sweep.buckets, sweep.full_sort):
        name = "full sort" if one is sweep.full_sort else "1 (random)" if one.size == 1 else str(one.size)
        row: list[Cell] = [name, one.waste, _time(first) / _time(one) if _time(one) else None]
        made = one.formed
        mixing = one.mixing
        row += [mixing.effective, mixing.one_source] if mixing else [None, None]
        row += [made.lag1, made.weight_ratio] if made else [None, None]
        if options.ranks > 1:
            start = first.cost * first.slowest
            row += [
                start / (one.cost * one.slowest_single),
                start / (one.cost_per_rank * one.slowest_per_rank),
            ]
        rows.append(tuple(row))
    parted = (head.partition("|") for head in heads)
    columns = tuple(Column(title=title, unit=unit) for title, _, unit in parted)
    table = Table(
        name="buckets", title="Bucket size", columns=columns, rows=tuple(rows), caption=_caption(sweep, options)
    )
    return without_empty(table)


def _caption(sweep: Sweep, options: Options) -> str:
    mixed = "Effective batch: rows of independent sources that a batch is worth. "
    mixed = mixed if any(one.mixing for one in sweep.buckets) else ""
    caption = (
        f"A bucket of k sorts k optimizer steps of rows ({options.step_rows:,} rows each). {mixed}Lag-1: correlation "
        "of neighbouring batches as they are formed; above zero, the loss will swing unless batches are shuffled. "
        "Token weight: 95th over 5th percentile of the tokens of a batch."
    )
    if options.ranks > 1:
        caption += (
            f" Speed-ups are those of {options.ranks} ranks, each step as slow as its slowest rank, the batches of a "
            "step being neighbours; in the last columns batches are shuffled one by one, or a bucket is k batches of "
            f"one rank only: up to k = {options.ranks} such a bucket cannot gain."
        )
    return caption


def charts(sweep: Sweep, found: Sequence[Strategy]) -> tuple[Chart, ...]:
    """Return waste over the bucket size, and time against diversity."""
    waste: list[dict[str, Cell]] = [
        {"k": "full" if one is sweep.full_sort else str(one.size), "waste": 100 * one.waste}
        for one in (*sweep.buckets, sweep.full_sort)
    ]
    first = sweep.buckets[0]
    front: list[dict[str, Cell]] = [
        {"effective": one.mixing.effective, "speed": _time(first) / _time(one), "what": f"k = {one.size}"}
        for one in sweep.buckets
        if one.mixing and _time(one)
    ]
    return (
        Chart(
            name="sweep",
            title="Padding by bucket size",
            mark="bar",
            x="k",
            y="waste",
            x_title="bucket, in steps",
            y_title="% of slots wasted",
            values=tuple(waste),
        ),
        Chart(
            name="pareto",
            title="Speed against diversity",
            mark="point",
            x="effective",
            y="speed",
            x_title="effective batch size",
            y_title="speed-up over random order",
            values=tuple(front),
            caption="Up and to the right is better: each point is one bucket size, the random order lowest.",
        ),
        _ways(found),
    )


def _ways(found: Sequence[Strategy]) -> Chart:
    return Chart(
        name="ways",
        title="Padding by way of batching",
        mark="bar",
        x="way",
        y="waste",
        x_title="",
        y_title="% of slots wasted",
        values=tuple({"way": one.name, "waste": 100 * one.waste} for one in found),
    )


def notes(sweep: Sweep, packed: Packs, seen: Cut, options: Options) -> Iterator[str]:
    """Say what was refused, sampled or left out."""
    if options.ranks > 1 and options.accumulation > 1:
        yield (
            "The slowest rank is taken batch by batch; ranks that wait only once a step, after "
            f"{options.accumulation} batches, lose less: the straggler factor is an upper bound."
        )
    if not sweep.varied:
        yield f"The sweep varied nothing: {sweep.reason}. No bucket size is better than another."
    elif said := one_length(seen):
        yield f"{said}: bucketing can gain on the other rows alone."
    formed = [one for one in sweep.buckets if one.formed]
    if formed:
        yield (
            f"Buckets up to k = {formed[-1].size} were also formed from drawn rows and agree with the closed form "
            "within 4 standard errors; larger ones have too few groups to be checked."
        )
    if packed.bins == seen.known.rows:
        yield f"Packing changes nothing: each of the {packed.bins:,} packs of {packed.cap:,} tokens holds one row."
    if packed.per_map > packed.bins * 1.005:
        yield (
            f"Packers that are shown 1,000 rows at a time need {packed.per_map / packed.bins - 1:.1%} more packs than "
            "the whole set does."
        )
