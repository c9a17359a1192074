"""What a profile says of the loss: one share of the step counts, and the choice of a chunk says what it rests on."""

import pytest

from tests.fakes.records import COUNTS, METHODS, FakeProcess
from tests.unit.profile.test_report import TERMS, derived, noted, planted


def losses(chunks, **more):
    report = derived(planted(noise=0.0).scaling().losses((8, 128), 12.0, chunks, **more).end())
    table = next(one for one in report.tables if one.name == "loss")
    return report, {row[0]: row for row in table.rows}


def test_the_share_of_the_loss_is_of_the_micro_step_at_its_shape():
    report, _ = losses({})
    whole = TERMS[0] + 1024 * (TERMS[1] + 128 * TERMS[2])
    assert report.figures["ce.share"].value == pytest.approx(12 / whole, rel=1e-4)
    assert "measured at the same shape" in report.figures["ce.share"].method
    table = next(one for one in report.tables if one.name == "loss")
    assert f"{1 / (1 - 12 / whole):.2f}×" in table.caption


def test_without_that_shape_the_fit_stands_for_it():
    report = derived(planted(noise=0.0).scaling().losses((4, 256), 12.0, {}).end())
    assert "that the fit gives" in report.figures["ce.share"].method
    whole = TERMS[0] + 1024 * (TERMS[1] + 256 * TERMS[2])
    assert report.figures["ce.share"].value == pytest.approx(12 / whole, rel=1e-3)


def test_the_best_chunk_has_the_fewest_bytes_of_those_that_are_fast():
    report, rows = losses({64: 30.0, 128: 12.9, 256: 12.2, 512: 12.1})
    assert report.figures["ce.best_chunk_rows"].value == 256
    assert rows["in chunks of 256 rows"][4] == "chosen"
    assert rows["at once"][4] == "fastest"
    assert rows["in chunks of 64 rows"][4] == "do not use"
    assert noted(report, "chunks of 64 rows", "do not use it")


LOSS = {"forward.lm_head": 10.0, "forward.loss": 4.0, "backward.lm_head": 20.0, "backward.loss": 6.0, "optimizer": 60.0}
"""A step of 100 ms, 40 of them in output layer and loss."""


def with_loss_in_its_steps(**facts):
    """The loss driven alone takes 12 ms of a micro-step of some 37 ms; the script's own steps say 40%."""
    experiments = planted(noise=0.0, batches=[[128] * 8] * 9).scaling().losses((8, 128), 12.0, {256: 12.2})
    process = FakeProcess(**{**METHODS, **facts}).steps(60, {**LOSS}, COUNTS).end()
    return derived(experiments.end(), process)


def test_one_share_of_the_loss_counts_and_the_other_says_of_what_it_is():
    report = with_loss_in_its_steps()
    assert report.figures["ce.step_share"].value == pytest.approx(0.4)
    assert sum(
        row.share for row in report.ledger if row.account in LOSS and row.account != "optimizer"
    ) == pytest.approx(0.4)
    caption = next(one for one in report.tables if one.name == "loss").caption
    assert (
        "By the ledger it is 40.0% of the script's own step: no change to the loss can make that faster than 1.67×."
        in caption
    )
    assert "of a micro-step that is driven at this shape, which is another step" in caption
    assert caption.count("faster than") == 1
    finding = next(one for one in report.findings if one.kind == "loss.share")
    assert finding.title.startswith("Output layer and loss take 40% of the step:")
    assert finding.title.endswith("1.67×.")
    assert finding.cost.value == pytest.approx(40)
    assert finding.cost.high == pytest.approx(40), "as sure as the ledger, and not as far off as the driven share"
    assert "100.0% of forward and backward by the ledger" in report.figures["saved.chunked_loss"].method
    assert "driven alone" in report.figures["saved.chunked_loss"].method


@pytest.mark.parametrize(
    ("missing", "facts"), [("", {"device": "cuda:0"}), ("forward.lm_head", {}), ("forward.loss", {})]
)
def test_where_the_ledger_cannot_tell_the_loss_it_is_the_driven_one(missing, facts, monkeypatch):
    monkeypatch.setitem(LOSS, "unattributed", LOSS.get(missing, 0.0))
    monkeypatch.delitem(LOSS, missing, raising=False)
    report = with_loss_in_its_steps(**facts)
    assert "ce.step_share" not in report.figures
    caption = next(one for one in report.tables if one.name == "loss").caption
    assert "It is 32.9% of a micro-step that is driven at this shape: no change" in caption
    assert "ledger" not in caption


def test_slots_without_a_label_cost_what_the_ledger_says_of_output_layer_and_loss():
    """The change was tried and saved next to nothing; the cost is still that of the four accounts above."""
    experiments = planted(noise=0.0, batches=[[128] * 8] * 9, labelled_share=0.25).scaling()
    experiments.losses((8, 128), 12.0, {}).remedy("labelled_rows", 0.99, (8, 128))
    process = FakeProcess(**METHODS).steps(60, LOSS, {**COUNTS, "labelled": 1024}).end()
    report = derived(experiments.end(), process)
    finding = next(one for one in report.findings if one.kind == "loss.unlabelled")
    assert finding.cost.value == pytest.approx(40 * 0.75)
    assert finding.remedies[0].predicted == report.figures["saved.labelled_rows"]


def test_a_chunk_that_saves_no_bytes_is_not_chosen_over_the_loss_at_once():
    report, rows = losses({512: 12.1}, peak_bytes=1 << 25)
    assert report.figures["ce.best_chunk_rows"].value == 1024
    assert rows["at once"][4] == "chosen, fastest"
    assert rows["in chunks of 512 rows"][4] == ""


def chosen(blocks):
    """Chunks of 128 and of 256 rows, each block's ms of the two as given, beside 20 ms at once."""
    experiments = planted(noise=0.0).scaling()
    for block, spent in enumerate(blocks):
        experiments.measured("loss", block, 8, 128, 20.0, loss=7.0, gradient=1.0, peak_bytes=1 << 24)
        for rows, ms in zip((128, 256), spent, strict=True):
            line = {"loss": 7.0, "gradient": 1.0, "peak_bytes": rows * 4096}
            experiments.measured("loss_chunk", block, 8, 128, ms, variant=str(rows), **line)
    report = derived(experiments.end())
    table = next(one for one in report.tables if one.name == "loss")
    return report, {row[0]: row[4] for row in table.rows}, table.caption


def test_the_choice_beside_a_faster_chunk_says_what_it_rests_on():
    report, words, caption = chosen([(12.3, 12.0)] * 9)
    assert words == {"at once": "", "in chunks of 256 rows": "fastest", "in chunks of 128 rows": "chosen"}
    said = "hosen: 128 rows, the fewest bytes of all that take at most 5% longer than the fastest"
    assert caption.endswith(f"C{said}.")
    assert report.figures["ce.best_chunk_rows"].method.startswith(f"c{said}; ")


def test_a_choice_between_times_that_scatter_is_undecided():
    report, words, caption = chosen([(9.0, 12.0), (15.0, 12.0), (12.3, 12.0)] * 3)
    assert words == {"at once": "", "in chunks of 256 rows": "fastest", "in chunks of 128 rows": "undecided"}
    assert "Undecided: 128 rows takes fewer bytes than 256 rows, the fastest, but the repetitions scatter" in caption
    assert report.figures["ce.best_chunk_rows"].method.startswith("undecided: ")


def test_where_bytes_are_missing_rows_decide_and_it_is_said():
    experiments = planted(noise=0.0).scaling()
    for block in range(9):
        experiments.measured("loss", block, 8, 128, 20.0, loss=7.0, gradient=1.0, peak_bytes=1 << 24)
        for rows, peak in ((128, 1 << 20), (256, None)):
            more = {"variant": str(rows), "loss": 7.0, "gradient": 1.0, "peak_bytes": peak}
            experiments.measured("loss_chunk", block, 8, 128, 12.0 + rows / 1000, **more)
    method = derived(experiments.end()).figures["ce.best_chunk_rows"].method
    assert method.startswith("chosen: 128 rows, the fastest; no other within 5% of it takes fewer rows")


@pytest.mark.parametrize(("at_once", "chunk"), [(0.0, 12.0), (12.0, 0.0), (0.0, 0.0)])
def test_what_took_no_time_by_the_clock_was_not_measured(at_once, chunk):
    report = derived(planted(noise=0.0).scaling().losses((8, 128), at_once, {256: chunk}).end())
    assert ("ce.share" in report.figures) == bool(at_once)
    assert "ce.best_chunk_rows" not in report.figures


def test_a_chunk_of_all_rows_says_nothing_of_the_loss_at_once():
    _, rows = losses({1024: 11.0}, loss=9.0)
    assert rows["in chunks of 1,024 rows"][4] == "not equal: loss"
    assert rows["at once"][4] == "chosen, fastest"


def test_a_loss_at_once_can_be_best():
    report, _ = losses({128: 14.0, 256: 13.5})
    assert report.figures["ce.best_chunk_rows"].value == 1024


@pytest.mark.parametrize(("more", "what"), [({"loss": 7.01}, "loss"), ({"gradient": 1.01}, "gradient")])
def test_a_chunk_that_computes_something_else_is_not_used(more, what):
    report, rows = losses({256: 12.0}, **more)
    assert rows["in chunks of 256 rows"][4] == f"not equal: {what}"
    assert report.figures["ce.best_chunk_rows"].value == 1024
    assert noted(report, f"another {what}")


def test_what_is_logged_beside_the_loss_is_told_apart():
    experiments = planted(noise=0.0).scaling().losses((8, 128), 12.0, {})
    for block in range(9):
        experiments.measured("loss_metric", block, 8, 128, 18.0, variant="entropy", peak_bytes=1 << 20)
    table = next(one for one in derived(experiments.end()).tables if one.name == "loss")
    assert ("entropy (logged)", pytest.approx(18), pytest.approx(1.5), 1 << 20, "") in table.rows
