"""Changes that save in the same accounts: each is credited where it was made, and where another was made it is not."""

import random

import pytest

from tests.fakes.records import CLEAN, METHODS, FakeProcess
from tests.unit.outcome.test_outcome import MODEL, judged, promises

ROWS, STEPS, FIXED = 8, 80, 512
LENGTHS = [round(min(480, 30 + 60 * random.Random(number).expovariate(1))) for number in range(ROWS * STEPS)]


def batches(order, lengths=LENGTHS):
    """The rows of each step, in an order of chance or grouped by length."""
    mixed = random.Random(7).sample(lengths, len(lengths))
    if order == "grouped":
        mixed = sorted(mixed)
    found = [mixed[start : start + ROWS] for start in range(0, len(mixed), ROWS)]
    return random.Random(8).sample(found, len(found))


def counted(rows, width):
    tokens, squares = sum(rows), sum(one * one for one in rows)
    return {
        "slots": len(rows) * width,
        "real": tokens,
        "labelled": tokens,
        "rows": len(rows),
        "longest_slots": len(rows) * max(rows),
        "row_squares": squares,
        "mixed_squares": squares - tokens * tokens // len(rows),
        "forwards": 1,
        "backwards": 1,
    }


def training(seed, order="chance", padding="longest", *, lengths=True, more=None, counts=None, **facts):
    """Steps whose time follows their slots."""
    noise, fake, shapes = random.Random(seed), FakeProcess(**{**METHODS, **MODEL, **facts}), {}
    for rows in batches(order):
        width = FIXED if padding == "fixed" else max(rows)
        slots = len(rows) * width
        counters = counted(rows, width)
        if not lengths:
            counters = {name: counters[name] for name in ("slots", "real", "labelled", "forwards", "backwards")}
        shape = f"{len(rows)}×{width} masked"
        counters |= {"new_shapes": 1} if shape not in shapes else {}
        shapes[shape] = shapes.get(shape, 0) + 1
        spent = {"forward.mlp": 3 + slots * 0.004, "backward.mlp": 5 + slots * 0.008, "optimizer": 5, **(more or {})}
        factor = noise.gauss(1, 0.01)
        fake.step({name: ms * factor for name, ms in spent.items()}, {**counters, **(counts or {})})
    return fake.sites(shapes=list(shapes.items())).end()


def steps(seed, accounts=None, counts=None, *, n=80, sites=None, **facts):
    """Steps that are all alike, 4 rows of 512 slots in each unless something else is counted."""
    noise, fake = random.Random(seed), FakeProcess(**{**METHODS, **MODEL, **facts})
    usual = {"slots": 2048, "real": 2048, "labelled": 2048, "rows": 4, "forwards": 1, "backwards": 1}
    for _ in range(n):
        factor = noise.gauss(1, 0.01)
        booked = {name: ms * factor for name, ms in {**CLEAN, **(accounts or {})}.items() if ms}
        fake.step(booked, {**usual, **(counts or {})})
    return fake.sites(**(sites or {})).end()


def credited(before, after):
    return sorted(name for name in judged(before, after)[2] if " + " not in name)


def verdicts(before, after):
    """The last column of the table, by what was proposed."""
    return {row[0]: row[5] for row in promises(judged(before, after)[0])}


# -- padding to the longest row, and grouping --


def test_padding_to_the_longest_row_is_not_grouping():
    report, found, by_name = judged(training(1, padding="fixed"), training(2))
    assert list(by_name) == ["padding.longest"]
    assert by_name["padding.longest"].held == "held"
    assert found.judged[-1].measured.value > 20
    assert {row[0]: row[5] for row in promises(report)}["group rows by length"] == "not made"


def test_grouping_is_not_padding_to_the_longest_row():
    assert credited(training(1), training(2, "grouped")) == ["padding.group"]


def test_both_have_one_outcome_and_their_promises_add_up():
    _, _, by_name = judged(training(1, padding="fixed"), training(2, "grouped"))
    joint = by_name["padding.group + padding.longest"]
    singles = [by_name["padding.group"], by_name["padding.longest"]]
    assert all(one.measured is None for one in singles)
    assert joint.predicted.high == pytest.approx(sum(one.predicted.high for one in singles))
    assert joint.held == "held"


def test_what_each_of_the_two_may_save_is_its_own_part_of_the_slots():
    rows, width = batches("chance"), FIXED
    longest = sum(ROWS * max(one) for one in rows) / (len(rows) * ROWS * width)
    real = sum(map(sum, rows)) / (len(rows) * ROWS * width)
    _, _, by_name = judged(training(1, padding="fixed"), training(2, "grouped"))
    compute = 8 + ROWS * width * 0.012
    assert by_name["padding.longest"].predicted.high == pytest.approx((1 - longest) * compute, rel=0.02)
    assert by_name["padding.group"].predicted.high == pytest.approx((longest - real) * compute, rel=0.02)


def test_rows_that_are_grouped_and_still_padded_to_one_length_save_nothing():
    assert credited(training(1, padding="fixed"), training(2, "grouped", "fixed")) == []


def test_without_the_lengths_of_the_rows_nothing_is_credited():
    before, after = training(1, padding="fixed", lengths=False), training(2, lengths=False)
    report, found, by_name = judged(before, after)
    assert by_name == {}
    assert found.undecided
    assert "outcome.held" not in report.figures
    assert sum(note.startswith("undecided: these changes could have done it") for note in report.notes) == 2
    assert list(verdicts(before, after).values())[:2] == ["undecided", "undecided"]


def test_without_the_lengths_a_setting_tells():
    set_ = {"train_sampling_strategy": "group_by_length"}
    before = training(1, lengths=False, train_sampling_strategy="random")
    assert credited(before, training(2, "grouped", lengths=False, **set_)) == ["padding.group"]


@pytest.mark.parametrize(("rows", "n"), [(2, 20), (8, 20), (32, 10)])
def test_an_order_of_chance_is_hardly_ever_taken_for_grouped(rows, n):
    """The same rows in another order of chance: how the spread in batches moves stays within its error."""
    from stepprobe.analysis.ledger.rows import Rows

    dice, decided = random.Random(1), 0
    for _ in range(200):
        found = []
        for _ in range(2):
            drawn = [[round(20 + 60 * dice.expovariate(1)) for _ in range(rows)] for _ in range(n)]
            total = {name: sum(counted(one, 999)[name] for one in drawn) for name in counted(drawn[0], 999)}
            found.append(
                Rows(
                    rows=rows * n,
                    batches=n,
                    slots=total["slots"],
                    real=total["real"],
                    longest=total["longest_slots"],
                    squares=total["row_squares"],
                    mixed=total["mixed_squares"],
                )
            )
        far = 2 * (found[0].mixing_error ** 2 + found[1].mixing_error ** 2) ** 0.5
        decided += found[1].mixing <= 0.5 * found[0].mixing and found[0].mixing - found[1].mixing >= far
    assert decided <= 6


def test_grouping_that_was_ignored_is_not_repaired_by_packing_nor_by_padding_to_the_longest():
    asked = {"train_sampling_strategy": "group_by_length"}
    assert credited(training(1, **asked), training(2, "grouped", **asked)) in (["grouping.repaired"], ["padding.group"])
    fixed = training(1, padding="fixed", **asked)
    assert credited(fixed, training(2, **asked)) == ["padding.longest"]


def test_packing_that_was_ignored_is_not_repaired_by_grouping():
    assert credited(training(1, packing=True), training(2, "grouped", packing=True)) == ["padding.group"]


def test_more_micro_steps_in_a_step_are_no_longer_rows():
    """Twice the micro-batches, padded to their longest rows: tokens double, rows hold what they did."""
    before = training(1, padding="fixed", lengths=False)
    fake = FakeProcess(**METHODS, **MODEL)
    for rows in batches("chance"):
        slots = 2 * ROWS * max(rows)
        counts = {"slots": slots, "real": 2 * sum(rows), "labelled": 2 * sum(rows), "forwards": 2, "backwards": 2}
        fake.step({"forward.mlp": 3 + slots * 0.004, "backward.mlp": 5 + slots * 0.008, "optimizer": 5}, counts)
    after = fake.sites(shapes=[(f"{ROWS}×{max(rows)} masked", 2) for rows in batches("chance")]).end()
    assert "padding.pack" not in credited(before, after)


def test_slow_steps_that_padding_made_are_no_change_of_their_own():
    """One long row in few batches makes them slow; grouped, it is slow no more."""
    before, after = training(1, padding="longest"), training(2, "grouped")
    spiked = {"steps.spikes"} & set(credited(before, after))
    assert not spiked


# -- fewer shapes --


def shaped(seed, widths, n, ms=30.0):
    noise, fake, seen = random.Random(seed), FakeProcess(**METHODS, **MODEL), set()
    for number in range(n):
        width = widths[number % len(widths)]
        new = width not in seen
        seen.add(width)
        spent = {name: value * noise.gauss(1, 0.01) for name, value in CLEAN.items()}
        fake.step(
            {**spent, "forward.mlp": 14 + (ms * 5 if new else 0)}, {"slots": 2048, "new_shapes": int(new), "real": 2048}
        )
    return fake.sites(shapes=[(f"4×{width}", n // len(widths)) for width in widths]).end()


def test_a_longer_run_has_no_fewer_shapes():
    many = list(range(100, 140))
    assert credited(shaped(1, many, 80), shaped(2, many, 320)) == []
    assert credited(shaped(1, many, 80), shaped(2, [112, 128, 144], 320)) == ["shapes.few"]


# -- loading --


SLOW = {"data.fetch": 40}


def test_a_faster_dataset_is_not_workers():
    before = steps(1, SLOW, loader_workers=0)
    assert credited(before, steps(2, loader_workers=0)) == ["loader.precompute"]
    assert credited(before, steps(2, {"data.wait": 4, "data.fetch": 0, "data.collate": 0}, loader_workers=2)) == [
        "loader.workers"
    ]


def test_half_as_long_rows_are_no_faster_dataset():
    """Fetching takes half: as much for a token as before, half as much for a row."""
    before = steps(1, SLOW, loader_workers=0)
    short = {"slots": 1024, "real": 1024, "labelled": 1024}
    half = {name: ms / 2 for name, ms in CLEAN.items()}
    after = steps(2, {**half, "data.fetch": 20}, short, loader_workers=0)
    report, found, by_name = judged(before, after)
    assert by_name == {}
    assert found.undecided
    assert any("a real token and a slot costs what it did" in note for note in report.notes)


def test_fewer_rows_at_the_same_price_are_no_change_at_all():
    fewer = {"slots": 1024, "real": 1024, "labelled": 1024, "rows": 2}
    half = {name: ms / 2 for name, ms in CLEAN.items()}
    _, found, by_name = judged(
        steps(1, SLOW, loader_workers=0), steps(2, {**half, "data.fetch": 20}, fewer, loader_workers=0)
    )
    assert by_name == {}
    assert not found.undecided


def test_without_any_count_only_the_size_of_a_batch_tells():
    nothing = {"slots": 0, "real": 0, "labelled": 0, "rows": 0}
    uncounted = steps(1, SLOW, nothing, loader_workers=0)
    assert judged(uncounted, steps(2, None, nothing, loader_workers=0))[1].undecided
    known = {"loader_workers": 0, "loader_batch_size": 4}
    assert credited(steps(1, SLOW, nothing, **known), steps(2, None, nothing, **known)) == ["loader.precompute"]


def test_another_line_that_became_faster_is_not_the_one_that_was_named():
    def sampled(first, second):
        lines = [("data.fetch", f"data.py:{line} f{line}", "x", hits) for line, hits in ((8, first), (9, second))]
        return {"samples": lines}

    before = steps(1, SLOW, loader_workers=0, sites=sampled(110, 90))
    other = steps(2, {"data.fetch": 22}, loader_workers=0, sites=sampled(110, 0))
    assert judged(before, other)[1].undecided
    named = steps(2, {"data.fetch": 18}, loader_workers=0, sites=sampled(0, 90))
    assert credited(before, named) == ["loader.precompute"]


def test_padding_that_made_collating_cheaper_keeps_its_own_outcome():
    """Collating falls with the slots; whether the dataset is faster, too, cannot be told, and is not credited."""
    known = {"loader_workers": 0}
    before = training(1, padding="fixed", more={"data.collate": 10}, **known)
    report, found, by_name = judged(before, training(2, more={"data.collate": 3}, **known))
    assert list(by_name) == ["padding.longest"]
    assert found.undecided
    assert "only forward" in by_name["padding.longest"].measured.method or "only backward" in (
        by_name["padding.longest"].measured.method
    )
    assert report.figures["outcome.held"].value == 1


STARTS = {"data.start": 30}


def test_workers_that_are_kept_and_a_loader_that_is_built_once_are_told_apart():
    known = {"loader_workers": 2, "loader_persistent": False}
    before = steps(1, STARTS, {"loader_starts": 1}, **known)
    kept = steps(2, {"data.start": 2}, {"loader_starts": 1}, loader_workers=2, loader_persistent=True)
    assert credited(before, kept) == ["loader.persistent"]
    once = steps(2, None, {"loader_starts": 0}, **known)
    assert credited(before, once) == ["loader.once"]
    both = steps(2, None, {"loader_starts": 0}, loader_workers=2, loader_persistent=True)
    assert credited(before, both) == ["loader.once", "loader.persistent"]


# -- head and loss --


HEADY = {"forward.lm_head": 20, "forward.loss": 10, "backward.lm_head": 20}


def test_a_loss_in_chunks_is_no_loss_over_labelled_rows():
    counts = {"labelled": 400, "losses": 1, "loss_rows": 2048}
    before = steps(1, HEADY, counts)
    assert credited(before, steps(2, None, {**counts, "loss_rows": 400})) == ["loss.labelled_rows"]
    assert credited(before, steps(2, None, {**counts, "losses": 8})) == []
    report, found, _ = judged(before, steps(2, None, {**counts, "losses": 0, "loss_rows": 0}))
    assert found.undecided
    assert any("a loss in chunks could have done it" in note for note in report.notes)


# -- what comes once a step, or once a micro-step --


@pytest.mark.parametrize(
    ("remedy", "cost", "counts"),
    [
        ("train.once", {"forward.other": 10}, {"train_walks": 4, "train_walk_ns": 9_000_000}),
        ("forward.reuse", {"forward.mlp": 40}, {"no_grad_forwards": 4, "forwards": 8}),
    ],
)
def test_fewer_micro_steps_are_no_change_to_what_each_of_them_does(remedy, cost, counts):
    four = {"slots": 8192, "real": 8192, "labelled": 8192, "rows": 16, "backwards": 4, "forwards": 4, **counts}
    before = steps(1, cost, four)
    assert remedy not in credited(before, steps(2, cost, {name: count // 4 for name, count in four.items()}))
    gone = dict.fromkeys(counts, 0) | ({"forwards": 4} if "forwards" in counts else {})
    assert remedy in credited(before, steps(2, None, {**four, **gone}))


def test_a_larger_batch_does_not_clip_faster():
    """Clipping comes once a step: half as much for each of twice the tokens, and as much for a step."""
    before = steps(1, {"clip": 12})
    twice = {"slots": 4096, "real": 4096, "labelled": 4096, "rows": 8}
    larger = {name: 2 * ms for name, ms in CLEAN.items()}
    assert credited(before, steps(2, {**larger, "clip": 12}, twice)) == []
    assert credited(before, steps(2, {**larger, "clip": 1}, twice)) == ["clip.less"]


def test_another_optimizer_is_no_faster_path_of_the_same():
    before = steps(1, {"optimizer": 30}, optimizer="AdamW", optimizer_foreach=False)
    assert credited(before, steps(2, optimizer="AdamW", optimizer_foreach=True)) == ["optimizer.foreach"]
    assert credited(before, steps(2, optimizer="SGD", optimizer_foreach=False)) == []


def test_the_garbage_of_checkpointing_goes_with_it():
    before = steps(1, {"recompute": 30, "gc": 8})
    report, _, by_name = judged(before, steps(2, {"gc": 1}))
    assert list(by_name) == ["checkpointing.off"]
    assert any("“turn gradient checkpointing off" in note for note in report.notes)
    assert credited(before, steps(2, {"recompute": 30, "gc": 1})) == ["gc.less"]


def test_single_precision_is_no_bfloat16():
    before = FakeProcess(**METHODS, **MODEL, fp16=True, bf16=False)
    for number in range(80):
        before.step(CLEAN, {"slots": 2048, "real": 2048, "backwards": 1, "amp_skipped": int(number % 5 == 0)})
    before.end()
    for facts, expected in (({"fp16": False, "bf16": True}, ["amp.bfloat16"]), ({"fp16": False, "bf16": False}, [])):
        assert credited(before, steps(2, **facts)) == expected


def evaluating(seed, every, ms):
    noise, fake = random.Random(seed), FakeProcess(**METHODS, **MODEL)
    for number in range(160):
        spent = {name: one * noise.gauss(1, 0.01) for name, one in CLEAN.items()}
        fake.step({**spent, **({"eval": ms} if number % every == 0 else {})}, {"slots": 2048, "real": 2048})
    return fake.end()


def test_an_evaluation_that_is_faster_is_not_rarer():
    before = evaluating(1, 4, 200)
    assert credited(before, evaluating(2, 8, 200)) == ["eval.less"]
    assert judged(before, evaluating(2, 4, 80))[1].undecided


def ranks(seed, slow_ms, faster=1.0):
    made = []
    for rank in range(2):
        noise = random.Random(seed + rank)
        fake = FakeProcess(rank, 100 + rank, 2, **METHODS, **MODEL)
        own = slow_ms if rank else 0.0
        for _ in range(80):
            spent = {name: ms * faster * noise.gauss(1, 0.01) for name, ms in CLEAN.items()}
            spent["forward.mlp"] += own * faster
            spent["backward.other"] += (slow_ms - own) * faster
            fake.step(spent, {"slots": 2048, "real": 2048})
        made.append(fake.end())
    return made


def test_a_backward_that_is_faster_everywhere_evens_no_rank():
    from stepprobe.analysis.ledger.comparison import examine
    from tests.fakes.records import evidence

    def names(after):
        return [one.remedy for one in examine(evidence(*ranks(1, 30)), evidence(*after))[1].judged]

    assert names(ranks(3, 25, 0.7)) == []
    assert names(ranks(3, 2)) == ["rank.evened"]
