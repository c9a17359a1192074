"""Forecasts with a fixed term: the public cases come out right, and the truth lies in the interval."""

import random

import pytest

from stepprobe.analysis.profile.batches import bucketed, flattened, larger, packed, ratio, seen_batches
from stepprobe.analysis.profile.forecast import fixed_share, gain, gain_interval, recoverable
from stepprobe.analysis.profile.scaling import Work
from stepprobe.probes import profile
from tests.fakes.experiments import FakeExperiments, cost_ms, evidence
from tests.fakes.records import METHODS, FakeProcess

TERMS = (6.3, 0.0241, 41.9e-6)
AROUND = {"optimizer": 12.0, "unattributed": 2.0}


def clipped(draw, shortest=16, longest=1024):
    return min(longest, max(shortest, int(draw)))


def batches_of(seed, count=64, rows=8, mean=5.0):
    drawn = random.Random(seed)
    return [[clipped(drawn.lognormvariate(mean, 1)) for _ in range(rows)] for _ in range(count)]


def compute_ms(batch, terms, slots=None):
    return cost_ms(len(batch), slots or max(batch), terms)


def observed(batches, terms, around=AROUND, *, micro_steps=1, slots=None, process=None, off_cpu=None, **facts):
    """A run whose forward and backward take what the planted terms say of its batches."""
    process = process or FakeProcess(**{**METHODS, **facts})
    for start in range(0, len(batches), micro_steps):
        step = batches[start : start + micro_steps]
        spent = sum(compute_ms(one, terms, slots) for one in step)
        width = sum(len(one) * (slots or max(one)) for one in step)
        accounts = {"forward.mlp": spent / 3, "backward.mlp": spent * 2 / 3, **around}
        counters = {"slots": width, "real": sum(map(sum, step)), "micro_steps": micro_steps, "backwards": micro_steps}
        process.step(accounts, counters, off_cpu=off_cpu)
    shapes = {f"{len(one)}×{slots or max(one)} masked" for one in batches}
    return process.sites(shapes=[(shape, 1) for shape in sorted(shapes)]).end()


def report(batches, terms=TERMS, *, noise=0.0, seed=0, more=lambda planted: None, run=True, harness=None, **options):
    planted = FakeExperiments(
        terms, noise=noise, seed=seed, batches=batches, micro_steps=options.get("micro_steps", 1), **(harness or {})
    ).scaling()
    more(planted)
    processes = [observed(batches, terms, **options)] if run else []
    return profile.derive(evidence(planted.end(), *processes))


def test_a_forecast_about_padding_is_as_far_off_as_the_fit_was_about_padding():
    """Padding saves what the fit says, or a third less: the interval is then at least a third of the saving wide."""

    def measured(factor):
        def more(planted):
            for block in range(9):
                planted.measured("padded", block, 8, 512, real=8 * 200)
                saved = compute_ms([512] * 8, TERMS) - compute_ms([200] * 8, TERMS)
                unpadded = compute_ms([512] * 8, TERMS) - factor * saved
                planted.measured("unpadded", block, 8, 200, unpadded)

        found = report(batches_of(1), more=more).figures
        step = found["forecast.padding_free"]
        return step.value, (step.high - step.low) / 2, found["step.wall"].value - step.value

    value, half, saved = measured(1.0)
    same, wider, _ = measured(2 / 3)
    assert value == same
    assert wider > half
    assert wider > 0.33 * saved


def test_a_fixed_share_explains_ms_swift_10111():
    """Padding 29.65 % to 3.34 %: tokens say 1.374×, 1838 to 1978 tokens a second are 1.076×."""
    tokens, published = (1 - 0.0334) / (1 - 0.2965), 1978 / 1838
    share = fixed_share(published, tokens)
    assert tokens == pytest.approx(1.374, abs=5e-4)
    assert share == pytest.approx(0.740, abs=2e-3)
    assert share * published == pytest.approx(0.796, abs=2e-3)
    assert gain(tokens, share) == pytest.approx(published)
    assert gain_interval(tokens) == pytest.approx((1.0, 1.374), abs=5e-4)
    assert gain_interval(tokens, share) == pytest.approx((published, published))
    with pytest.raises(ValueError, match="cannot be told"):
        fixed_share(1.2, 1.0)


def slowest_of_two(seed):
    """The micro-batches of the slower of two ranks in each step: two batches of eight each, in random order."""
    drawn = random.Random(seed)
    lengths = [clipped(drawn.lognormvariate(5, 1)) for _ in range(1600)]
    order = [lengths[start : start + 8] for start in range(0, 1600, 8)]
    steps = []
    for start in range(0, len(order) // 4 * 4, 4):
        ranks = order[start : start + 4 : 2], order[start + 1 : start + 4 : 2]
        steps.append(max(ranks, key=lambda rank: sum(8 * max(batch) for batch in rank)))
    return [batch for step in steps for batch in step]


@pytest.mark.parametrize("seed", range(10))
def test_transformers_47340_with_its_fixed_term(seed):
    """Tokens say 3.01×; measured 1.54× end to end, since 185 of 440 ms do not shrink and 1.7 s lie outside."""
    batches = slowest_of_two(seed)
    terms = (185 / 2, 21.6e-3, 0.0)
    found = report(batches, terms, micro_steps=2, around={"optimizer": 34.0}, noise=0.02, seed=seed)
    now, then = found.figures["step.wall"], found.figures["forecast.bucketing"]
    assert now.value - 34 == pytest.approx(440, rel=0.06)
    assert 1.35 < now.value / then.high < 1.54 < now.value / then.low < 1.8
    group = bucketed(seen_batches(batches, [], 2))
    assert sum(8 * max(batch) for batch in batches) / group.slots > 2.7  # what tokens alone would promise


def test_transformers_47340_in_its_own_numbers():
    """Tokens of the slowest rank a step: 11,771 random, 3,912 grouped, 5,393 rebalanced."""
    each = (440 - 270) / (11_771 - 3_912)
    fixed = 440 - each * 11_771
    assert fixed == pytest.approx(185, abs=1)
    assert 1000 * each == pytest.approx(21.6, abs=0.05)
    assert fixed / 440 == pytest.approx(0.42, abs=0.005)
    assert fixed / 270 == pytest.approx(0.69, abs=0.005)
    assert gain(11_771 / 3_912, 0.0) == pytest.approx(3.01, abs=0.005)
    assert gain(11_771 / 5_393, 0.0) == pytest.approx(2.18, abs=0.005)
    assert 440 / gain(11_771 / 5_393, fixed / 440) == pytest.approx(302, abs=1)


@pytest.mark.parametrize(("published", "allowed"), [(1.05, 0.02), (1.85, 0.05)])
def test_unsloth_3672_gains_little_where_launches_bind(published, allowed):
    """The same lengths without padding: a small model is bound by its launches, a large one by its tokens."""
    batches = batches_of(3, mean=4.6)
    seen = seen_batches(batches, [], 1)
    tokens = seen.work.slots / seen.tokens
    share = fixed_share(published, tokens)
    terms = (share / (1 - share) * 0.02 * seen.work.slots / len(batches), 0.02, 0.0)
    found = report(batches, terms, around={})
    step = found.figures["forecast.padding_free"]
    assert found.figures["step.wall"].value / step.value == pytest.approx(published, abs=allowed)
    assert tokens > 1.9


def test_removing_a_wait_gives_back_the_shorter_of_the_two():
    """LANfactory#120: 85 % were predicted from the wait, 4 % came."""
    assert recoverable(1.8, 0.1) == 0.1
    planted = FakeExperiments((0.1, 0.0, 0.0), device="cuda", batches=[[128]] * 40, micro_steps=1)
    for block in range(9):
        for experiment, rows, length in (("scaling", 1, 128), ("scaling", 8, 128), ("scaling", 1, 1024)):
            ms = 0.05 + rows * length * 4e-4 * (1 + length * 1e-5)
            planted.measured(experiment, block, rows, length, ms, device_ns=round(ms * 1e6))
    process = FakeProcess(**{**METHODS, "device": "cuda"})
    process.steps(60, {"forward.other": 1.2, "sync": 0.1, "optimizer": 0.6}, {"slots": 128, "real": 128}).end()
    found = profile.derive(evidence(planted.end(), process)).figures["forecast.fewer_syncs"]
    assert found.bound
    assert found.high == pytest.approx(1.9)
    assert 1.8 - 1e-9 <= found.low < found.high


def on_a_card(batches, accounts, terms):
    """A run on a card whose events say what the planted terms do; the host books what ``accounts`` say."""
    planted = FakeExperiments(terms, device="cuda", batches=batches)
    for block in range(9):
        for rows, length in ((1, 128), (8, 128), (1, 1024)):
            ms = cost_ms(rows, length, terms)
            planted.measured("scaling", block, rows, length, ms, device_ns=round(ms * 1e6))
    process = FakeProcess(**{**METHODS, "device": "cuda"})
    process.steps(60, accounts, {"slots": 1, "real": 1}).end()
    return profile.derive(evidence(planted.end(), process)).figures


def test_a_card_that_is_always_busy_gives_its_padding_back():
    """The host runs ahead and is held in its launches: the ledger books the card's time as forward and backward."""
    batches = [[512, 64, 64, 64], [256, 32, 32, 32]] * 20
    terms = (4.0, 0.05, 0.0)
    device = sum(cost_ms(4, max(batch), terms) for batch in batches) / len(batches)
    found = on_a_card(batches, {"forward.other": device / 3, "backward.other": device * 2 / 3, "optimizer": 1.0}, terms)
    real = sum(4.0 + 0.05 * sum(batch) for batch in batches) / len(batches)
    assert found["step.wall"].value - found["forecast.padding_free"].value == pytest.approx(device - real, rel=0.01)


def test_a_host_that_launches_too_slowly_gains_nothing_from_less_padding():
    batches = [[512, 64, 64, 64], [256, 32, 32, 32]] * 20
    terms = (4.0, 0.005, 0.0)
    found = on_a_card(batches, {"forward.other": 20.0, "backward.other": 40.0, "optimizer": 10.0}, terms)
    assert found["forecast.padding_free"].value == pytest.approx(found["step.wall"].value)


def truth_of_bucketing(batches, terms, seed):
    """Group the same rows by length, fifty batches at a time, and add up what each batch costs."""
    rows = [tokens for batch in batches for tokens in batch]
    size, spent, count = len(batches[0]), 0.0, 0
    drawn = random.Random(seed)
    for _ in range(8):
        drawn.shuffle(rows)
        for start in range(0, len(rows), 50 * size):
            group = sorted(rows[start : start + 50 * size])
            parts = [group[at : at + size] for at in range(0, len(group), size)]
            spent += sum(compute_ms(part, terms) for part in parts)
            count += len(parts)
    return spent / count


@pytest.mark.parametrize("terms", [TERMS, (60.0, 0.02, 1e-6), (2.0, 0.005, 6e-5)])
def test_the_truth_of_bucketing_lies_in_its_interval(terms):
    inside = 0
    for seed in range(20):
        batches = batches_of(seed, count=100)
        step = report(batches, terms, noise=0.03, seed=seed).figures["forecast.bucketing"]
        inside += step.low <= truth_of_bucketing(batches, terms, seed) + sum(AROUND.values()) <= step.high
    assert inside >= 18


def test_other_orders_of_the_same_rows():
    batches = [[100, 50, 50], [200, 20, 180]]
    seen = seen_batches(batches, [], 1)
    assert seen.work == Work(2, 3 * 100 + 3 * 200, 3 * 100**2 + 3 * 200**2)
    squares = sum(tokens**2 for batch in batches for tokens in batch)
    assert flattened(seen, apart=True) == Work(2, 600, squares)
    assert flattened(seen, apart=False) == Work(2, 600, 200**2 + 400**2)
    assert packed(seen, apart=True) == Work(1, 600, squares)  # 200, 180+20, 100+50+50
    assert packed(seen, apart=False) == Work(1, 600, 3 * 200**2)
    assert seen.padding == pytest.approx(1 - 600 / 900)


def test_the_padding_that_was_seen_is_that_of_the_shapes():
    fixed = seen_batches([[10, 20], [30, 5]], [(2, 512)], 1)
    assert fixed.slots == (512, 512)
    assert fixed.one_length
    rounded = seen_batches([[10, 20], [30, 50]], [(2, 24), (2, 56), (4, 32)], 1)
    assert rounded.slots == (24, 56)
    assert rounded.multiple == 8
    assert seen_batches([], [], 1) is None
    assert seen_batches([[0, 0]], [], 1) is None


def test_the_padding_of_the_run_is_read_from_its_shapes():
    """Rows of at most 200 tokens, padded to 512 by the tokenizer: the recorder's own words for a shape."""
    batches = [[200, 30, 30, 30], [150, 20, 20, 20]] * 20
    found = report(batches, slots=512)
    fitted = [note for note in found.notes if note.startswith("the fit gives")]
    assert not fitted  # the same work as the ledger's
    saved = found.figures["step.wall"].value - found.figures["forecast.bucketing"].value
    assert saved > compute_ms(batches[0], TERMS, 512) - compute_ms(batches[0], TERMS, 200)
    table = next(one for one in found.tables if one.name == "changes")
    assert any("padding to the longest of a batch" in row[1] for row in table.rows)


def test_batches_of_one_length_gain_nothing_from_grouping():
    found = report([[256] * 8] * 40)
    assert "forecast.bucketing" not in found.figures
    assert "forecast.padding_free" not in found.figures
    assert any("bucketing: the batches hold no padding" in note for note in found.notes)


def test_twice_the_rows_save_half_the_fixed_part():
    found = report([[256] * 8] * 40, (100.0, 0.01, 0.0), micro_steps=2)
    now, then = found.figures["step.wall"], found.figures["forecast.batch_size"]
    assert now.value - then.value == pytest.approx(100, rel=1e-3)
    seen = seen_batches([[256] * 8] * 40, [], 2)
    assert larger(seen) == Work(20, 40 * 8 * 256, 40 * 8 * 256**2)


def test_a_full_device_gains_nothing_from_more_rows():
    """unsloth#1155: 3.1 ms fixed and 42.8 ms a row."""
    batches = [[256] * 4] * 40
    found = report(batches, (3.1, 42.8 / 256, 0.0))
    now, then = found.figures["step.wall"], found.figures["forecast.batch_size"]
    assert now.value / then.low < 1.06


def test_rows_that_did_not_fit_are_not_forecast():
    found = report([[256] * 8] * 40, more=lambda planted: planted.dropped(rows=16, length=256))
    assert "forecast.batch_size" not in found.figures
    assert any("batch size: 16 rows of 256 slots do not fit" in note for note in found.notes)


def test_labelled_rows_save_their_part_of_the_loss():
    def losses(planted):
        planted.losses((8, 256), 30.0, {2048: 30.0, 512: 33.0, 128: 45.0})

    found = report([[256] * 8] * 40, harness={"labelled_share": 0.25}, more=losses)
    saved = found.figures["step.wall"].value - found.figures["forecast.labelled_rows"].value
    # 1 ms a chunk, 29 ms of rows: three quarters of them go
    assert saved == pytest.approx(0.75 * 29, rel=0.02)


def test_a_chunked_loss_that_costs_time_is_said_to():
    found = report([[256] * 8] * 40, more=lambda planted: planted.losses((8, 256), 30.0, {512: 45.0}))
    assert found.figures["forecast.chunked_loss"].value > found.figures["step.wall"].value + 10


def test_workers_hide_what_is_only_waited_for():
    found = report([[256] * 8] * 40, around={"data.fetch": 100.0}, off_cpu={"data.fetch": 80.0}, loader_workers=0)
    saved = found.figures["step.wall"].value - found.figures["forecast.workers"].value
    assert saved == pytest.approx(80)
    step = found.figures["forecast.workers"]
    assert found.figures["step.wall"].value - step.low >= 100
    assert found.figures["step.wall"].value - step.high <= 80


def test_workers_that_keep_up_leave_little_of_the_loading():
    """Fetching takes less than the rest of the step: two workers hide it, and a tenth may stay."""
    found = report([[256] * 8] * 40, around={"data.fetch": 60.0}, off_cpu={"data.fetch": 60.0}, loader_workers=0)
    saved = found.figures["step.wall"].value - found.figures["forecast.workers"].value
    step, now = found.figures["forecast.workers"], found.figures["step.wall"].value
    assert not step.bound
    assert saved == pytest.approx(60)
    assert now - step.high == pytest.approx(54, abs=0.5)
    assert now - step.low == pytest.approx(60, abs=0.5)


def test_workers_that_are_there_deliver_at_most_twice_as_fast():
    found = report([[256] * 8] * 40, around={"data.wait": 100.0}, loader_workers=2).figures
    assert found["forecast.workers"].bound
    assert found["step.wall"].value - found["forecast.workers"].low <= found["step.wall"].value / 2 + 1e-6


def test_checkpointing_off_saves_what_is_computed_twice():
    found = report([[256] * 8] * 40, around={"recompute": 20.0}).figures
    assert found["step.wall"].value - found["forecast.checkpointing_off"].value == pytest.approx(20)
    told = report([[256] * 8] * 40, gradient_checkpointing=True).figures["forecast.checkpointing_off"]
    assert told.bound


def windowed(planted, window=512):
    planted.structure(config={"sliding_window": window, "layer_types": ["sliding_attention", "full_attention"]})


def asked(planted):
    windowed(planted)
    planted.below_window(70.0, (4, 600), 512)


def test_rows_below_the_window_save_up_to_the_quadratic_part():
    found = report([[600] * 4] * 40, more=windowed).figures
    step, now = found["forecast.fast_path"], found["step.wall"].value
    assert step.bound
    shorter = 4 * TERMS[1] * (600 - 511) + 4 * TERMS[2] * (600**2 - 511**2)
    assert now - step.high == pytest.approx(shorter, rel=0.02)
    assert now - step.low == pytest.approx(shorter + 4 * TERMS[2] * 511**2, rel=0.05)


def test_the_step_below_the_window_decides_where_it_was_asked():
    """What came there, 70 of the 122 ms of the usual shape, is what all batches of that shape get."""

    found = report([[600] * 4] * 40, more=asked).figures
    step, now = found["forecast.fast_path"], found["step.wall"].value
    usual = compute_ms([600] * 4, TERMS)
    assert not step.bound
    assert now - step.value == pytest.approx(usual - 70, rel=0.01)
    assert step.low < step.value < step.high
    assert step.high - step.low < 0.05 * (now - step.value)


def test_batches_that_are_shorter_than_the_window_gain_nothing_below_it():
    long = compute_ms([600] * 4, TERMS)
    found = report([[600] * 4, [600] * 4, [100] * 4] * 20, more=asked).figures
    step, now = found["forecast.fast_path"], found["step.wall"].value
    assert now - step.value == pytest.approx(2 / 3 * (long - 70), rel=0.02)


def test_a_window_that_is_not_reached_costs_nothing():
    found = report([[300] * 4] * 40, more=windowed)
    assert "forecast.fast_path" not in found.figures
    assert any("causal kernel runs already" in note for note in found.notes)


def test_packing_without_a_kernel_for_it_pays_for_the_whole_pack():
    batches = batches_of(1)
    heavy = (1.0, 0.001, 5e-4)
    dense = report(batches, heavy, more=lambda planted: planted.structure("sdpa")).figures["forecast.packing"]
    apart = report(batches, heavy, more=lambda planted: planted.structure("flash_attention_2")).figures[
        "forecast.packing"
    ]
    assert apart.value < 0.6 * dense.value


def test_packing_takes_fewer_optimizer_steps_for_the_same_rows():
    seen = seen_batches(batches := batches_of(1), [], 1)
    part = packed(seen, apart=False).batches / len(batches)
    slow, fast = (report(batches, around={"optimizer": ms}).figures["forecast.packing"].value for ms in (100.0, 0.0))
    assert slow - fast == pytest.approx(100 * part, rel=0.02)


def test_hours_where_the_number_of_steps_is_known():
    found = report([[256] * 8] * 40, max_steps=36_000)
    assert found.figures["projected.hours"].value == pytest.approx(found.figures["step.wall"].value / 100)
    table = next(one for one in found.tables if one.name == "forecast")
    assert table.columns[-1].title == "hours"
    assert table.rows[0][-1] == pytest.approx(found.figures["projected.hours"].value)
    assert "projected.hours" not in report([[256] * 8] * 40).figures


def test_without_observed_steps_the_fit_stands_for_them():
    found = report(batches_of(2), run=False)
    assert "forecast.bucketing" in found.figures
    assert any("no step was observed" in note for note in found.notes)


def test_lengths_that_the_experiments_do_not_know_are_not_forecast_on():
    """The loader's mask holds padding; the experiments were told of full rows."""
    rows = batches_of(3)
    full = [[max(one)] * len(one) for one in rows]
    planted = FakeExperiments(TERMS, batches=full).scaling()
    found = profile.derive(evidence(planted.end(), observed(rows, TERMS)))
    assert not {"forecast.bucketing", "forecast.packing", "forecast.padding_free"} & found.figures.keys()
    assert any("not known to the experiments" in note for note in found.notes)
    assert "forecast.packing" in report(rows).figures


def test_no_change_is_advised_that_only_costs():
    for finding in report(batches_of(2)).findings:
        assert all(
            one.predicted is None or one.predicted.high is None or one.predicted.high > 0 for one in finding.remedies
        )


def test_what_was_tried_stands_beside_the_forecast():
    found = report(
        [[256] * 8] * 40, around={"recompute": 20.0}, more=lambda one: one.remedy("checkpointing-off", 0.8, (8, 256))
    )
    table = next(one for one in found.tables if one.name == "forecast")
    row = next(one for one in table.rows if one[0] == "checkpointing off")
    assert table.columns[5].title == "tried"
    assert row[5] == "yes"
    assert [one[5] for one in table.rows if one is not row] == [""] * (len(table.rows) - 1)


def test_what_the_script_takes_beyond_the_driven_step_is_in_the_interval():
    """The ledger books a fifth more than the step that was driven takes: the change may touch that, too."""

    def tried(around):
        found = report([[256] * 8] * 40, around=around, more=lambda one: one.remedy("checkpointing-off", 0.8, (8, 256)))
        figure = found.figures["forecast.checkpointing_off"]
        return figure.high - figure.low

    as_driven, beyond = tried({"recompute": 20.0}), tried({"recompute": 60.0})
    assert beyond > as_driven + 40


def test_so_it_is_in_the_interval_of_the_step_below_the_window():
    def width(around):
        figure = report([[600] * 4] * 40, around=around, more=asked).figures["forecast.fast_path"]
        return figure.high - figure.low

    assert width({"recompute": 20.0}) > width({}) + 2 * 20


def test_the_interval_holds_which_batches_happened_to_be_seen():
    few, many = (seen_batches(batches_of(5, count=count), [], 1) for count in (12, 200))
    fit = profile_fit()
    widths = [ratio(fit, seen, bucketed).half for seen in (few, many)]
    assert widths[0] > 2 * widths[1]


def profile_fit():
    from stepprobe.analysis.profile.answers import Answers
    from stepprobe.analysis.profile.scaling import fit

    return fit(Answers("experiments", FakeExperiments(TERMS).scaling().records).samples)


def test_a_row_that_fills_the_one_length_does_not_hide_that_others_are_padded_to_it():
    """Rows cut at 512 tokens: the longest of them needs all slots, the batches without such a row do not."""
    cut = seen_batches([[10, 20], [512, 5], [30, 40]], [(2, 512)], 1)
    assert cut.one_length
    assert not seen_batches([[10, 512], [512, 5], [30, 512]], [(2, 512)], 1).one_length
    assert not seen_batches([[10, 20], [512, 5], [30, 40]], [(2, 20), (2, 512), (2, 40)], 1).one_length


def test_a_thread_that_was_off_the_cpu_has_two_kinds_of_milliseconds():
    batches = [[256] * 8] * 40
    spent = compute_ms(batches[0], TERMS) * 2 / 3
    busy = report(batches, off_cpu={"backward.mlp": spent / 2})
    assert any("the tables of the experiments are in CPU time of the thread" in note for note in busy.notes)
    assert not any("are in CPU time" in note for note in report(batches).notes)
