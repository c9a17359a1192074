"""The report of a profile: verdicts, what is refused, and what is said about what is missing."""

import msgspec
import pytest

from stepprobe.analysis.outcome import comparison
from stepprobe.analysis.profile.growth import fit_of
from stepprobe.analysis.profile.repeated import middle, paired, ratio
from stepprobe.errors import EvidenceError, UsageError
from stepprobe.probes import profile
from tests.fakes.experiments import FakeExperiments, evidence
from tests.fakes.records import clean_process

TERMS = (6.3, 0.0241, 41.9e-6)


def planted(**harness):
    return FakeExperiments(TERMS, **{"noise": 0.02, **harness})


def derived(experiments, *processes, **changes):
    return profile.derive(evidence(experiments, *processes, **changes))


def noted(report, *words):
    return any(all(word in note for word in words) for note in report.notes)


def test_the_fit_stands_over_its_shapes():
    report = derived(planted(noise=0.0).quiet().scaling().end())
    caption = next(one for one in report.tables if one.name == "scaling").caption
    assert caption.startswith("fixed 6.3 ms · 24.1 µs a token · 41.9 ns a token·length; held-out error 0.0%.")
    assert report.verdict == "ok"
    assert report.figures["fit.per_token"].unit == "µs/token"
    assert report.figures["fit.condition"].value < 4


def test_the_steps_beside_the_experiments_have_their_ledger():
    report = derived(planted().scaling().end(), clean_process())
    assert report.figures["step.wall"].value == pytest.approx(100, rel=0.01)
    assert {row.account for row in report.ledger} >= {"forward.mlp", "optimizer"}
    assert report.environment["job device"] == "cpu"


@pytest.mark.parametrize(
    ("harness", "clock"),
    [
        ({"threads": 1}, "CPU time of the one thread"),
        ({"threads": 4}, "wall time"),
        ({"device": "cuda:0"}, "wall time"),
    ],
)
def test_the_clock_is_named(harness, clock):
    report = derived(planted(**harness).scaling().end())
    assert clock in report.figures["fit.fixed"].method
    assert clock in report.environment["clock of the experiments"]


def test_a_card_is_timed_by_its_own_events():
    experiments = planted(device="cuda:0", noise=0.0)
    for block in range(9):
        for shape in ((1, 128), (8, 128), (1, 1024)):
            experiments.measured(
                "scaling", block, *shape, 500.0, device_ns=round(1e6 * (2 + shape[0] * shape[1] / 100))
            )
    report = derived(experiments.end())
    assert report.figures["fit.fixed"].value == pytest.approx(2)
    assert "events on the card" in report.figures["fit.fixed"].method


def test_wall_time_includes_what_thread_time_does_not():
    thread, wall = (derived(planted(noise=0.0, threads=n).scaling().end()) for n in (1, 2))
    assert wall.figures["fit.fixed"].value == pytest.approx(1.1 * thread.figures["fit.fixed"].value, rel=1e-4)


def test_no_experiments_are_not_measured():
    report = derived(None, clean_process(), status="exit 1")
    assert report.verdict == "not measured"
    assert "no experiment was begun" in report.headline
    assert "exit 1" in report.headline
    assert report.ledger


def test_a_busy_machine_is_refused_with_how_busy_it_is():
    report = derived(planted().quiet(refused="busy: wait, or measure with --anyway", load=7.5, others_share=0.6))
    assert report.verdict == "not measured"
    assert "7.5 runnable tasks on 2 cores, others took 60%" in report.headline
    assert report.headline.count("--anyway") == 1
    assert not noted(report, "no fit")


def test_anyway_on_a_quiet_machine_marks_nothing():
    report = derived(planted().quiet(anyway=True, busy="", load=0.2).scaling().end())
    assert "busy" not in report.reason
    assert not any("busy machine" in figure.method for figure in report.figures.values())


def test_anyway_marks_every_figure_of_the_experiments():
    experiments = planted(batches=[[256, 9]] * 20).quiet(anyway=True, load=7.5).scaling().padding((8, 256), (8, 100))
    report = derived(experiments.end(), clean_process())
    assert report.verdict == "warn"
    asked = {name for name, figure in report.figures.items() if "busy machine" in figure.method}
    assert asked == {
        name for name in report.figures if name.startswith(("fit.", "penalty.", "ce.", "forecast.", "saved."))
    }
    assert {"fit.fixed", "penalty.measured", "forecast.bucketing"} <= asked
    assert noted(report, "7.5 runnable tasks", "as asked")


def test_a_replay_with_another_loss_is_not_the_users_step():
    same = derived(planted(captured_loss=7.0, replayed_loss=7.0000001).scaling().end())
    assert same.verdict == "ok"
    assert "replay.loss" in {one.name for one in same.controls}
    other = derived(planted(captured_loss=7.0, replayed_loss=6.9).scaling().end())
    assert other.verdict == "not measured"
    assert "not the script's own" in other.headline
    assert "--harness" in other.headline


def test_a_refused_fit_keeps_the_rest():
    report = derived(planted().scaling(shapes=((1, 128), (1, 1024))).padding((8, 256), (8, 100)).end())
    assert report.verdict == "not measured"
    assert "three terms need three shapes" in report.headline
    assert "penalty.measured" in report.figures
    assert "penalty.predicted" not in report.figures
    assert not any(name.startswith(("fit.", "forecast.")) for name in report.figures)


@pytest.mark.parametrize(
    ("reason", "text", "said"),
    [
        ("time", "its warm-up alone should take 9 s", ", the time was up; give the experiments more seconds"),
        ("refused", "ValueError: 128 tokens only", ": ValueError: 128 tokens only"),
    ],
)
def test_a_fit_without_its_shapes_says_what_kept_them_away(reason, text, said):
    lines = planted().dropped(rows=1, length=1024, reason=reason, text=text).scaling(shapes=((1, 128), (8, 128)))
    report = derived(lines.end())
    assert "2 shapes were measured, and three terms need three shapes" in report.headline
    assert f"1×1024 was dropped{said}" in report.headline


def test_a_fit_without_its_shapes_says_what_stopped_the_experiments():
    report = derived(planted().scaling(shapes=((1, 128),)).end(reason="interrupted"))
    assert "three shapes: the experiments were stopped: interrupted" in report.headline


def test_a_planted_drift_is_refused():
    report = derived(planted(drift=0.04).scaling().end())
    assert report.verdict == "not measured"
    assert "the clock moved" in report.headline


def test_dropped_shapes_are_told():
    report = derived(
        planted(vocabulary=151_936)
        .dropped(rows=4, length=1024, text="tried to allocate 6.54 GiB")
        .dropped(experiment="heldout", reason="refused", text="length 4096 is over 2048")
        .dropped(experiment="loss_chunk", variant="8", reason="time")
        .scaling()
        .end()
    )
    assert noted(report, "scaling at 4×1024 was dropped (not enough memory)")
    assert noted(report, "6.54 GiB are 11,555 (±9) rows of fp32 logits", "2.82 × the 4,096 rows")
    assert noted(report, "the user's code refused it", "length 4096 is over 2048")
    assert noted(report, "loss chunk 8", "the time was up")


def test_what_was_not_put_back_is_told():
    report = derived(planted().scaling().end(optimizer=False))
    assert report.verdict == "warn"
    assert noted(report, "not what it was before", "optimizer")


def test_an_end_that_was_not_seen_is_told():
    report = derived(planted().scaling())
    assert report.verdict == "warn"
    assert noted(report, "did not end in order")
    assert noted(report, "not seen to be put back")
    stopped = derived(planted().scaling().end(reason="time"))
    assert noted(stopped, "stopped: time")


def test_no_held_out_shape_and_a_far_one_warn():
    assert "no shape was held out" in derived(planted().scaling(heldout=None).end()).reason
    assert "misses the shape" in derived(planted().scaling(beyond=0.4).end()).reason


def test_damaged_lines_are_refused():
    held = evidence(planted().scaling().end())
    name, content = next(iter(held.files.items()))
    changed = content.replace(b'"block":3', b'"block":4', 1)
    with pytest.raises(EvidenceError, match="damaged line"):
        profile.derive(msgspec.structs.replace(held, files={name: changed}))


def test_an_unfinished_line_is_dropped_and_told():
    held = evidence(planted().scaling().end())
    name, content = next(iter(held.files.items()))
    report = profile.derive(msgspec.structs.replace(held, files={name: content[:-10]}))
    assert report.verdict == "warn"
    assert noted(report, "never finished")
    begun = profile.derive(msgspec.structs.replace(held, files={name: b'{"type":"harn'}))
    assert begun.verdict == "not measured"
    assert noted(begun, "before its first line was finished")


def test_another_process_is_set_aside():
    held = evidence(planted().scaling().end())
    other = {"experiments-rank1-pid7.jsonl": planted(rank=1).scaling().end().data()}
    report = profile.derive(msgspec.structs.replace(held, files={**held.files, **other}))
    assert noted(report, "experiments-rank1-pid7.jsonl", "another process")


# --- padding


def test_the_penalty_is_measured_and_predicted():
    report = derived(planted(noise=0.01).scaling().padding((8, 512), (8, 128)).end())
    measured, predicted = (report.figures[f"penalty.{name}"] for name in ("measured", "predicted"))
    true = (TERMS[0] + 4096 * (TERMS[1] + 512 * TERMS[2])) / (TERMS[0] + 1024 * (TERMS[1] + 128 * TERMS[2]))
    assert measured.low < true < measured.high
    assert predicted.low < true < predicted.high
    table = next(one for one in report.tables if one.name == "penalty")
    assert "one micro-batch" in table.title
    assert table.caption.startswith("Rows × length, padded: 8 × 512; ")
    fixed, linear, square, whole = (row[3] for row in table.rows)
    assert fixed == 0
    assert linear == pytest.approx(3072 * TERMS[1], rel=0.1)
    assert square == pytest.approx(TERMS[2] * (8 * 512**2 - 8 * 128**2), rel=0.1)
    assert whole == pytest.approx(fixed + linear + square)


def test_no_padding_is_told():
    asked = planted().scaling().end()
    assert noted(derived(asked, clean_process()), "padding was not measured: the batches that were seen hold none")
    unmasked = clean_process().facts(**{"counts.real": "no attention mask: every slot counted"})
    assert noted(derived(asked, unmasked), "padding was not measured: without an attention mask it is not known")


# --- repetitions


def test_three_ratios_of_soup_339_decide_nothing():
    found = middle([0.94, 1.11, 1.08])
    assert not found.decides()


def test_a_true_5_percent_with_1_percent_scatter_is_decided_at_nine():
    import random

    decided = 0
    for seed in range(50):
        drawn = random.Random(seed)
        after = {block: 1.05 * (1 + 0.01 * drawn.gauss(0, 1)) for block in range(9)}
        before = {block: 1 + 0.01 * drawn.gauss(0, 1) for block in range(9)}
        found = paired(after, before)
        decided += found.decides()
    assert decided >= 48


def test_ratios_without_a_shared_block_or_enough_of_them():
    assert paired({1: 2.0}, {2: 1.0}) is None
    assert middle([1.0, 2.0]).half is None
    assert ratio([2.0, 2.0, 2.0], [1.0, 1.0, 1.0]).value == 2


# --- what reads it


def test_the_fit_of_a_run_is_what_the_lengths_read():
    content = fit_of(evidence(planted(noise=0.0).scaling().end()))
    terms = msgspec.json.decode(content)
    assert [terms[name] for name in "abc"] == pytest.approx(TERMS, rel=1e-4)
    with pytest.raises(UsageError, match="three terms need three shapes"):
        fit_of(evidence(planted().scaling(shapes=((1, 128), (1, 1024))).end()))
    with pytest.raises(UsageError, match="holds no experiments"):
        fit_of(evidence(None, clean_process()))


def test_two_profiles_compare_by_their_steps():
    runs = [evidence(planted().scaling().end(), clean_process()) for _ in range(2)]
    assert comparison.compare(*runs).verdict == "undecided"
