"""Ways of batching side by side: what each costs in time, memory, diversity and truncation, and how it is asked for."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from stepprobe.analysis.lengths import packs
from stepprobe.analysis.lengths.bucket_sweep import Bucket, Sweep
from stepprobe.analysis.lengths.cost import Cost
from stepprobe.analysis.lengths.options import Cut, Options
from stepprobe.analysis.lengths.packs import Packs
from stepprobe.model.report import Column, Table

TRAINERS = ("HF Trainer", "TRL SFTTrainer", "Axolotl", "LLaMA-Factory")
GROUPED = (
    'train_sampling_strategy="group_by_length"',
    'train_sampling_strategy="group_by_length"',
    "group_by_length: true",
    "group_by_length: true",
)


@dataclass(frozen=True)
class Strategy:
    """One way of batching."""

    name: str
    cost: float
    """Predicted cost of an epoch, slowest rank included."""
    slots: float
    tokens: float
    """Real tokens in those slots."""
    worst: float
    """Slots of the largest batch: what decides memory."""
    squares: float
    """Sum over rows of the square of their length as computed: what attention costs."""
    straggler: float
    steps: float
    """Optimizer steps of an epoch."""
    effective: float | None
    """Effective batch size from the mixing of sources; None where it is not known."""
    lost: float = 0.0
    """Share of the tokens that are cut off or dropped."""
    config: tuple[str, str, str, str] = ("", "", "", "")
    """The line to set, for each of ``TRAINERS``; empty where the trainer cannot."""

    @property
    def waste(self) -> float:
        """Slots without a token, as a share."""
        return 1 - self.tokens / self.slots if self.slots else 0.0

    @property
    def cost_per_token(self) -> float:
        """Predicted cost of a real token."""
        return self.cost / self.tokens if self.tokens else 0.0


def compare(cut: Cut, options: Options, cost: Cost, sweep: Sweep, packed: Packs) -> list[Strategy]:
    """Return all strategies, the cheapest token first."""
    found = [*_padded(cut, options, cost, sweep), *_packed(cut, options, cost, packed)]
    return sorted(found, key=lambda one: one.cost_per_token)


def _padded(cut: Cut, options: Options, cost: Cost, sweep: Sweep) -> Iterator[Strategy]:
    known = cut.known
    batches = math.ceil(known.rows / options.batch_size)
    steps = math.ceil(known.rows / options.step_rows)
    longest = int(known.padded[-1])
    cap = options.max_length or longest
    top = float(cap) * known.rows
    limit = f"max_length={options.max_length}" if options.max_length else ""
    random = sweep.buckets[0]
    yield Strategy(
        name="pad to max_length",
        cost=cost.total(batches, top, top * cap),
        slots=top,
        tokens=known.tokens,
        worst=float(cap * min(options.batch_size, known.rows)),
        squares=top * cap,
        straggler=1.0,
        steps=steps,
        effective=random.mixing.effective if random.mixing else None,
        lost=cut.truncated_share,
        config=('padding="max_length" in the tokenizer call', "", "pad_to_sequence_len: true", ""),
    )
    yield _bucketed(cut, options, random, "random order", _random_lines(limit))
    for bucket in sweep.buckets:
        if bucket.size in {sweep.best.size, 8} - {random.size}:
            yield _bucketed(cut, options, bucket, f"bucket of {bucket.size}", _bucket_lines(bucket, options))
    name = f"group by length (as shipped: {sweep.shipped.group:,} rows)"
    yield _bucketed(cut, options, sweep.shipped, name, GROUPED)
    full = sweep.full_sort
    yield _bucketed(cut, options, full, "full sort", ("a sorted dataset and a sequential sampler", "", "", ""))
    yield _budget(cut, options, cost)


def _random_lines(limit: str) -> tuple[str, str, str, str]:
    return "the default", limit or "the default", "sample_packing: false", "packing: false"


def _bucket_lines(bucket: Bucket, options: Options) -> tuple[str, str, str, str]:
    times = bucket.group // options.batch_size
    sampler = f"get_length_grouped_indices(lengths, {options.batch_size}, mega_batch_mult={times}) as the sampler"
    return sampler, sampler, "", ""


def _bucketed(cut: Cut, options: Options, bucket: Bucket, name: str, config: tuple[str, str, str, str]) -> Strategy:
    return Strategy(
        name=name,
        cost=bucket.cost * bucket.slowest,
        slots=bucket.slots,
        tokens=cut.known.tokens,
        worst=float(int(cut.known.padded[-1]) * min(options.batch_size, cut.known.rows)),
        squares=bucket.squares,
        straggler=bucket.slowest,
        steps=math.ceil(cut.known.rows / options.step_rows),
        effective=bucket.mixing.effective if bucket.mixing else None,
        lost=cut.truncated_share,
        config=config,
    )


def _budget(cut: Cut, options: Options, cost: Cost) -> Strategy:
    slots = options.batch_size * int(cut.known.padded[-1])
    made = packs.token_budget(cut.known, slots)
    return Strategy(
        name=f"token budget of {slots:,} ({made.fewest} to {made.most} rows)",
        cost=cost.total(made.batches, made.padded, made.squares),
        slots=made.padded,
        tokens=cut.known.tokens,
        worst=float(slots),
        squares=made.squares,
        straggler=1.0,
        steps=math.ceil(made.batches / (options.ranks * options.accumulation)),
        effective=None,
        lost=cut.truncated_share,
        config=("a batch sampler by tokens", "", "", ""),
    )


@dataclass(frozen=True)
class _Pack:
    """One way of packing."""

    name: str
    bins: float
    squares: float
    tokens: float
    lost: float
    config: tuple[str, str, str, str]


def _packed(cut: Cut, options: Options, cost: Cost, packed: Packs) -> Iterator[Strategy]:
    for one in _packs(cut, packed):
        slots = one.bins * packed.cap
        yield Strategy(
            name=one.name,
            cost=cost.total(math.ceil(one.bins / options.batch_size), slots, one.squares),
            slots=slots,
            tokens=one.tokens,
            worst=float(min(options.batch_size, one.bins) * packed.cap),
            squares=one.squares,
            straggler=1.0,
            steps=math.ceil(one.bins / options.step_rows),
            effective=None,
            lost=one.lost,
            config=one.config,
        )
    yield _padding_free(cut, options, cost)


def _packs(cut: Cut, packed: Packs) -> Iterator[_Pack]:
    cap, tokens, lost, inside = packed.cap, cut.known.tokens, cut.truncated_share, packed.squares
    trl = f'packing=True, packing_strategy="bfd", max_length={cap}'
    shipped = ("", trl, f"sample_packing: true, sequence_len: {cap}", f"neat_packing: true, cutoff_len: {cap}")
    whole = ("", f"pack_dataset(dataset, {cap}, map_kwargs={{'batch_size': len(dataset)}}) before training", "", "")
    joined = ("", f'packing=True, packing_strategy="wrapped", max_length={cap}', "", "")
    plain = ("", "", "", f"packing: true, cutoff_len: {cap}")
    ordered = ("", "", "sample_packing_sequentially: true", "")
    yield _Pack("packing, whole set (best fit decreasing)", packed.bins, inside, tokens, lost, whole)
    yield _Pack("packing, per 1,000 rows (as shipped)", packed.per_map, inside, tokens, lost, shipped)
    yield _Pack("packing, in order (next fit)", packed.in_order, inside, tokens, lost, ordered)
    seen = packed.bins * float(cap) ** 2
    yield _Pack("packing, whole set, rows see each other", packed.bins, seen, tokens, lost, plain)
    cut_through = f"packing, joined and cut (through {100 * packed.wrapped_cut:.0f} % of the rows)"
    yield _Pack(cut_through, packed.wrapped, packed.wrapped * float(cap) ** 2, cut.tokens, 0.0, joined)


def _padding_free(cut: Cut, options: Options, cost: Cost) -> Strategy:
    known = cut.known
    batches = math.ceil(known.rows / options.batch_size)
    return Strategy(
        name="padding-free (rows joined in a batch)",
        cost=cost.total(batches, known.tokens, known.squares),
        slots=float(known.tokens),
        tokens=known.tokens,
        worst=float(known.lengths[-1] * min(options.batch_size, known.rows)),
        squares=known.squares,
        straggler=1.0,
        steps=math.ceil(known.rows / options.step_rows),
        effective=None,
        lost=cut.truncated_share,
        config=("DataCollatorWithFlattening", "padding_free=True", "", ""),
    )


def strategy_table(found: list[Strategy], cost: Cost, ranks: int) -> Table:
    """Return the strategies as rows, the cheapest token first."""
    random = next(one for one in found if one.name == "random order")
    rows = tuple(
        (
            one.name,
            random.cost_per_token / one.cost_per_token if one.cost_per_token else None,
            one.waste,
            one.worst,
            one.squares,
            one.straggler if ranks > 1 else None,
            one.steps,
            one.effective,
            one.lost,
        )
        for one in found
    )
    columns = ("strategy", "speed-up|", "waste|1", "worst batch|tokens", "Σ L²|", "straggler|", "steps an epoch|steps")
    heads = (*columns, "effective batch|", "tokens lost|1")
    caption = (
        f"Speed-up is real tokens a unit of time over the random order; cost: {cost.source}. Packing counts attention "
        "inside rows only, which needs a variable-length kernel; “rows see each other” is what remains without one. "
        "Straggler factors of packing, token budgets and padding-free batches are not predicted (1 is shown)."
        if ranks > 1
        else f"Speed-up is real tokens a unit of time over the random order; cost: {cost.source}. Packing counts "
        "attention inside rows only, which needs a variable-length kernel; “rows see each other” is what remains "
        "without one."
    )
    parted = (head.partition("|") for head in heads)
    return without_empty(
        Table(
            name="strategies",
            title="Ways of batching, fastest first",
            columns=tuple(Column(title=title, unit=unit) for title, _, unit in parted),
            rows=rows,
            caption=caption,
        )
    )


def without_empty(table: Table) -> Table:
    """Return a table without the columns in which no row has a value."""
    held = [place for place in range(len(table.columns)) if any(row[place] is not None for row in table.rows)]
    columns = tuple(table.columns[place] for place in held)
    rows = tuple(tuple(row[place] for place in held) for row in table.rows)
    return msgspec.structs.replace(table, columns=columns, rows=rows)


def config_table(found: list[Strategy]) -> Table:
    """Return the line to paste for each strategy and trainer."""
    rows = tuple(
        (one.name.partition(" (")[0], trainer, line)
        for one in found
        for trainer, line in zip(TRAINERS, one.config, strict=True)
        if line
    )
    columns = (Column(title="strategy"), Column(title="trainer"), Column(title="line", code=True))
    caption = "A trainer that is not named beside a strategy has no setting for it."
    return Table(name="configuration", title="The line to set", columns=columns, rows=rows, caption=caption)
