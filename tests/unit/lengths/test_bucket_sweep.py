"""The sweep: its guards see the faults that are there to be found, and it refuses a sweep that varies nothing."""

import numpy as np
import pytest

from stepprobe.analysis.lengths import batching, bucket_sweep, simulation
from stepprobe.analysis.lengths.bucket_sweep import sweep
from stepprobe.analysis.lengths.calibration import Counts
from stepprobe.analysis.lengths.cost import TOKENS, Cost
from stepprobe.analysis.lengths.options import Options, cut
from stepprobe.probes import bucket
from tests.fakes.lengths import cells_of, chat_mix, evidence_of

TIMED = Cost(30.0, 0.02, 1e-6, "a test", True)


def swept(lengths, sources=None, cost=TOKENS, **options):
    chosen = Options(**options)
    return sweep(cut(Counts(cells_of(lengths, sources)), chosen), chosen, cost)


@pytest.fixture(scope="module")
def mix():
    return chat_mix(40_000)


def test_a_sound_sweep_has_no_faults(mix):
    found = swept(*mix)
    assert found.faults == ()
    assert found.varied
    assert [one.waste for one in found.buckets] == sorted((one.waste for one in found.buckets), reverse=True)


def test_a_bucket_that_is_not_sorted_is_caught(mix, monkeypatch):
    monkeypatch.setattr(simulation, "sort_groups", lambda ranks: np.argsort(ranks[:, ::-1] * 0, axis=1, kind="stable"))
    faults = " ".join(swept(*mix).faults)
    assert "k = 1:" in faults
    assert "the same batches" in faults


def test_a_bucket_size_that_does_nothing_is_caught(mix, monkeypatch):
    whole = simulation.form
    monkeypatch.setattr(simulation, "form", lambda drawn, known, size, group: whole(drawn, known, size, size))
    faults = swept(*mix).faults
    assert any("the same batches" in one for one in faults)
    assert any("expected" in one for one in faults)


def test_a_random_order_that_is_not_random_is_caught(mix, monkeypatch):
    monkeypatch.setattr(batching, "rows_at_least", lambda known, size, group: known.at_least.astype(float))
    faults = swept(*mix).faults
    assert "k = 1 is not the random order" in faults
    assert any("the sorted rows" in one for one in faults)


def test_a_cost_that_rises_is_caught(mix, monkeypatch):
    whole = batching.rows_at_least
    monkeypatch.setattr(
        batching, "rows_at_least", lambda known, size, group: whole(known, size, group) * (1 + group / 1e5)
    )
    assert any(one.startswith("cost rises") for one in swept(*mix).faults)


ALMOST_EQUAL = {
    "two of 270 are shorter": [1024] * 268 + [206, 893],
    "one in eight of 270 is shorter": [2048] * 235 + list(range(1000, 2050, 30)),
    "one in twenty is shorter": [512] * 1900 + list(range(100, 500, 4)),
    "one is longer": [64] * 203 + [900],
    "few rows, any length": list(range(1, 22)),
    "one long row in a last batch of one": [9] * 16 + [5000],
    "a step and two rows": [700] * 8 + [20, 30],
}


@pytest.mark.parametrize("lengths", ALMOST_EQUAL.values(), ids=ALMOST_EQUAL)
@pytest.mark.parametrize("options", [{}, {"ranks": 2}, {"batch_size": 3}, {"multiple": 64}], ids=str)
def test_rows_of_almost_one_length_are_no_fault(lengths, options):
    assert swept(np.array(lengths), **options).faults == ()
    assert swept(np.array(lengths), cost=TIMED, **options).faults == ()


def test_a_bucket_that_is_not_sorted_is_caught_in_few_rows(monkeypatch):
    monkeypatch.setattr(simulation, "sort_groups", lambda ranks: np.argsort(ranks[:, ::-1] * 0, axis=1, kind="stable"))
    assert any("expected" in one for one in swept(ALMOST_EQUAL["one in eight of 270 is shorter"]).faults)


def test_no_group_reaches_over_the_end_of_an_epoch():
    """Of 20 rows, groups of eight: two an epoch, in which no row comes twice."""
    known = cut(Counts(cells_of(range(1, 21))), Options()).known
    drawn = simulation.draw(cells_of(range(1, 21)), known, None)
    assert all(len(set(drawn.lengths[start : start + 20])) == 20 for start in range(0, len(drawn.lengths), 20))
    assert simulation.form(drawn, known, 4, 8).groups == 2 * len(drawn.lengths) // 20


def test_rows_of_one_length_after_the_cut_are_said_to_be():
    report = bucket.derive(evidence_of("bucket", np.array([3000] * 268 + [206, 893]), max_length=1024))
    assert report.verdict == "undecided"
    assert "268 of 270 rows (99.3%) have one length after the cut, 1,024 tokens" in report.headline
    some = bucket.derive(evidence_of("bucket", np.array(ALMOST_EQUAL["one in eight of 270 is shorter"])))
    assert some.verdict == "ok"
    assert any("have one length, 2,048 tokens: bucketing can gain" in note for note in some.notes)
    caption = next(table.caption for table in some.tables if table.name == "buckets")
    assert "Effective batch" not in caption  # one source: there is no such column


def test_a_fault_makes_the_report_not_measured(mix, monkeypatch):
    monkeypatch.setattr(simulation, "sort_groups", lambda ranks: np.argsort(ranks * 0, axis=1, kind="stable"))
    report = bucket.derive(evidence_of("bucket", *mix))
    assert report.verdict == "not measured"
    assert "please report this" in report.headline


@pytest.mark.parametrize(
    ("lengths", "options", "reason"),
    [
        ([77] * 1000, {}, "all rows have the same length"),
        ([500, 700, 900] * 300, {"max_length": 100}, "all rows are cut to the same length"),
        ([10, 20, 30], {}, "not larger than one step"),
        ([10, 20, 30] * 100, {"batch_size": 1}, "a batch of one row is never padded"),
        ([10, 20, 30] * 100, {"multiple": 64}, "padded to this multiple"),
    ],
)
def test_a_sweep_that_varies_nothing_is_refused(lengths, options, reason):
    report = bucket.derive(evidence_of("bucket", np.array(lengths), **{k: v for k, v in options.items() if v}))
    assert report.verdict == "undecided"
    assert "the sweep varied nothing" in report.headline
    assert reason in report.headline
    assert report.figures["bucket.best_speedup"].value == pytest.approx(1.0)


def test_the_trap_of_several_ranks(mix):
    """A bucket of k batches of one rank gains nothing up to k = W; neighbours of a common bucket do."""
    found = swept(*mix, cost=TIMED, ranks=8)
    first = found.buckets[0]
    by_size = {one.size: one for one in found.buckets}

    def gain(one, cost, slowest):
        return first.cost * first.slowest / (cost * slowest)

    for size in (2, 4, 8):
        one = by_size[size]
        assert gain(one, one.cost_per_rank, one.slowest_per_rank) == pytest.approx(1.0, abs=0.01)
        assert gain(one, one.cost, one.slowest) > 1.3
    one = by_size[64]
    assert gain(one, one.cost, one.slowest) > 1.5 * gain(one, one.cost, one.slowest_single)


def test_the_shipped_group_counts_the_batches_of_one_rank(mix):
    one, eight = swept(*mix).shipped, swept(*mix, ranks=8).shipped
    assert one.group == eight.group == 400
    assert one.waste == pytest.approx(eight.waste)
    assert swept([3, 5] * 60).shipped.group == 24


def test_sources_that_go_with_length_cost_diversity(mix):
    lengths, kinds = mix
    found = {one.size: one.mixing for one in swept(lengths, kinds).buckets}
    assert found[1].effective == pytest.approx(8.0, rel=0.02)
    assert found[64].effective < 2.5
    unrelated = np.random.default_rng(5).integers(0, 4, len(lengths))
    assert {one.size: one.mixing for one in swept(lengths, unrelated).buckets}[64].effective == pytest.approx(
        8, rel=0.03
    )


def test_the_order_of_formed_batches_is_a_sawtooth(mix):
    found = {one.size: one.formed for one in swept(*mix).buckets}
    assert abs(found[1].lag1) < 0.05
    assert found[50].lag1 > 0.4


def test_the_best_bucket_is_the_smallest_near_the_lowest(mix):
    found = swept(*mix)
    lowest = min(one.cost for one in found.buckets)
    assert found.best.cost <= lowest * (1 + bucket_sweep.NEAR_BEST)
    smaller = [one for one in found.buckets if one.size < found.best.size]
    assert all(one.cost > lowest * (1 + bucket_sweep.NEAR_BEST) for one in smaller)
