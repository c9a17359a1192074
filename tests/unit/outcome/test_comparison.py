"""Two runs side by side."""

import random

import pytest

from stepprobe.analysis.outcome.comparison import compare
from stepprobe.analysis.wording import ends, signed
from stepprobe.errors import NotObserved, UsageError
from tests.fakes.records import CLEAN, COUNTS, METHODS, FakeProcess, evidence


def run(seed, accounts=None, n=80, spread=0.01, counts=None, off_cpu=None, **facts):
    noise, fake = random.Random(seed), FakeProcess(**{**METHODS, **facts})
    for _ in range(n):
        factor = noise.gauss(1, spread)
        fake.step(
            {name: ms * factor for name, ms in {**CLEAN, **(accounts or {})}.items()},
            {**COUNTS, **(counts or {})},
            off_cpu=off_cpu,
        )
    return fake.end()


def table(report, name):
    return next((table for table in report.tables if table.name == name), None)


def test_a_decided_gain_is_ok_and_names_the_account():
    report = compare(evidence(run(1, {"data.fetch": 40})), evidence(run(1)))
    assert report.verdict == "ok"
    wall = report.figures["compare.step.wall"]
    assert wall.value == pytest.approx(-39.8, abs=1)
    assert wall.low < wall.value < wall.high < 0
    assert report.headline.startswith("faster: −39.8 ms per step, −28.5%")
    assert "most in data · fetch rows" in report.headline
    assert report.headline.endswith("; one run a side: what runs of one training differ by is not in it (--repeat)")
    rows = {row[0]: row for row in table(report, "accounts").rows}
    assert rows["data · fetch rows"][-1] == "less"
    assert rows["optimizer"][-1] == "undecided"


def test_a_decided_loss_fails():
    report = compare(evidence(run(1)), evidence(run(2, {"optimizer": 12})))
    assert report.verdict == "fail"
    assert report.headline.startswith("slower: +")
    assert "most in optimizer" in report.headline


def test_equal_runs_are_undecided():
    verdicts = [compare(evidence(run(2 * k)), evidence(run(2 * k + 1))).verdict for k in range(20)]
    assert verdicts.count("undecided") >= 17


def drawn(noise, sway=0.02):
    """A run whose steps scatter by 0.5 %, and whose mean lies anywhere: the machine was another one for all of it."""
    factor = noise.gauss(1, sway)
    return evidence(run(noise.random(), {name: ms * factor for name, ms in CLEAN.items()}, n=40, spread=0.005))


def test_what_runs_differ_by_is_decided_by_repeats_alone():
    noise = random.Random(5)
    draws = [[drawn(noise) for _ in range(5)] for _ in range(30)]
    alone = [compare(before, after).verdict for before, after, *_ in draws]
    repeated = [compare(before, after, again).verdict for before, after, *again in draws]
    assert alone.count("undecided") < 10
    assert repeated.count("undecided") >= 26


def test_a_change_beyond_what_runs_differ_by_stays_decided():
    noise = random.Random(3)
    before, *again = (drawn(noise, sway=0.002) for _ in range(4))
    report = compare(before, evidence(run(9, {"optimizer": 30})), again)
    assert report.verdict == "fail"
    wall = report.figures["compare.step.wall"]
    assert "3 repeats" in wall.method
    assert "one run a side" not in report.headline
    assert [row[0] for row in table(report, "repeats").rows] == ["before", "repeat 1", "repeat 2", "repeat 3"]
    assert not any("each side is one run" in note for note in report.notes)


def test_without_repeats_it_is_said_what_the_interval_does_not_hold():
    report = compare(evidence(run(1)), evidence(run(2)))
    assert any("not from run to run" in note and "--repeat" in note for note in report.notes)
    assert table(report, "repeats") is None


def test_repeats_give_an_interval_where_a_run_is_too_short_for_one():
    short = [evidence(run(seed, n=5)) for seed in range(5)]
    assert compare(short[0], short[1], short[2:]).figures["compare.step.wall"].low is not None


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (run(3, parameters=77), "the model is another one"),
        (run(3, parameters=50, loader_workers=4), "loader_workers"),
        (run(3, parameters=50, counts={"slots": 8192}), "slots of a step 4,096 → 8,192"),
    ],
)
def test_a_repeat_of_another_training_is_refused(other, why):
    before, again = evidence(run(1, parameters=50)), evidence(run(4, parameters=50, counts={"slots": 4500}))
    with pytest.raises(UsageError, match=f"repeat 2 .*no repeat of the run before.*{why}"):
        compare(before, evidence(run(2, parameters=50)), [again, evidence(other)])


def test_few_steps_decide_nothing():
    report = compare(evidence(run(1, {"data.fetch": 40}, n=5)), evidence(run(2, n=5)))
    assert report.verdict == "undecided"
    assert "interval not known" in report.headline


def test_a_difference_that_a_busy_machine_makes_decides_nothing():
    """Wall time +20 ms, all of it off the CPU while computing."""
    report = compare(evidence(run(1)), evidence(run(2, {"forward.mlp": 34}, off_cpu={"forward.mlp": 20})))
    assert report.figures["compare.step.wall"].low > 0
    assert report.verdict == "undecided"
    assert report.headline.startswith("undecided: +")
    assert report.headline.endswith("; a busy machine")
    assert "the training thread was put aside in 0% of its computing before and in" in report.reason
    rows = {row[0]: row for row in table(report, "accounts").rows}
    assert rows["wall"][-1] == "more"
    assert rows["CPU time"][-1] != "more"
    assert rows["CPU time"][1:3] == (pytest.approx(100, rel=0.01), pytest.approx(100, rel=0.01))


def test_a_difference_that_the_cpu_time_shows_too_is_decided_with_a_caution():
    report = compare(evidence(run(1)), evidence(run(2, {"forward.mlp": 54}, off_cpu={"forward.mlp": 12})))
    assert report.verdict == "fail"
    assert report.headline.startswith("slower: +")
    assert "a busy machine" in report.headline
    assert report.reason == "the whole interval lies above zero"


def test_waiting_for_rows_is_no_busy_machine():
    report = compare(evidence(run(1)), evidence(run(2, {"data.fetch": 20}, off_cpu={"data.fetch": 19})))
    assert report.verdict == "fail"
    assert "busy" not in report.headline


def test_swapping_the_runs_swaps_the_sign():
    first, second = evidence(run(1, {"data.fetch": 40})), evidence(run(2))
    there, back = (report.figures["compare.step.wall"] for report in (compare(first, second), compare(second, first)))
    assert (back.value, back.low, back.high) == pytest.approx((-there.value, -there.high, -there.low))


def test_token_rates_are_compared():
    report = compare(evidence(run(1)), evidence(run(1, counts={"real": 2048})))
    assert report.figures["compare.tokens.real_per_second"].value == pytest.approx(-20480, rel=0.02)
    assert [row[-1] for row in table(report, "rates").rows] == ["undecided", "less", "undecided"]


def test_what_else_differs_is_shown():
    report = compare(
        evidence(run(1), environment={"machine": "a"}),
        evidence(run(2, optimizer_fused=True), environment={"machine": "b", "threads": "1"}),
    )
    assert table(report, "environment").rows == (
        ("job optimizer_fused", "absent", "True"),
        ("machine", "a", "b"),
        ("threads", "absent", "1"),
    )
    assert table(compare(evidence(run(1)), evidence(run(2))), "environment") is None


def test_reservations_of_both_runs_are_kept():
    report = compare(evidence(run(1, n=5)), evidence(run(2), status="signal 9"))
    assert [note for note in report.notes if note.startswith("before: only 5 steady steps")]
    assert [note for note in report.notes if note.startswith("after: ") and "signal 9" in note]


def test_what_both_runs_have_against_them_is_said_once():
    notes = compare(evidence(run(1)), evidence(run(2))).notes
    assert len(notes) == len(set(notes))
    assert [note for note in notes if note.startswith("both: observing took 0.10 ms")]
    assert not [note for note in notes if "observing took" in note and not note.startswith("both: ")]


def test_accounts_that_would_read_zero_are_left_out_and_counted():
    shown = table(compare(evidence(run(1, {"gc": 0.02})), evidence(run(2, {"gc": 0.03}))), "accounts")
    assert "garbage collection" not in [row[0] for row in shown.rows]
    assert "1 accounts below 0.05%" in shown.caption


def test_numbers_in_sentences():
    assert [signed(value, ".2f") for value in (-1.5, 1.5, -0.001, 0.0)] == ["−1.50", "+1.50", "0.00", "0.00"]
    assert ends(-12.34, -10.06) == "−12.3 to −10.1"
    assert ends(None, 1.0) == ""


def test_other_probes_and_empty_runs_are_refused():
    good = evidence(run(1))
    with pytest.raises(UsageError, match="'mask'"):
        compare(good, evidence(run(1), probe="mask"))
    with pytest.raises(NotObserved, match="second run"):
        compare(good, evidence(status="exit 1"))
