"""A faster dataset, workers and less to load: each is credited where it was made, and where another was it is not."""

from tests.fakes.records import CLEAN
from tests.unit.outcome.planted import credited, steps, training
from tests.unit.outcome.test_outcome import judged

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


def test_less_padding_where_rows_are_loaded_is_no_faster_dataset():
    """A tokenizer that pads takes longer for a row: padding to the longest made it cheaper by more than its slots."""
    known = {"loader_workers": 0}
    before = training(1, padding="fixed", more={"data.fetch": 20}, **known)
    report, found, by_name = judged(before, training(2, more={"data.fetch": 0.5}, **known))
    assert list(by_name) == ["padding.longest"]
    assert found.undecided
    assert any("padded less where they are loaded" in note for note in report.notes)
