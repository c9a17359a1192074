"""From evidence to the report of ``stepprobe run``."""

import random
import time

import pytest

from stepprobe.errors import UsageError
from stepprobe.model.accounts import ACCOUNTS
from stepprobe.probes import ledger
from tests.fakes.records import CLEAN, COUNTS, METHODS, MS, FakeProcess, clean_process, evidence

COARSE = {name: ms for name, ms in CLEAN.items() if not name.startswith(("forward", "backward"))} | {
    "forward": 33.5,
    "backward": 59.0,
}


def derive(*processes, **options):
    return ledger.derive(evidence(*processes, **options))


def said(report, text):
    return [note for note in report.notes if text in note]


def test_a_clean_run():
    report = derive(clean_process().sites(shapes=[("4×1024", 60)]).end())
    assert report.verdict == "ok"
    assert report.findings == ()
    assert report.headline == "step 100.0 ms · 40,963 real tokens/s · most in backward · mlp (28%)"
    assert (report.command, report.title) == ("run", "python train.py")
    assert report.figures["step.wall"].value == pytest.approx(100, rel=0.001)
    assert {f"ledger.{account}" for account in ACCOUNTS} <= report.figures.keys()
    assert report.figures["ledger.data.wait"].value == 0
    assert report.figures["ledger.closure_ns"].value == 0
    assert report.notes == (
        "observing took 0.10 ms of each step (0.1%)",
        "every steady step was observed in detail, so what detail costs could not be compared",
    )


def test_a_verdict_that_is_not_ok_has_a_reason():
    few = derive(clean_process(5))
    assert (few.verdict, few.reason) == ("warn", "only 4 steady steps: too few for an interval")
    assert derive(clean_process(), status="exit 3").reason == "the script did not end well (exit 3)"
    assert derive(clean_process()).reason == ""


def test_the_environment_tells_what_trained():
    fake = clean_process(optimizer="AdamW", loader_workers=2, loader_batch_size=0)
    told = derive(fake.sites(shapes=[("4×9", 1), ("8×9", 6)])).environment
    assert told["machine"] == "two cores"
    assert (told["package torch"], told["package transformers"]) == ("2.13.0", "5.24.0")
    assert (told["job device"], told["job optimizer"], told["job loader_workers"]) == ("cpu", "AdamW", "2")
    assert told["job batch, most often"] == "8×9"
    assert "job loader_batch_size" not in told, "0: the batches are made elsewhere"


def test_rows_sum_to_the_wall():
    report = derive(clean_process())
    assert sum(row.time.value for row in report.ledger) == pytest.approx(report.figures["step.wall"].value, rel=1e-12)
    assert sum(row.share for row in report.ledger) == pytest.approx(1, rel=1e-12)
    assert [row.account for row in report.ledger] == [account for account in ACCOUNTS if account in CLEAN]


def test_rows_name_the_hottest_line_and_the_time_off_the_cpu():
    fake = FakeProcess().steps(20, {"data.fetch": 10, "optimizer": 5}, off_cpu={"data.fetch": 4})
    fake.sites(samples=[("data.fetch", "a.py:1 f", "x.py:1 g", 5), ("data.fetch", "b.py:2 f", "x.py:1 g", 7)])
    fetch, optimizer = derive(fake).ledger
    assert (fetch.where, fetch.off_cpu) == ("b.py:2 f", pytest.approx(0.4))
    assert (optimizer.where, optimizer.off_cpu) == ("", 0)


def test_few_samples_name_no_row():
    fake = FakeProcess().steps(20, {"optimizer": 5, "unattributed": 5})
    fake.sites(samples=[("optimizer", "a.py:1 f", "x.py:1 g", 4), ("unattributed", "b.py:1 f", "x.py:1 g", 5)])
    assert [row.where for row in derive(fake).ledger] == ["", "b.py:1 f"]


def test_a_line_that_only_starts_the_training_names_no_cause():
    start, inner = "train.py:91 main", "trainer.py:7 step"
    fake = FakeProcess().steps(20, {"backward.mlp": 10, "optimizer": 5, "unattributed": 5})
    fake.sites(samples=[(account, start, inner, 20) for account in ("backward.mlp", "optimizer", "unattributed")])
    report = derive(fake)
    assert {row.where for row in report.ledger} == {inner}
    assert [finding.where for finding in report.findings] == [inner]


# -- which steps --


def test_the_warmup_is_cut_and_said():
    fake = FakeProcess().steps(3, {"optimizer": 500}).steps(30, {"optimizer": 100})
    report = derive(fake)
    assert report.figures["step.wall"].value == 100
    assert [report.figures[f"step.{name}"].value for name in ("count", "warmup", "measured")] == [33, 3, 30]
    assert said(report, "first 3 steps are not in the means (33.3% of all wall time)")
    fixed = derive(fake, warmup="1").figures
    assert fixed["step.warmup"].value == 1
    assert fixed["step.wall"].value == pytest.approx((2 * 500 + 30 * 100) / 32)


def test_a_warmup_longer_than_the_run_leaves_one_step():
    assert derive(FakeProcess().steps(5, {"sync": 1}), warmup="99").figures["step.measured"].value == 1


@pytest.mark.parametrize("warmup", ["-1", "many", "1.5", ""])
def test_a_warmup_that_is_no_number_of_steps_is_refused(warmup):
    with pytest.raises(UsageError, match="warmup"):
        derive(clean_process(), warmup=warmup)


def test_the_step_that_the_script_ended_is_counted_but_not_averaged():
    fake = FakeProcess().steps(20, {"optimizer": 100}).step({"optimizer": 7000}, end="exit")
    report = derive(fake)
    assert report.figures["step.count"].value == 21
    assert report.figures["step.wall"].value == 100
    assert said(report, "ended by the end of the script")


def test_sums_of_steps_count_with_their_weight():
    fake = FakeProcess(**METHODS).steps(20, CLEAN, COUNTS)
    fake.summary(60, {**COARSE, "optimizer": 26}, COUNTS, histogram={"214": 60})
    report = derive(fake)
    assert report.figures["step.wall"].value == pytest.approx(115)
    assert report.figures["ledger.optimizer"].value == pytest.approx(21)
    assert report.figures["ledger.forward.attention"].value == pytest.approx(12)
    assert report.figures["step.wall_median"].value == pytest.approx(120, rel=0.07)
    assert said(report, "20 steps are kept in full, 60 only in sums")
    assert said(
        report, "forward: 22.0% of the step is divided by the shares of the 20 of 80 steps observed in detail"
    ) or (said(report, "is divided by the shares of the 20 of 80 steps observed in detail"))


def test_sums_that_reach_into_the_warmup_are_left_out_and_said():
    fake = FakeProcess().steps(4, {"sync": 5}).summary(10, {"sync": 1}).steps(40, {"sync": 1})
    report = derive(fake, warmup="6")
    assert report.figures["step.measured"].value == 38
    assert said(report, "10 steps are in sums that reach into the warm-up")


# -- detail --


def test_what_detail_costs_is_printed():
    fake = FakeProcess()
    for i in range(80):
        fake.step(CLEAN if i % 4 == 0 else COARSE, detail=i % 4 == 0, self_ms=2.0 if i % 4 == 0 else 0.5)
    figures = derive(fake).figures
    assert figures["attach.self_cost"].value == pytest.approx(0.875)
    assert figures["attach.self_share"].value == pytest.approx(0.00875)
    assert figures["attach.detail_share"].value == 0.25
    assert figures["attach.distortion"].value == pytest.approx(1.5)
    assert figures["attach.distortion_cpu"].value == 0


def test_what_detail_costs_is_checked_by_cpu_time():
    """Hooks say 1.5 ms, while the steps in detail really take 20 ms more CPU time."""

    def notes(slower_ms):
        noise, fake = random.Random(4), FakeProcess()
        for i in range(80):
            fine = i % 4 == 0
            booked = {**(CLEAN if fine else COARSE), "optimizer": 6 + slower_ms * fine + noise.gauss(0, 0.5)}
            fake.step(booked, detail=fine, self_ms=2.0 if fine else 0.5)
        return said(derive(fake, warmup="0"), "by its own count, a step observed in detail takes 1.50 ms more")

    (agreeing,), (other,) = notes(1.5), notes(20)
    assert "by CPU time" not in agreeing
    assert "by CPU time it takes" in other
    assert "-" not in derive(FakeProcess().steps(9, COARSE, detail=False).steps(9, CLEAN)).notes[0]


def test_divided_accounts_are_less_sure_than_seen_ones():
    noise = random.Random(3)
    fake = FakeProcess()
    for i in range(160):
        share = noise.uniform(0.3, 0.7)
        inside = {"forward.mlp": 100 * share, "forward.attention": 100 * (1 - share)}
        fake.step(inside if i % 8 == 0 else {"forward": 100}, detail=i % 8 == 0)
    figures = derive(fake, warmup="0").figures
    mlp = figures["ledger.forward.mlp"]
    assert "shares of 20 detailed" in mlp.method
    assert mlp.high - mlp.low > 5
    assert figures["step.wall"].high - figures["step.wall"].low < 1e-3


def test_no_detail_is_said():
    report = derive(FakeProcess().steps(20, COARSE, detail=False))
    assert report.figures["ledger.forward.other"].value == pytest.approx(33.5)
    assert said(report, "no step shows what the forward pass is made of: 33.5% of the step")


# -- counters --


def test_three_token_rates():
    counts = {"slots": 4000, "real": 3000, "labelled": 1000}
    figures = derive(FakeProcess(**METHODS).steps(20, {"optimizer": 500}, counts)).figures
    assert [figures[f"tokens.{kind}_per_step"].value for kind in counts] == [4000, 3000, 1000]
    assert [figures[f"tokens.{kind}_per_second"].value for kind in counts] == [8000, 6000, 2000]
    assert figures["tokens.padding_share"].value == 0.25


def test_evaluation_is_left_out_of_one_of_the_rates():
    counts = {"slots": 4000, "real": 4000, "labelled": 4000}
    report = derive(FakeProcess(**METHODS).steps(20, {"optimizer": 500, "eval": 500}, counts))
    row = next(table for table in report.tables if table.name == "rates").rows[0]
    assert row == ("slots", 4000, 4000, 8000, 4000)


def test_a_rate_that_is_the_one_before_it_is_left_out():
    report = derive(FakeProcess(**METHODS).steps(20, {"optimizer": 500}, COUNTS))
    rates = next(table for table in report.tables if table.name == "rates")
    assert [column.title for column in rates.columns] == ["kind", "per step", "per second"]
    slow_start = derive(FakeProcess(**METHODS).steps(2, {"optimizer": 5000}).steps(20, {"optimizer": 500}, COUNTS))
    rates = next(table for table in slow_start.tables if table.name == "rates")
    assert [column.title for column in rates.columns][2:] == ["per second", "over the whole run"]


def test_samples_of_a_pass_and_of_its_parts_are_one():
    fake = FakeProcess().steps(20, {"forward.mlp": 9, "gc": 1})
    parts = [("forward.mlp", "", "l.py:1 f", 5), ("forward.mlp", "", "s.py:2 g", 3)]
    fake.sites(samples=[("forward", "", "l.py:1 f", 16), *parts])
    rows = next(table for table in derive(fake).tables if table.name == "samples").rows
    assert [row[:3] for row in rows] == [("forward", "l.py:1 f", 21), ("forward · mlp", "s.py:2 g", 3)]


def test_the_frameworks_own_rate_stands_beside_ours():
    counts = {"slots": 4000, "real": 1000, "labelled": 500}
    fake = FakeProcess(**METHODS).steps(20, {"optimizer": 1000}, counts)
    rates = {"train_tokens_per_second": 4000.0, "train_steps_per_second": 1.0, "num_input_tokens_seen": 80_000.0}
    rates |= {"eval_steps_per_second": 3.0, "eval_tokens_per_second": 800.0, "My tokens</script>": 1.0}
    fake.sites(rates=rates)
    report = derive(fake)
    assert report.figures["tokens.framework.train_tokens_per_second_ratio"].value == pytest.approx(4)
    assert "tokens.framework.my_tokens_script_" in report.figures, "a name is the user's text"
    assert report.figures["tokens.framework.num_input_tokens_seen_ratio"].value == pytest.approx(4)
    rows = {row[0]: row for row in next(table for table in report.tables if table.name == "framework").rows}
    assert rows["train_steps_per_second"] == ("train_steps_per_second", 1, 1, 1, "steady steps per second")
    for name in ("eval_steps_per_second", "eval_tokens_per_second"):
        assert rows[name][2:4] == (None, None), "no evaluation was measured step by step"


def test_under_ddp_the_end_of_backward_is_said_to_hold_the_waiting_for_other_ranks():
    def rank(number, world_size, off):
        facts = {"device": "cpu", **METHODS}
        fake = FakeProcess(rank=number, pid=number, world_size=world_size, **facts)
        return fake.steps(20, {"backward.embed": 30, "optimizer": 70}, off_cpu={"backward.embed": off})

    assert not said(derive(rank(0, 1, 10)), "under DDP")
    (note,) = said(derive(rank(0, 2, 25), rank(1, 2, 5)), "under DDP")
    assert "5.0 to 25.0 ms, by rank, of a step's backward were off the CPU" in note
    forward_alone = FakeProcess(world_size=2, **METHODS).steps(20, {"forward": 100})
    assert not said(derive(forward_alone), "under DDP")


def test_what_was_not_counted_has_a_note_and_no_figure():
    facts = {"counts__real": "not observed: the mask lies on the device"}
    report = derive(FakeProcess(**facts).steps(20, CLEAN, {"slots": 100}))
    assert "tokens.slots_per_step" in report.figures
    for kind in ("real", "labelled"):
        assert f"tokens.{kind}_per_step" not in report.figures
    assert "tokens.padding_share" not in report.figures
    assert said(report, "real tokens: not observed: the mask lies on the device; no figure")
    assert said(report, "labelled tokens: not observed")
    assert said(report, "batch shapes were not observed")


def test_shapes():
    fake = FakeProcess(**METHODS)
    for i in range(40):
        fake.step({"optimizer": 300 if i % 10 == 0 else 100}, {**COUNTS, "new_shapes": int(i % 10 == 0)})
    figures = derive(fake.sites(shapes=[("a", 3), ("b", 37)]), warmup="0").figures
    assert figures["shapes.distinct"].value == 4, "the table is shortened, the count is not"
    assert figures["shapes.first_seen_time_share"].value == pytest.approx(3 * 200 / (36 * 100 + 4 * 300))


def test_longer_batches_are_not_slow_for_being_new():
    fake = FakeProcess(**METHODS)
    for i in range(40):
        slots = 1000 + 100 * i
        fake.step({"optimizer": slots / 10}, {**COUNTS, "slots": slots, "new_shapes": int(i % 10 == 9)})
    figures = derive(fake.sites(shapes=[("a", 40)]), warmup="0").figures
    assert figures["shapes.first_seen_time_share"].value == pytest.approx(0, abs=1e-6)


def test_counts_per_step():
    counts = {"micro_steps": 4, "syncs": 9, "forwards": 5, "backwards": 4, "no_grad_forwards": 1, "train_walks": 2}
    figures = derive(FakeProcess().steps(20, {"optimizer": 10}, {**counts, "train_walk_ns": 3 * MS})).figures
    assert derive(FakeProcess().steps(9, {"sync": 1}, {"backwards": 2})).figures["micro_steps.per_step"].value == 2
    names = ("micro_steps.per_step", "syncs.per_step", "forwards.no_grad_per_step", "train_walks.per_step")
    assert [figures[name].value for name in names] == [4, 9, 1, 2]
    assert figures["forwards.per_backward"].value == 1.25
    assert figures["train_walks.time"].value == 3


# -- speed --


@pytest.mark.noisy
def test_five_thousand_steps_are_derived_in_a_second():
    noise, fake = random.Random(1), FakeProcess(**METHODS)
    for i in range(5000):
        factor = noise.gauss(1, 0.02)
        booked = {name: ms * factor for name, ms in (CLEAN if i % 16 == 0 else COARSE).items()}
        fake.step(booked, {**COUNTS, "slots": noise.randint(3000, 5000)}, detail=i % 16 == 0)
    seen = evidence(fake.sites(shapes=[("4×1024", 5000)]))
    begin = time.process_time()
    report = ledger.derive(seen)
    assert time.process_time() - begin < 1.0
    assert len(report.charts[0].values) < 3100


def test_without_a_mask_nobody_calls_slots_real_tokens():
    process = clean_process().facts(**{"counts.real": "no attention mask: every slot counted"})
    report = derive(process.end())
    assert "slots/s" in report.headline
    assert any(note.startswith("padding could not be looked for") for note in report.notes)
