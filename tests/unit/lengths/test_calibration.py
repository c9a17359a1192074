"""From a sample to the whole: exact where all is known, and an interval that means what it says."""

import json

import numpy as np
import pytest

from stepprobe.analysis.lengths import padding_report
from stepprobe.analysis.lengths.calibration import Counts, counts
from stepprobe.analysis.lengths.options import Options, cut
from stepprobe.model.lengths import About, build
from stepprobe.probes import padding
from stepprobe.report.json import render
from tests.fakes.lengths import cells_of

ROWS, SAMPLED, LONGEST, DRAWS = 6000, 600, 60, 400


def population(seed=0):
    """Rows of three sources: characters, and tokens at a ratio that depends on the source and scatters by row."""
    random = np.random.default_rng(seed)
    sources = random.choice(3, ROWS, p=[0.6, 0.3, 0.1])
    chars = np.maximum(1, random.lognormal(np.array([6.0, 7.2, 5.0])[sources], 0.9)).astype(np.int64)
    ratios = np.array([0.25, 0.33, 0.5])[sources] * random.lognormal(0, 0.15, ROWS)
    return sources, chars, np.maximum(1, np.rint(ratios * chars)).astype(np.int64) + 5


def sampled(people, seed):
    sources, chars, tokens = people
    table = np.column_stack((sources, chars, tokens, tokens))
    longest = np.argsort(-chars, kind="stable")[:LONGEST]
    rest = np.setdiff1d(np.arange(ROWS), longest)
    drawn = np.random.default_rng(seed).choice(rest, SAMPLED, replace=False)
    others = np.setdiff1d(rest, drawn)
    arrays = {
        "sample": table[drawn][np.lexsort(table[drawn].T[::-1])],
        "longest": table[longest],
        "chars": cells_of(chars[others], sources[others]),
    }
    return build(About(sources=("a", "b", "c"), rows=ROWS, tokenised=SAMPLED + LONGEST), arrays)


def figures(lengths, options):
    known = counts(lengths)
    return known, padding_report.padding_figures(lengths.about, known, cut(known, options), options)


@pytest.fixture(scope="module")
def drawn():
    people, options = population(), Options(max_length=1024)
    whole = Counts(cells_of(people[2], people[0]))
    lengths = build(About(sources=("a", "b", "c"), rows=ROWS), {"cells": whole.cells})
    truth = figures(lengths, options)[1]
    found = [figures(sampled(people, seed), options) for seed in range(DRAWS)]
    return truth, found


def coverage(drawn, name):
    truth, found = drawn
    return sum(one[name].low <= truth[name].value <= one[name].high for _, one in found) / DRAWS


def test_the_interval_holds_the_truth_in_95_of_100(drawn):
    assert 0.93 <= coverage(drawn, "padding.tokens_total") <= 0.97
    # beside the random sample all of the longest rows are known: the share that is cut is known a little better
    assert 0.93 <= coverage(drawn, "padding.truncated_share") <= 0.98


def test_the_interval_of_waste_from_sampling_alone(drawn):
    """The figure's own interval is wider, since it is to hold an epoch as well; the sample's part is asked here."""
    from stepprobe.analysis.lengths.calibration import half_width

    truth, found = drawn
    options, name = Options(max_length=1024), "padding.waste_share"
    inside = 0
    for known, one in found:
        half = half_width(known, padding_report.replicated_waste(known, options))
        inside += abs(one[name].value - truth[name].value) <= half
        assert half <= one[name].high - one[name].value + 1e-12
    assert 0.93 <= inside / DRAWS <= 0.97


def test_there_is_no_bias_to_speak_of(drawn):
    truth, found = drawn
    for name in ("padding.waste_share", "padding.tokens_total"):
        values = np.array([one[name].value for _, one in found])
        assert abs(values.mean() / truth[name].value - 1) < 0.003, name


def test_rows_are_conserved_whatever_is_estimated():
    known = counts(sampled(population(), 1))
    assert known.cells[:, 2].sum() == ROWS
    assert (known.cells[:, 2] > 0).all()
    for _, rows in known.replicates:
        assert rows.sum() == pytest.approx(ROWS)


def test_a_source_with_few_sampled_rows_takes_those_of_all():
    people = population()
    lengths = sampled(people, 2)
    chars = np.concatenate((lengths.chars, [[3, 400, 50]]))
    rare = build(About(sources=("a", "b", "c", "rare"), rows=ROWS + 50), {"chars": chars, "sample": lengths.sample})
    known = counts(rare)
    of_rare = known.cells[known.cells[:, 0] == 3]
    assert of_rare[:, 2].sum() == 50
    assert 50 < np.average(of_rare[:, 1], weights=of_rare[:, 2]) < 250


def test_everything_sampled_is_exact():
    sources, chars, tokens = population()
    table = np.column_stack((sources, chars, tokens, tokens))
    lengths = build(About(sources=("a", "b", "c"), rows=ROWS), {"sample": table})
    assert not lengths.sampled
    assert (counts(lengths).cells == cells_of(tokens, sources)).all()


def test_a_report_says_that_it_was_estimated():
    from stepprobe.model.evidence import Evidence
    from stepprobe.model.lengths import encode

    files = encode(sampled(population(), 3))
    report = padding.derive(Evidence(probe="padding", command="padding", subject="", environment={}, files=files))
    assert any("tokenised" in note and "--full" in note for note in report.notes)
    assert 0 < json.loads(render(report))["figures"]["padding.labelled_share"]["value"] <= 1
    assert report.figures["padding.tokens_total"].low < report.figures["padding.tokens_total"].high
