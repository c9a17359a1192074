"""What was promised, what was done, what came: on runs whose truth is planted."""

import random

import msgspec
import pytest

from stepprobe.analysis.outcome.comparison import compare, examine
from stepprobe.model.estimate import Estimate
from stepprobe.model.promise import inside, judge
from tests.fakes.records import CLEAN, COUNTS, METHODS, FakeProcess, evidence

MODEL = {"model": "Tiny", "parameters": 1000}


def run(seed, accounts=None, *, n=80, spread=0.01, counts=None, off_cpu=None, sites=None, **facts):
    noise, fake = random.Random(seed), FakeProcess(**{**METHODS, **MODEL, **facts})
    for _ in range(n):
        factor = noise.gauss(1, spread)
        booked = {name: ms * factor for name, ms in {**CLEAN, **(accounts or {})}.items()}
        fake.step({name: ms for name, ms in booked.items() if ms}, {**COUNTS, **(counts or {})}, off_cpu=off_cpu)
    return fake.sites(**(sites or {})).end()


def judged(before, after, **options):
    report, found = examine(evidence(before, **options), evidence(after, **options))
    return report, found, {one.remedy: one for one in found.judged}


def promises(report):
    return next((table.rows for table in report.tables if table.name == "promises"), ())


def ms(value, low, high):
    return Estimate(value=value, unit="ms", low=low, high=high, n=9, method="")


@pytest.mark.parametrize(
    ("predicted", "measured", "held"),
    [
        ((10, 8, 12), (10.5, 9, 11.9), "held"),
        ((10, 8, 12), (14, 12.1, 16), "missed (gained more)"),
        ((10, 8, 12), (5, 3, 7.9), "missed (gained less)"),
        ((10, 8, 12), (11, 9, 13), "undecided"),  # reaches over the upper end
        ((10, 8, 12), (10, 2, 20), "undecided"),  # holds both ends
        ((10, None, None), (10, 9, 11), "undecided"),
        ((10, 8, 12), (10, None, None), "undecided"),
        ((10, 8, 12), (-5, -7, -3), "missed (gained less)"),
    ],
)
def test_a_promise_is_judged_by_the_whole_measured_interval(predicted, measured, held):
    assert judge(ms(*predicted), ms(*measured)) == held


def test_no_prediction_is_undecided():
    assert judge(None, ms(1, 0, 2)) == judge(ms(1, 0, 2), None) == "undecided"


@pytest.mark.parametrize(
    ("measured", "held"),
    [
        ((10.0, 8.0, 12.0), "held"),  # all that the account held, and as unsure as that
        ((10.0 * (1 + 1e-14), 8.0, 12.0), "held"),
        ((4.0, 3.0, 5.0), "held"),
        ((11.0, 8.0, 14.0), "undecided"),
        ((4.0, -1.0, 9.0), "undecided"),
        ((14.0, 12.0, 16.0), "missed (gained more)"),
        ((-3.0, -4.0, -1.0), "missed (gained less)"),
    ],
)
def test_a_ceiling_is_held_by_a_value_below_it(measured, held):
    ceiling = msgspec.structs.replace(ms(5.0, 0.0, 10.0), bound=True)
    assert judge(ceiling, ms(*measured)) == held
    assert inside(ceiling, ms(*measured)) == (-1e-9 <= measured[0] <= 10.0 * (1 + 1e-9))


def test_checkpointing_off_is_seen_and_held():
    """Recomputing took 30 ms of the step, with 2 ms of its own work around it."""
    report, _, by_name = judged(run(1, {"recompute": 30}), run(2))
    assert list(by_name) == ["checkpointing.off"]
    outcome = report.findings[0].remedies[0].outcome
    assert outcome.value == pytest.approx(30, abs=1.5)
    assert outcome.low < outcome.value < outcome.high
    assert by_name["checkpointing.off"].held == "held"
    assert report.figures["outcome.measured"].value == outcome.value
    assert report.figures["outcome.predicted"].value == pytest.approx(30, abs=0.5)
    assert report.figures["outcome.held"].method == by_name["checkpointing.off"].held
    assert [finding.kind for finding in report.findings] == ["recompute"]
    assert any("made: 1. turn gradient checkpointing off" in note for note in report.notes)


def test_workers_are_seen_in_the_setting_and_their_ceiling_holds():
    slow = run(1, {"data.fetch": 40}, loader_workers=0)
    report, _, by_name = judged(slow, run(2, {"data.wait": 4, "data.fetch": 0, "data.collate": 0}, loader_workers=2))
    assert by_name["loader.workers"].held == "held"
    assert by_name["loader.workers"].measured.value == pytest.approx(36.3, abs=1)
    assert report.figures["outcome.held"].value == 1
    assert "0 to 4" in promises(report)[0][2]  # 0 to 40 and something


def test_the_line_that_was_precomputed_is_told_from_workers():
    samples = {"samples": [("data.fetch", "data.py:8 __getitem__", "data.py:8 __getitem__", 200)]}
    slow = run(1, {"data.fetch": 40}, loader_workers=0, sites=samples)
    _, _, by_name = judged(slow, run(2, loader_workers=0))
    assert list(by_name) == ["loader.precompute"]


def test_a_change_that_gained_nothing_missed():
    """The workers are there, and the step is as long as before."""
    _, _, by_name = judged(run(1, {"recompute": 30}), run(2, {"recompute": 0, "forward.mlp": 44}))
    assert by_name["checkpointing.off"].held == "missed (gained less)"
    assert by_name["checkpointing.off"].measured.low < 0.5


def test_a_change_that_made_it_slower_missed_and_fails():
    report, _, by_name = judged(run(1, {"recompute": 30}), run(2, {"forward.mlp": 64}))
    assert by_name["checkpointing.off"].held == "missed (gained less)"
    assert by_name["checkpointing.off"].measured.high < 0
    assert report.verdict == "fail"
    assert report.figures["outcome.held"].value == 0


def test_two_changes_with_accounts_of_their_own_have_outcomes_of_their_own_and_one_together():
    before = run(1, {"recompute": 30, "data.fetch": 40}, loader_workers=0)
    after = run(2, {"data.wait": 4, "data.fetch": 0, "data.collate": 0}, loader_workers=2)
    report, _, by_name = judged(before, after)
    assert by_name["checkpointing.off"].measured.value == pytest.approx(30, abs=1)
    assert by_name["loader.workers"].measured.value == pytest.approx(36, abs=1)
    joint = by_name["checkpointing.off + loader.workers"]
    assert joint.kind == "joint"
    assert joint.measured.value == pytest.approx(66.3, abs=1.5)
    assert joint.predicted.high == pytest.approx(
        30 + 2 + 40.1, abs=1.5
    )  # 2 ms of its own work around what is computed twice
    assert [row[0] for row in promises(report)][2] == "together"
    assert any("2 changes were made at once" in note for note in report.notes)


def test_changes_that_share_accounts_have_one_outcome_and_their_time_counts_once():
    """All padding gone and the head on labelled rows alone: both save in the head."""
    lengths = {"rows": 8, "forwards": 1, "longest_slots": 4096, "row_squares": 8 * 512**2, "losses": 1}
    counts = {"slots": 8192, "real": 4096, "labelled": 800, "loss_rows": 8192, **lengths}
    shapes = {"shapes": [("8×1024", 80)]}
    padded = {name: 2 * ms for name, ms in CLEAN.items() if name.startswith(("forward", "backward"))}
    before = run(1, padded, counts=counts, sites=shapes)
    less = {"forward.lm_head": 0.5, "forward.loss": 0.2, "backward.lm_head": 1}
    after = run(2, less, counts={**counts, "slots": 4096, "loss_rows": 800}, sites={"shapes": [("8×512", 80)]})
    report, _, by_name = judged(before, after)
    joint = by_name["loss.labelled_rows + padding.longest"]
    singles = [by_name[name] for name in ("loss.labelled_rows", "padding.longest")]
    assert all(one.measured is None for one in singles)
    values = [one.predicted.value for one in singles]
    assert max(values) < joint.predicted.value < sum(values)
    assert joint.predicted.high <= sum(one.predicted.high for one in singles)
    assert all(remedy.outcome is None for finding in report.findings for remedy in finding.remedies)
    assert {row[5] for row in promises(report)[:2]} == {"only together"}


def test_more_tokens_in_a_step_are_compared_per_token():
    """Twice the tokens in a step of twice the time is no loss, and what is gained is gained per token."""
    before = run(1, {"recompute": 30}, counts={"slots": 4096, "real": 4096})
    after = run(2, {name: 2 * ms for name, ms in CLEAN.items()}, counts={"slots": 8192, "real": 8192})
    report, _, by_name = judged(before, after)
    assert report.figures["compare.step.wall"].value > 60
    assert by_name["checkpointing.off"].measured.value == pytest.approx(30, abs=1.5)
    assert "per real token" in by_name["checkpointing.off"].measured.method
    assert any("does not do the same work" in note for note in report.notes)


def test_another_setting_that_changed_takes_the_judgement_away_and_the_log_too():
    from stepprobe.analysis.outcome.log import pairs_of

    runs = evidence(run(1, {"recompute": 30}, bf16=False)), evidence(run(2, bf16=True))
    report, found = examine(*runs)
    assert found.judged[-1].held == "undecided"
    assert found.confounded == "bf16 False → True"
    assert pairs_of(found, runs, ("a", "b")) == []
    assert any(note.startswith("also changed: bf16 False → True") for note in report.notes)


def test_another_machine_takes_the_judgement_away():
    runs = (
        evidence(run(1, {"recompute": 30}), environment={"cpu.model": "A"}),
        evidence(run(2), environment={"cpu.model": "B"}),
    )
    assert examine(*runs)[1].confounded == "cpu.model A → B"


def test_a_run_of_another_model_is_held_to_nothing():
    report = compare(evidence(run(1, {"recompute": 30})), evidence(run(2, parameters=9, model="Other")))
    assert "outcome.measured" not in report.figures
    assert any(note.startswith("no outcome: the model is another one (Tiny of 1,000 par") for note in report.notes)


def test_another_script_whose_model_was_not_seen_is_held_to_nothing():
    fakes = [FakeProcess(**METHODS).steps(30, {**CLEAN, "recompute": 30}, COUNTS).end() for _ in range(2)]
    first, second = (evidence(fake) for fake in fakes)
    other = type(second)(
        **{**{name: getattr(second, name) for name in second.__struct_fields__}, "subject": "x other.py"}
    )
    assert any(
        "the scripts are different ones (train.py before, other.py" in note for note in compare(first, other).notes
    )
    assert not any("scripts" in note for note in compare(first, second).notes)


def test_nothing_promised_and_nothing_made_are_said():
    assert any("promised nothing" in note for note in compare(evidence(run(1)), evidence(run(2))).notes)
    report = compare(evidence(run(1, {"recompute": 30})), evidence(run(2, {"recompute": 30})))
    assert any("of the 1 changes that the run before proposed, none shows" in note for note in report.notes)
    assert promises(report)[0][5] == "not made"
    assert report.findings == ()
    assert "outcome.held" not in report.figures


def test_a_busy_machine_is_left_out_of_promise_and_outcome():
    """A quarter of the recomputing was time put aside: it is neither promised nor gained."""
    before = run(1, {"recompute": 40, "forward.mlp": 24}, off_cpu={"recompute": 10, "forward.mlp": 10})
    report, _, by_name = judged(before, run(2, {"forward.mlp": 14}))
    one = by_name["checkpointing.off"]
    assert one.predicted.value == pytest.approx(30, abs=1)
    assert one.measured.value == pytest.approx(30, abs=1.5)
    assert "put aside" in one.measured.method
    assert any("a promise is smaller here" in note for note in report.notes)
    calm = compare(evidence(run(1, {"recompute": 40})), evidence(run(2)))
    assert not any("a promise is smaller here" in note for note in calm.notes)


def test_a_sync_site_that_moved_by_a_line_is_the_same_site():
    def sites(line, calls):
        return {"syncs": [(f"train.py:{line} step", "item", calls, calls, calls * 100_000)]}

    before = run(1, {"sync": 8}, sites=sites(10, 80 * 80))
    _, _, still = judged(before, run(2, {"sync": 8}, sites=sites(14, 80 * 80)))
    assert still == {}
    _, _, gone = judged(before, run(2, {"sync": 0.01}, sites=sites(14, 8)))
    assert list(gone) == ["sync.kept"]


def test_packing_and_grouping_are_told_apart_by_the_tokens_in_a_row():
    def batches(slots, real, *shapes):
        counts = {"slots": slots, "real": real, "labelled": 4000}
        return {"counts": counts, "sites": {"shapes": [(shape, 40) for shape in shapes]}}

    padded = {name: 2 * ms for name, ms in CLEAN.items() if name.startswith(("forward", "backward"))}
    before = run(1, padded, **batches(8192, 4096, "8×1024"))
    _, found, by_name = judged(before, run(2, **batches(4300, 4096, "8×537", "8×530")))
    assert (by_name, found.undecided) == ({}, True)  # shorter rows, in an order that was not counted: no packing
    assert list(judged(before, run(2, **batches(4300, 4096, "1×4300")))[2]) == ["padding.pack"]


def test_a_line_that_is_no_longer_sampled_is_gone_even_where_noise_hides_it():
    def sampled(line, hits):
        other = ("backward.mlp", "train.py:9 main", "torch/nn/x.py:1 f", 300)
        return {"samples": [other, *([("unattributed", line, line, hits)] if hits else [])]}

    before = run(1, {"unattributed": 30}, sites=sampled("train.py:30 wait", 100))
    noisy = run(2, {"unattributed": 29}, spread=0.1, sites=sampled("", 0))
    assert list(judged(before, noisy)[2]) == ["line.removed"]
    there = run(2, {"unattributed": 30}, sites=sampled("train.py:34 wait", 100))
    assert judged(before, there)[2] == {}
