"""One source for a gain: the findings of a profile say what its forecasts say, and the headline the best of them."""

import pytest

from stepprobe.analysis.beside import Beside
from stepprobe.analysis.findings.view import up_to
from stepprobe.analysis.ledger.job import read_job
from stepprobe.analysis.profile import growth
from stepprobe.analysis.profile.answers import read_answers
from stepprobe.analysis.profile.findings import findings
from stepprobe.analysis.profile.outlook import look_ahead
from stepprobe.analysis.profile.view import Seen
from stepprobe.model.estimate import Estimate
from stepprobe.model.finding import Finding, Remedy
from stepprobe.probes import profile
from stepprobe.report import markdown, terminal
from tests.fakes.experiments import FakeExperiments, evidence
from tests.fakes.records import METHODS, FakeProcess
from tests.unit.profile.test_forecast import TERMS, batches_of, compute_ms, observed, report, windowed

ROOMY = [[256] * 8] * 40
"""Rows of one length: nothing to win by another order."""


WAITS = {"data.wait": 20.0}


def by_kind(found):
    return {one.kind: one for one in found.findings}


def remedies(finding):
    return {one.name: one for one in finding.remedies}


def test_padding_costs_what_the_fit_says_and_saves_what_is_forecast():
    found = report(batches := batches_of(2))
    waste = by_kind(found)["padding.waste"]
    assert {one.name for one in waste.remedies} <= {
        f"forecast.{name}" for name in ("bucketing", "packing", "padding_free")
    }
    for one in waste.remedies:
        assert one.predicted == found.figures[f"saved.{one.name.removeprefix('forecast.')}"]
    spent = sum(compute_ms(one, TERMS) for one in batches)
    without = sum(TERMS[0] + sum(row * (TERMS[1] + row * TERMS[2]) for row in one) for one in batches)
    assert not waste.cost.bound
    compute = found.figures["ledger.forward.mlp"].value + found.figures["ledger.backward.mlp"].value
    assert waste.cost.value == pytest.approx(compute * (1 - without / spent), rel=0.01)
    assert waste.share == pytest.approx(waste.cost.value / found.figures["step.wall"].value)


def test_loading_saves_what_is_forecast_beside_what_only_the_ledger_knows():
    found = report(ROOMY, around={"data.fetch": 60.0}, off_cpu={"data.fetch": 60.0}, loader_workers=0)
    slow = remedies(by_kind(found)["data.slow"])
    assert set(slow) == {"forecast.workers", "loader.precompute"}
    assert slow["forecast.workers"].predicted == found.figures["saved.workers"]


def test_findings_are_ranked_by_what_their_changes_save():
    """The fixed part costs most, but twice the rows leave half of it; all of the loading may go."""
    found = report(ROOMY, (50.0, 0.01, 0.0), micro_steps=2, around={"data.fetch": 70.0}, loader_workers=0)
    costs = {one.kind: one.cost.value for one in found.findings}
    assert costs["step.fixed"] > 1.3 * costs["data.slow"]
    assert [one.kind for one in found.findings][:2] == ["data.slow", "step.fixed"]
    assert "Findings, most to gain first" in terminal.render(found)
    assert "Findings, most to gain first" in markdown.render(found)


def test_without_forecasts_the_most_expensive_comes_first():
    found = profile.derive(evidence(None, observed(batches_of(2), TERMS, {"data.fetch": 70.0})))
    costs = [one.cost.high if one.cost.bound else one.cost.value for one in found.findings]
    assert len(costs) > 1
    assert costs == sorted(costs, reverse=True)
    assert "Findings, most expensive first" in terminal.render(found)


def test_one_forecast_of_all_waits_is_not_that_of_each():
    """Two lines that wait: the forecast speaks of both together, and stands in the table alone."""
    planted = FakeExperiments(TERMS, batches=ROOMY, device="cuda").scaling()
    process = FakeProcess(**{**METHODS, "device": "cuda"})
    process.steps(60, {"forward.mlp": 60.0, "sync": 40.0, "optimizer": 5.0}, {"slots": 2048, "real": 2048, "syncs": 2})
    seen = Seen(answers=read_answers(evidence(planted.end()))[0], fit=None, job=None, settings={})
    found = growth.fitted(seen.answers)
    job = read_job(evidence(None, process.end()))
    seen = Seen(answers=seen.answers, fit=found, job=job, settings={})
    ahead = look_ahead(seen)
    assert "fewer_syncs" in {one.remedy for one in ahead.made}
    cost = up_to(Estimate(value=20.0, unit="ms", n=9, method=""), "nobody knows")
    own = Remedy(name="sync.kept", action="keep it", predicted=cost)
    sites = [
        Finding(kind="sync.site", title="", where=where, cost=cost, share=0.2, remedies=(own,))
        for where in ("a.py:1", "b.py:2")
    ]
    both = [one for one in findings(seen, ahead, Beside(slow=tuple(sites))) if one.kind == "sync.site"]
    assert [one.remedies for one in both] == [(own,), (own,)]
    alone = [one for one in findings(seen, ahead, Beside(slow=(sites[0],))) if one.kind == "sync.site"]
    assert [one.remedies[0].name for one in alone] == ["forecast.fewer_syncs"]


def with_masks(finding, **harness):
    """The findings of a profile whose masks gave one more, and its forecasts."""
    planted = FakeExperiments(TERMS, batches=[[600] * 4] * 40, **harness).scaling()
    windowed(planted)
    planted.below_window(70.0, (4, 600), 512)
    held = evidence(planted.end(), observed([[600] * 4] * 40, TERMS))
    answers = read_answers(held)[0]
    seen = Seen(answers=answers, fit=growth.fitted(answers), job=read_job(held), settings={})
    ahead = look_ahead(seen)
    found = findings(seen, ahead, Beside(slow=(finding,)))
    return next(one for one in found if one.kind == finding.kind), {one.remedy: one for one in ahead.made}


def lost(*names):
    cost = up_to(Estimate(value=40.0, unit="ms", n=9, method=""), "nobody knows")
    made = tuple(Remedy(name=name, action=name or "another kernel", predicted=cost) for name in names)
    return Finding(kind="mask.lost", title="", where="", cost=cost, share=0.2, remedies=made)


def test_a_mask_that_a_window_asks_for_costs_what_was_measured_below_it():
    found, made = with_masks(lost("", "mask.below_window"))
    saved = made["fast_path"].saved
    assert not saved.bound
    assert found.cost == saved
    assert found.remedies[0] == Remedy(name="forecast.fast_path", action=made["fast_path"].action, predicted=saved)
    assert found.remedies[1].action == "another kernel"


def test_a_mask_without_a_forecast_stays_as_it_is():
    assert with_masks(lost(""))[0] == lost("")


def test_a_change_that_surely_costs_is_no_remedy():
    """Short rows packed into long ones, without a kernel for it: attention over whole packs costs more than before."""
    batches = ([[64] * 4] * 2 + [[512] * 4]) * 30
    heavy = (0.1, 0.0001, 5e-4)
    held = evidence(FakeExperiments(heavy, batches=batches).scaling().end(), observed(batches, heavy, {}))
    answers = read_answers(held)[0]
    seen = Seen(answers=answers, fit=growth.fitted(answers), job=read_job(held), settings={})
    ahead = look_ahead(seen)
    assert next(one for one in ahead.made if one.remedy == "packing").saved.high < 0
    found = {one.kind: one for one in findings(seen, ahead, Beside(slow=(lost("padding.pack"),)))}
    assert found["mask.lost"].remedies == ()
    assert found["mask.lost"].cost == lost("").cost


def test_the_fast_path_says_what_is_cut_and_lost():
    """Rows of 600 tokens, cut to 511: 89 of 600 go."""
    table = next(one for one in report([[600] * 4] * 40, more=windowed).tables if one.name == "changes")
    said = {row[0]: row[1] for row in table.rows}["fast path"]
    assert said.startswith("max_length=511: rows cut to window − 1 = 511 tokens")
    assert said.endswith("14.8% of the tokens are lost")
    padded = report([[300] * 4] * 40, slots=600, more=windowed)
    said = {row[0]: row[1] for row in next(one for one in padded.tables if one.name == "changes").rows}["fast path"]
    assert "no token is lost" in said


def test_the_headline_is_the_change_with_the_most_to_gain():
    found = report(batches_of(2))
    best = max(
        (name for name in found.figures if name.startswith("saved.")), key=lambda name: found.figures[name].value
    )
    step, change = found.headline.split(" · ")
    assert step == f"step {found.figures['step.wall'].value:,.1f} ms"
    saved = found.figures[best]
    assert change.startswith(f"most to gain: {best.removeprefix('saved.').replace('_', ' ')}, {saved.value:,.1f} ms (")
    low, high = (float(one) for one in change.partition("(")[2].rstrip(")").split(" to "))
    assert low == pytest.approx(saved.low, abs=1)
    assert high == pytest.approx(saved.high, abs=1)


def test_a_headline_promises_nothing_where_nothing_does():
    assert report(ROOMY, (0.001, 0.02, 0.0), noise=0.02, micro_steps=2).headline.endswith(" · nothing promises a gain")
    found = report(ROOMY, (0.001, 0.02, 0.0), noise=0.02, micro_steps=2, around=WAITS, loader_workers=2)
    assert found.headline.endswith("nothing promises a gain; workers may bring up to 20.0 ms")


def test_a_ceiling_from_next_to_nothing_promises_nothing():
    """Below the window: from the two tokens of each row alone (next to nothing here) to the whole square."""
    found = report([[513] * 4] * 40, (1.0, 0.0001, 5e-5), micro_steps=2, more=windowed)
    saved = found.figures["saved.fast_path"]
    assert saved.bound
    assert 0 < saved.low < 0.05 * saved.high
    said = found.headline.partition(" · ")[2]
    assert said == f"most to gain: batch size, 1.0 ms (1.0 to 1.0); fast path may bring up to {saved.high:,.1f} ms"


def test_the_table_says_what_is_saved():
    found = report(batches_of(2), max_steps=36_000)
    table = next(one for one in found.tables if one.name == "forecast")
    assert [one.title for one in table.columns] == ["change", "saves", "95 %", "step", "would gain", "hours"]
    for name, saves, span, step, *_ in table.rows[1:]:
        saved = found.figures[f"saved.{name.replace(' ', '_')}"]
        assert saves == saved.value
        assert span.count(" to ") == 1
        assert step == found.figures[f"forecast.{name.replace(' ', '_')}"].value
    drawn = terminal.render(found, width=80)
    assert "change        saves ms" in drawn


def test_the_bars_say_what_the_table_says():
    found = report(batches_of(2), around={"data.wait": 30.0}, loader_workers=2)
    chart = next(one for one in found.charts if one.name == "forecast")
    assert chart.label == "says"
    said = {one["change"]: one["says"] for one in reversed(chart.values) if one["says"]}
    wall = found.figures["step.wall"].value
    assert said["as it is now"] == f"{wall:,.1f} ms"
    saved = found.figures["saved.bucketing"]
    assert said["bucketing"].startswith(f"saves {saved.value:,.1f} ms (")
    assert said["workers"] == f"saves up to {found.figures['saved.workers'].high:,.1f} ms"
    kinds = {(one["change"], one["what"]) for one in chart.values}
    assert {("bucketing", "saved"), ("workers", "may be saved")} <= kinds


def test_a_change_that_costs_is_said_to_in_its_bar():
    found = report(ROOMY, more=lambda planted: planted.losses((8, 256), 30.0, {512: 45.0}))
    chart = next(one for one in found.charts if one.name == "forecast")
    said = next(one["says"] for one in chart.values if one["change"] == "chunked loss")
    assert said.startswith("costs ")
    assert "−" not in said


def test_each_curve_reaches_what_was_measured_on_it():
    chart = next(one for one in report(batches_of(2)).charts if one.name == "scaling")
    lines = [one for one in chart.values if one["dot"] is None]
    dots = [one for one in chart.values if one["dot"]]
    assert {one["dot"] for one in dots} == {"measured", "held out"}
    for one in dots:
        curve = [(place["length"], place["ms"]) for place in lines if place["rows"] == one["rows"]]
        below = max(place for place in curve if place[0] <= one["length"] + 1e-9)
        above = min(place for place in curve if place[0] >= one["length"] - 1e-9)
        assert below[1] * 0.999 <= one["ms"] <= above[1] * 1.001
