"""Changes to how rows are put into batches: each is credited where it was made, and where another was it is not."""

import random

import pytest

from stepprobe.analysis.ledger.rows import Rows
from stepprobe.analysis.outcome.batching import longer_rows
from stepprobe.analysis.outcome.sign import Undecided
from tests.fakes.records import CLEAN, METHODS, FakeProcess
from tests.unit.outcome.planted import FIXED, ROWS, asked, batches, counted, credited, gains, training, verdicts
from tests.unit.outcome.test_outcome import MODEL, judged, promises


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


SPREAD = ("longest_slots", "row_squares", "mixed_squares")
GROUPS = {"train_sampling_strategy": "group_by_length"}


def few(lengths=True):
    """Twelve steps of which each row holds two thirds of what it holds on average: a short run, as a profile is."""
    dice, fake = random.Random(3), FakeProcess(**METHODS, **MODEL, train_sampling_strategy="random")
    shapes = {}
    for rows in batches("chance")[:12]:
        rows = [max(5, one * 2 // 3) for one in rows]
        slots = ROWS * max(rows)
        shapes[f"{ROWS}×{max(rows)} masked"] = 1
        seen = counted(rows, max(rows))
        seen = (
            seen if lengths else {name: seen[name] for name in ("slots", "real", "labelled", "forwards", "backwards")}
        )
        spent = {"forward.mlp": 3 + slots * 0.004, "backward.mlp": 5 + slots * 0.008, "optimizer": 5}
        factor = dice.gauss(1, 0.01)
        fake.step({name: ms * factor for name, ms in spent.items()}, seen)
    return fake.sites(shapes=list(shapes.items())).end()


@pytest.mark.parametrize("lengths", [True, False])
def test_grouping_that_was_turned_on_is_seen_where_rows_are_longer_by_chance(lengths):
    after = training(2, "grouped", lengths=lengths, **GROUPS)
    assert longer_rows(gains(few(lengths), after))
    assert "group_by_length" in asked("padding.group", few(lengths), after)
    assert asked("padding.pack", few(lengths), after) == ""
    assert asked("forecast.packing", few(lengths), after) == ""


def test_longer_rows_without_a_setting_are_no_grouping():
    assert asked("padding.group", few(), training(2, "grouped")) == ""
    assert isinstance(asked("padding.pack", few(), training(2, "grouped")), Undecided)


def test_packing_that_was_turned_on_with_grouping_explains_longer_rows():
    after = training(2, "grouped", packing=True, **GROUPS)
    assert asked("padding.group", few(), after) == ""
    assert "tokens in a row" in asked("padding.pack", few(), after)


def test_grouping_that_was_turned_on_and_ignored_is_not_seen():
    assert asked("padding.group", few(), training(2, **GROUPS)) == ""


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


def spiky(seed, slow, *, every=20, grouped=False):
    """One batch in many holds a row of 500 tokens and makes a slow step of it; its other rows hold 40."""
    noise, fake, shapes = random.Random(seed), FakeProcess(**METHODS, **MODEL), {}
    for number in range(160):
        long = number % every == 0
        rows = [500] * ROWS if long and grouped else [500 if long else 50, *[40 + number % 10] * (ROWS - 1)]
        slots = ROWS * max(rows)
        factor = noise.gauss(1, 0.01)
        spent = {"forward.mlp": slots * 0.01, "optimizer": 5, "unattributed": slow if number % every == 3 else 0.1}
        fake.step({name: ms * factor for name, ms in spent.items()}, counted(rows, max(rows)))
        shapes[f"{ROWS}×{max(rows)} masked"] = shapes.get(f"{ROWS}×{max(rows)} masked", 0) + 1
    return fake.sites(shapes=list(shapes.items())).end()


def test_slow_steps_that_padding_made_are_no_change_of_their_own():
    """Rows of 500 tokens lie together afterwards, so that fewer batches are long."""
    report, _, by_name = judged(spiky(1, 0.1), spiky(2, 0.1, every=160, grouped=True))
    assert list(by_name) == ["padding.group"]
    assert not any("look at step" in row[0] for row in promises(report))


def test_slow_steps_that_are_gone_where_rows_were_grouped_are_undecided():
    """Their time alone does not tell."""
    report, _, by_name = judged(spiky(1, 300), spiky(2, 0.1, every=160, grouped=True))
    assert list(by_name) == ["padding.group"]
    assert any("slow steps" in note and "“group rows by length” could have" in note for note in report.notes)


def test_slow_steps_that_are_gone_by_themselves_are_a_change():
    assert credited(spiky(1, 300), spiky(2, 0.1)) == ["steps.spikes"]


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


def test_rows_below_another_length_than_the_window_are_no_fast_path():
    """Padded to the longest row, the longest is shorter than the fixed length was, and longer than the window."""
    less = {"forward.attention": 20}, {"forward.attention": 5}
    before, after = training(1, padding="fixed", more=less[0]), training(2, more=less[1])
    assert asked("forecast.fast_path", before, after, "max_length=511: below the window of 512 no mask is made")
    assert not asked("forecast.fast_path", before, after, "max_length=127: below the window of 128 no mask is made")
