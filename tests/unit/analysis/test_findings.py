"""Each cause is planted in an otherwise clean run and must be found, sized and named; a clean run gives none."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepprobe.analysis.findings import RULES, arranged, find
from stepprobe.analysis.findings.view import most_of
from stepprobe.analysis.ledger.job import read_job
from stepprobe.model.accounts import BOOKED
from stepprobe.model.estimate import Estimate
from stepprobe.model.finding import Finding
from tests.fakes.records import CLEAN, COUNTS, METHODS, MS, FakeProcess, clean_process, evidence, wobble

LINE = "train.py:88 __getitem__"


def findings(*processes, warmup="0"):
    job = read_job(evidence(*processes, warmup=warmup))
    return {finding.kind: finding for finding in find(job.main, job.ranks)}


def run(accounts=None, counts=None, n=60, off_cpu=None, **facts):
    """A clean run with other accounts (ms per step) and counters on top."""
    process = FakeProcess(**{**METHODS, **facts})
    for i in range(n):
        booked = {name: ms * wobble(i) for name, ms in {**CLEAN, **(accounts or {})}.items()}
        process.step(booked, {**COUNTS, **(counts or {})}, off_cpu=off_cpu)
    return process


def only(found, kind):
    assert list(found) == [kind]
    return found[kind]


def test_a_clean_run_has_nothing_to_find():
    assert findings(clean_process().sites(shapes=[("4×1024", 60)])) == {}


# -- data --


def test_rows_that_are_tokenised_in_the_step():
    process = run({"data.fetch": 40, "data.collate": 10}, loader_workers=0)
    process.sites(
        samples=[("data.fetch", LINE, "tokenizers.py:1 encode", 80), ("data.collate", "c.py:2 pad", "c.py:2", 20)]
    )
    found = only(findings(process), "data.slow")
    assert found.where == LINE
    assert found.cost.value == pytest.approx(50, rel=0.01)
    assert found.share == pytest.approx(50 / 149.7, rel=0.01)
    assert found.accounts[0] == "data.fetch"
    once, workers = found.remedies
    assert LINE in once.action
    assert once.predicted.value == pytest.approx(40, rel=0.01)
    assert 30 < once.predicted.low < 40 < once.predicted.high < 50
    assert "num_workers=2" in workers.action
    assert workers.predicted.low == 0, "on the CPU the workers take cores from the training"


def test_workers_for_a_card_hide_the_loading():
    workers = findings(run({"data.fetch": 40}, device="cuda", loader_workers=0))["data.slow"].remedies[-1]
    assert workers.predicted.low == pytest.approx(20, rel=0.01), "two workers share the loading even without overlap"


def test_workers_that_are_too_slow():
    found = only(findings(run({"data.wait": 300}, loader_workers=3)), "data.slow")
    assert "num_workers=6" in found.remedies[0].action
    assert found.remedies[0].predicted.high == pytest.approx(400 / 2, rel=0.01)


def test_handing_a_batch_over_is_not_called_slow_workers():
    waits = [("data.wait", "train.py:9 main", "torch/utils/data/dataloader.py:1400 _next_data", 50)]
    assert findings(run({"data.wait": 9}, loader_workers=3).sites(samples=waits)) == {}, "9 of 109 ms"
    assert findings(run({"data.wait": 13}, loader_workers=3).sites(samples=waits)).keys() == {"data.slow"}


def test_a_line_that_waits_for_workers_is_not_the_work_to_do_beforehand():
    waits = [("data.wait", "", "torch/utils/data/dataloader.py:1400 _next_data", 50)]
    found = only(findings(run({"data.wait": 300}, loader_workers=3).sites(samples=waits)), "data.slow")
    assert found.where == ""
    assert [remedy.action.split()[0] for remedy in found.remedies] == ["DataLoader(num_workers=6),"]


def test_a_loader_that_is_made_anew():
    found = only(findings(run({"data.start": 21}, loader_workers=2, loader_persistent=False)), "data.start")
    assert "persistent_workers" in found.remedies[0].action
    assert found.remedies[0].predicted.value == pytest.approx(21, rel=0.01)
    once = only(findings(run({"data.start": 21}, loader_workers=0)), "data.start")
    assert [remedy.action.split()[0] for remedy in once.remedies] == ["build"]


# -- compute --


def test_recomputed_activations():
    found = only(findings(run({"recompute": 19})), "recompute")
    assert found.cost.value == pytest.approx(19, rel=0.01)
    assert found.remedies[0].fixed is None, "of what is computed twice nothing stays; forward and backward are not it"


@pytest.mark.parametrize("counts", [{"forwards": 2}, {"forwards": 2, "no_grad_forwards": 1}], ids=["kept", "no grad"])
def test_forwards_that_train_nothing(counts):
    found = only(findings(run(counts=counts)), "forward.extra")
    assert found.cost.value == pytest.approx(33.5 / 2, rel=0.01)
    assert found.remedies[0].fixed.value == pytest.approx(33.5 / 2, rel=0.01)


def test_micro_steps_are_no_extra_forwards():
    assert findings(run(counts={"forwards": 4, "backwards": 4, "micro_steps": 4})) == {}


def test_an_optimizer_that_goes_parameter_by_parameter():
    line = "torch/optim/adamw.py:400 _single_tensor_adamw"
    process = run({"optimizer": 40}, optimizer="AdamW").sites(samples=[("optimizer", "", line, 30)])
    found = only(findings(process), "optimizer.slow")
    assert (found.where, found.title[:5]) == (line, "AdamW")
    assert "fused=True" in found.remedies[0].action
    assert findings(run({"optimizer": 40})) == {}, "a large optimizer alone is no fault"
    assert findings(run({"optimizer": 40}, optimizer_foreach=False)).keys() == {"optimizer.slow"}
    assert findings(run({"optimizer": 40}, optimizer_foreach=False, optimizer_fused=True)) == {}


def test_walks_through_all_modules():
    found = only(findings(run(counts={"train_walks": 8, "train_walk_ns": 26 * MS})), "train_walks")
    assert found.cost.value == pytest.approx(26)


def test_steps_that_the_loss_scaler_skips():
    process = FakeProcess(**METHODS)
    for i in range(60):
        process.step(CLEAN, {**COUNTS, "amp_skipped": int(i % 5 == 0)})
    found = only(findings(process), "amp.skipped")
    assert found.cost.value == pytest.approx(20)


# -- tokens --


def padded(slots_of, ms_per_slot):
    process = FakeProcess(**METHODS)
    for i in range(60):
        slots = slots_of(i)
        process.step(
            {**CLEAN, "forward.mlp": slots * ms_per_slot}, {**COUNTS, "slots": slots, "real": 1500, "labelled": 1500}
        )
    return process


def test_padding_is_sized_by_how_time_grows_with_slots():
    found = only(findings(padded(lambda i: 2000 + 200 * (i % 5), 0.05)), "padding.waste")
    assert found.cost.value == pytest.approx((2400 - 1500) * 0.05, rel=0.01)
    assert found.remedies[0].fixed.value == pytest.approx(92.5 - 14, rel=0.01)
    group = found.remedies[0].predicted
    assert group.high == pytest.approx(found.cost.value, rel=0.01)
    assert group.low == pytest.approx((2400 - 1500 / 0.9) * 0.05, rel=0.01)  # a tenth may stay padding
    assert group.low < group.value < group.high


def test_time_that_does_not_start_at_zero_slots_leaves_nothing_fixed():
    process = FakeProcess(**METHODS)
    for i in range(60):
        slots = 2000 + 200 * (i % 5)
        process.step({"forward.mlp": slots * 0.05 - 50}, {**COUNTS, "slots": slots, "real": 1500, "labelled": 1500})
    assert [remedy.fixed for remedy in findings(process)["padding.waste"].remedies] == [None, None]


def test_what_may_be_most_expensive_comes_first():
    process = run({"recompute": 30}, {"slots": 8192, "labelled": 8000}).sites(shapes=[("4×2048", 60)])
    job = read_job(evidence(process, warmup="0"))
    found = find(job.main, job.ranks)
    assert [one.kind for one in found] == ["padding.waste", "recompute"]
    assert found[0].cost.bound
    assert found[0].cost.high > found[1].cost.value


def test_padding_that_costs_nothing_is_no_finding():
    assert findings(padded(lambda i: 2000 + 200 * ((i * 3) % 5), 0)) == {}


def test_padding_of_slots_that_never_vary_has_no_lower_bound():
    process = run(counts={"slots": 8192}).sites(
        shapes=[("4×2048", 60)], samples=[("data.collate", "train.py:9 collate", "train.py:9 collate", 50)]
    )
    found = findings(process)["padding.waste"]
    attention = CLEAN["forward.attention"] + CLEAN["backward.attention"]  # by the square: 3/4 of it, not half
    assert (found.cost.low, found.cost.high) == (0, pytest.approx(92.5 / 2 + attention / 4, rel=0.01))
    assert "longest row" in found.remedies[0].action
    assert found.where == "train.py:9 collate"


def test_what_may_save_most_of_padding_is_told_first():
    """Most of it lies between the rows of a batch: padding to the longest of them saves little, packing all of it."""
    counts = {"slots": 8192, "real": 4096, "longest_slots": 8000, "rows": 8, "row_squares": 8 * 512**2, "forwards": 1}
    process = run(counts={**counts, "mixed_squares": 8 * 100**2}).sites(shapes=[("8×1024", 60)])
    remedies = findings(process)["padding.waste"].remedies
    assert [one.name for one in remedies] == ["padding.pack", "padding.group", "padding.longest"]
    assert remedies[0].predicted.high > remedies[1].predicted.high > 5 * remedies[2].predicted.high


def test_padding_is_placed_at_the_users_own_line():
    rows = ("data.fetch", "train.py:28 __getitem__", "train.py:28 __getitem__", 3)
    library = ("data.collate", "", "transformers/data/data_collator.py:270 __call__", 50)
    starter = [(account, "train.py:91 main", "lib.py:1 f", 9) for account in ("backward.mlp", "data.collate")]
    found = findings(run(counts={"slots": 8192}).sites(shapes=[("4×2048", 60)], samples=[rows, library, *starter]))
    assert found["padding.waste"].where == "train.py:28 __getitem__"
    found = findings(run(counts={"slots": 8192}).sites(shapes=[("4×2048", 60)], samples=[library]))
    assert found["padding.waste"].where == library[2]


def test_a_loss_over_rows_without_a_label():
    found = only(findings(run({"forward.loss": 21}, {"labelled": 1024})), "loss.unlabelled")
    assert found.cost.value == pytest.approx((21 + 3 + 6) * 3 / 4, rel=0.01)


@pytest.mark.parametrize("kind", ["real", "labelled"])
def test_what_was_not_counted_is_not_found(kind):
    facts = {f"counts__{kind}": "not observed: the mask lies on the device"}
    assert findings(run({"forward.loss": 21}, {"labelled": 4000, kind: 10}, **facts)) == {}


def test_shapes_that_were_never_seen_before():
    process = FakeProcess(**METHODS)
    for i in range(60):
        new = i % 10 == 0
        process.step({**CLEAN, "forward.mlp": 14 + 80 * new}, {**COUNTS, "new_shapes": int(new)})
    found = only(findings(process), "shapes.first_seen")
    assert found.cost.value == pytest.approx(5 * 80 / 60), "the first step is left out: its shape is new by necessity"


# -- host --


@pytest.mark.parametrize(
    ("account", "share_saved"),
    [
        ("clip", 0.5),
        ("zero_grad", 0.5),
        ("logging", 0.5),
        ("callbacks", 0.5),
        ("eval", 0.5),
        ("checkpoint", 0.5),
        ("gc", 0.5),
    ],
)
def test_chores(account, share_saved):
    process = run({account: 15}).sites(samples=[(account, "train.py:5 on_step_end", "time.py:1 sleep", 12)])
    found = only(findings(process), f"{account}.slow")
    assert found.where == "train.py:5 on_step_end"
    assert found.cost.value == pytest.approx(15, rel=0.01)
    assert found.remedies[0].predicted.value == pytest.approx(15 * share_saved, rel=0.01)


def test_a_ceiling_is_what_the_account_holds_however_unsure_its_mean():
    found = only(findings(run({"gc": 15})), "gc.slow")
    predicted = found.remedies[0].predicted
    assert predicted.bound
    assert (predicted.low, predicted.high) == (0, found.cost.value)
    assert found.cost.high > found.cost.value


def test_half_as_often_is_an_estimate_of_half_however_unsure_the_cost():
    process = FakeProcess(**METHODS)
    for i in range(60):
        process.step({**CLEAN, "eval": 900 * (i == 30)}, COUNTS)
    found = findings(process)["eval.slow"]
    predicted = found.remedies[0].predicted
    assert found.cost.low == 0, "so unsure that the interval reaches zero"
    assert not predicted.bound
    assert (predicted.value, predicted.high) == (found.cost.value / 2, found.cost.high / 2)


def test_a_sync_on_a_card_gives_back_at_most_what_the_host_needs():
    site = ("train.py:40 train", "item", 60, 30, 30 * 80 * MS)
    found = findings(run({"sync": 80}, device="cuda").sites(syncs=[site]))["sync.site"]
    assert found.where == "train.py:40 train"
    assert found.cost.value == pytest.approx(80), "calls that were not timed count like those that were"
    assert (found.remedies[0].predicted.low, found.remedies[0].predicted.high) == (0, pytest.approx(80))
    waiting = findings(run({"sync": 400}, device="cuda").sites(syncs=[(*site[:4], 30 * 400 * MS)]))["sync.site"]
    assert waiting.remedies[0].predicted.high == pytest.approx(100, rel=0.01), "min(host, device), not the wait"


@pytest.mark.parametrize(
    ("where", "other", "shared"),
    [
        ("layers 0–3 (A)", "layers 2, 5 (A)", True),
        ("layers 0, 2 (A)", "layers 1, 3–5 (A)", False),
        ("layers 0, 2, 4, 6, 8, 10, … (A)", "layers 1, 3 (A)", True),
        ("train.py:1", "train.py:1", False),
    ],
)
def test_findings_of_one_kind_overlap_where_they_name_the_same_layers(where, other, shared):
    cost = Estimate(value=5.0, unit="ms", n=9, method="")
    accounts = ("forward.attention",)
    both = [
        Finding(kind="mask.lost", title="", where=place, cost=cost, share=0.1, accounts=accounts)
        for place in (where, other)
    ]
    process = read_job(evidence(clean_process())).main
    assert [one.overlaps for one in arranged(both, process)] == ([(2,), (1,)] if shared else [(), ()])


def test_syncs_of_different_lines_are_told_apart_and_not_called_overlapping():
    process = run({"sync": 30}).sites(
        syncs=[("a.py:1 f", "item", 60, 60, 60 * 20 * MS), ("b.py:2 g", "cpu", 60, 60, 60 * 10 * MS)]
    )
    job = read_job(evidence(process, warmup="0"))
    found = find(job.main, job.ranks)
    assert [(one.kind, one.where) for one in found] == [("sync.site", "a.py:1 f"), ("sync.site", "b.py:2 g")]
    assert not any(one.overlaps for one in found)


def test_a_planted_sleep_is_named_by_its_line():
    process = run({"unattributed": 20.5}).sites(
        samples=[
            ("unattributed", "train.py:61 throttle", "train.py:61 throttle", 400),
            ("unattributed", "(other places)", "torch/_tensor.py:9 f", 10),
        ]
    )
    found = only(findings(process), "host.line")
    assert found.where == "train.py:61 throttle"
    assert found.cost.value == pytest.approx(20, rel=0.01)
    assert found.cost.low < 20 < found.cost.high


def test_few_samples_size_no_line():
    process = run({"unattributed": 20.5}).sites(samples=[("unattributed", "train.py:61 f", "train.py:61 f", 9)])
    assert findings(process) == {}


def test_a_busy_machine():
    away = {"forward.mlp": 6, "backward.mlp": 12}
    found = only(findings(run(off_cpu=away)), "off_cpu")
    assert found.cost.value == pytest.approx(18)
    assert [remedy.predicted for remedy in found.remedies] == [None], "nobody knows what a quiet machine would give"
    assert found.accounts[0] == "backward.mlp", "a renderer puts it beside the largest account"
    assert findings(run(off_cpu=away, device="cuda")) == {}, "there the thread waits for the card"
    assert findings(run(off_cpu={"data.fetch": 0.2, "unattributed": 0.5})) == {}


def test_waiting_for_another_rank_in_the_backward_pass_is_no_busy_machine():
    def rank(number, off_cpu):
        process = FakeProcess(rank=number, world_size=2, **METHODS)
        for i in range(60):
            process.step({name: ms * wobble(i) for name, ms in CLEAN.items()}, COUNTS, off_cpu=off_cpu)
        return process

    waiting = {"backward.mlp": 25}
    assert findings(rank(0, waiting), rank(1, waiting)) == {}
    busy = {**waiting, "forward.mlp": 10}
    found = only(findings(rank(0, busy), rank(1, busy)), "off_cpu")
    assert found.cost.value == pytest.approx(10)
    assert not any(account.startswith("backward") for account in found.accounts)
    computed = sum(ms for name, ms in CLEAN.items() if name.startswith("forward") or name in ("optimizer", "clip"))
    assert f"of its computing outside of the backward pass: 10 of {computed:.3g} ms." in found.title


def test_few_steps_that_take_much():
    process = FakeProcess(**METHODS)
    for i in range(60):
        process.step({**CLEAN, "unattributed": 0.5 + 300 * (i % 20 == 7)}, COUNTS)
    process.sites(samples=[("unattributed", "train.py:9 flush", "os.py:1 fsync", 9)])
    found = only(findings(process), "steps.spikes")
    assert found.cost.value == pytest.approx(3 * 300 / 60)
    assert found.where == "train.py:9 flush"
    assert "step 7 in unattributed" in found.remedies[0].action


def by_slots(slots, spike=0.0, at=11, base=5.0):
    """Steps whose forward and backward follow their slots, one of which takes longer than that."""
    process = FakeProcess(**METHODS)
    for i, held in enumerate(slots):
        spent = {"forward.mlp": 0.03 * held, "backward.mlp": 0.06 * held, "optimizer": base}
        more = {"unattributed": 0.1 + spike * (i == at)}
        process.step({name: ms * wobble(i) for name, ms in (spent | more).items()}, {**COUNTS, "slots": held})
    return process


WIDTHS = [320, 400, 360, 480, 520, 400, 600, 360, 440, 520, 400, 1160, 360, 480, 560]


def test_a_larger_batch_is_no_spike():
    assert "steps.spikes" not in findings(by_slots(WIDTHS))


def test_a_larger_batch_is_no_spike_where_the_others_hold_equally_many_slots():
    """No line can be drawn through these."""
    assert "steps.spikes" not in findings(by_slots([400] * 11 + [1160] + [400] * 8))


@pytest.mark.parametrize("widths", [WIDTHS, [400] * 20])
def test_what_a_spike_takes_beyond_its_slots_is_named(widths):
    found = findings(by_slots(widths, spike=500.0))["steps.spikes"]
    assert found.cost.value == pytest.approx(500 / len(widths), rel=0.05)
    assert found.accounts == ("unattributed",)
    assert "step 11 in unattributed" in found.remedies[0].action
    assert f"1 of {len(widths)} steps takes at least twice what steps of as many slots take" in found.title


def test_the_figures_of_a_spike_can_be_made_again_from_its_title():
    process = by_slots(WIDTHS, spike=500.0)
    for i in range(3):
        process.step({name: ms * wobble(i) for name, ms in CLEAN.items()}, {**COUNTS, "new_shapes": 1})
    found = findings(process)["steps.spikes"]
    counted = re.match(
        r"1 of (\d+) steps whose shapes had come before .*: (\d+) ms more, which is ([\d.]+)", found.title
    )
    steps, more, each = (float(one) for one in counted.groups())
    assert (steps, each) == (len(WIDTHS), pytest.approx(more / steps, rel=0.01))
    assert found.cost.value == pytest.approx(each, rel=0.01)


def test_evaluations_are_no_spikes():
    process = FakeProcess(**METHODS)
    for i in range(60):
        process.step({**CLEAN, "eval": 300 * (i % 20 == 7)}, COUNTS)
    only(findings(process), "eval.slow")


# -- ranks --


def pair(slow_ms=0.0, wait_ms=0.0):
    slow, other = (FakeProcess(rank=rank, world_size=2, **METHODS) for rank in (1, 0))
    for i in range(60):
        slow.step({name: ms * wobble(i) for name, ms in {**CLEAN, "unattributed": 0.5 + slow_ms}.items()}, COUNTS)
        other.step({name: ms * wobble(i) for name, ms in {**CLEAN, "backward.mlp": 28 + wait_ms}.items()}, COUNTS)
    slow.sites(samples=[("unattributed", "ddp.py:12 train", "time.py:1 sleep", 100)])
    return other, slow


def test_the_straggler_is_the_rank_that_waits_least():
    found = findings(*pair(slow_ms=30, wait_ms=30))["rank.straggler"]
    assert found.where == "rank 1, ddp.py:12 train"
    assert found.cost.value == pytest.approx(30, rel=0.02)
    assert found.remedies[0].predicted.value == pytest.approx(30, rel=0.02)
    assert "unattributed" in found.remedies[0].action


def test_a_rank_with_more_to_do_is_named_where_a_busy_machine_hides_the_waiting():
    found = only(findings(*pair(slow_ms=30, wait_ms=0)), "rank.uneven")
    assert found.where == "rank 1, ddp.py:12 train"
    assert found.cost.value == pytest.approx(30, rel=0.02)
    assert found.remedies[0].predicted.low == 0


def test_a_larger_excess_of_chance_does_not_hide_a_sure_one():
    other, slow = (FakeProcess(rank=rank, world_size=2, **METHODS) for rank in range(2))
    for i in range(60):
        other.step({name: ms * wobble(i) for name, ms in CLEAN.items()}, COUNTS)
        held_up = 600 * (i in (7, 31, 50))
        slow.step({**CLEAN, "logging": 1 + held_up, "unattributed": 25.5}, COUNTS)
    slow.sites(samples=[("unattributed", "ddp.py:12 train", "time.py:1 sleep", 100)])
    found = only(findings(other, slow), "rank.uneven")
    assert found.where == "rank 1, ddp.py:12 train"
    assert found.cost.value == pytest.approx(25, rel=0.1)


def test_a_rank_that_was_put_aside_while_it_computed_has_no_more_to_do():
    quiet, busy = (FakeProcess(rank=rank, world_size=2, **METHODS) for rank in range(2))
    for i in range(60):
        quiet.step({name: ms * wobble(i) for name, ms in CLEAN.items()}, COUNTS)
        busy.step({**CLEAN, "forward.mlp": 34}, COUNTS, off_cpu={"forward.mlp": 20})
    assert findings(quiet, busy) == {}


def test_ranks_in_step_have_no_straggler():
    assert findings(*pair()) == {}


# -- all together --


def test_findings_come_most_expensive_first_and_say_where_they_overlap():
    process = run({"recompute": 19, "data.start": 90}, {"slots": 8192, "labelled": 8000}).sites(shapes=[("4×2048", 60)])
    job = read_job(evidence(process, warmup="0"))
    found = find(job.main, job.ranks)
    assert [one.kind for one in found] == ["data.start", "padding.waste", "recompute"]
    assert [one.overlaps for one in found] == [(), (3,), (2,)]


CAPPED = ("data.slow", "sync.site")
"""Kinds with a ceiling that does not come from the cost: twice the workers, and what the host has to do meanwhile."""

COUNTERS = ("slots", "real", "labelled", "forwards", "backwards", "no_grad_forwards", "new_shapes", "amp_skipped")
STEP = st.tuples(
    st.booleans(),
    st.dictionaries(st.sampled_from(BOOKED), st.floats(0.01, 100), min_size=1),
    st.dictionaries(st.sampled_from(COUNTERS), st.integers(0, 1)),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(STEP, min_size=1, max_size=14), st.sampled_from(["cpu", "cuda"]), st.integers(0, 3))
def test_no_finding_promises_more_than_it_costs_or_costs_more_than_the_step(steps, device, workers):
    """Whatever the evidence holds, the sizes stay possible."""
    process = FakeProcess(**METHODS, device=device, loader_workers=workers)
    for detail, accounts, counters in steps:
        process.step(accounts, counters, detail=detail, off_cpu=accounts)
    places = [(account, f"{account}.py:1 f", "lib.py:2 g", 20) for account in BOOKED]
    process.sites(syncs=[("a.py:1 f", "item", 2, 1, 1000)], samples=places, shapes=[("a", 1)])
    for finding in findings(process).values():
        assert finding.title.endswith(".")
        assert 0 < finding.share <= 1 + 1e-9, finding
        for predicted in (remedy.predicted for remedy in finding.remedies if remedy.predicted is not None):
            assert 0 <= predicted.value <= finding.cost.value * (1 + 1e-9), finding
            assert predicted.low is None or predicted.low <= predicted.value + 1e-9, finding
            assert predicted.high is None or predicted.high >= predicted.value - 1e-9, finding
            if predicted.bound and finding.kind not in CAPPED:
                assert predicted.high == pytest.approx(most_of(finding.cost)), finding
        assert all(remedy.fixed is None or remedy.fixed.value >= 0 for remedy in finding.remedies), finding


def test_every_rule_says_what_it_looks_for():
    assert all(rule.__doc__ for rule in RULES)
