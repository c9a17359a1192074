"""The ledger's control: it fires when the derivation is wrong, and the answer is then "not measured"."""

import random

import pytest

from stepprobe.analysis.ledger import attribution, process
from stepprobe.analysis.ledger.known import EXPECTED, known_run
from stepprobe.probes import ledger
from tests.fakes.records import CLEAN, COUNTS, METHODS, FakeProcess, clean_process, evidence


def failed(report):
    return {control.name for control in report.controls if not control.ok}


def test_the_known_run_is_recovered():
    report = ledger.derive(known_run())
    assert failed(report) == set()
    assert report.verdict == "ok"
    for name, value in EXPECTED.items():
        if name != "step.wall_median":
            assert report.figures[name].value == pytest.approx(value, rel=1e-12), name


def test_a_wrong_division_is_caught(monkeypatch):
    def all_to_the_first(total, weights):
        return {next(iter(weights)): total} if total else {}

    monkeypatch.setattr(attribution, "divide", all_to_the_first)
    report = ledger.derive(evidence(clean_process()))
    assert failed(report) >= {"ledger.forward.attention", "ledger.backward.mlp", "ledger.recompute"}
    assert report.verdict == "not measured"
    assert "ledger.recompute" in report.headline


def test_a_warmup_that_is_not_cut_is_caught(monkeypatch):
    monkeypatch.setattr(process, "warmup_cut", lambda walls: 0)
    report = ledger.derive(evidence(clean_process()))
    assert failed(report) >= {"step.wall", "step.warmup", "step.measured"}
    assert report.verdict == "not measured"


def test_sums_that_are_left_out_are_caught(monkeypatch):
    whole = attribution.attribute
    monkeypatch.setattr(process, "attribute", lambda observed, shares: whole(observed[:-1], shares))
    assert "step.measured" in failed(ledger.derive(evidence(clean_process())))


def test_planted_truths_are_recovered_under_noise():
    """Every account of a noisy run, detail in one step of eight, within its own interval or 2 %."""
    noise = random.Random(17)
    fake, truth = FakeProcess(**METHODS), {name: 0.0 for name in CLEAN}
    for i in range(400):
        step = {name: round(ms * noise.gauss(1, 0.03), 6) for name, ms in CLEAN.items()}
        for name, ms in step.items():
            truth[name] += ms / 400
        if i % 8:
            whole = {
                part: sum(ms for name, ms in step.items() if name.startswith(part)) for part in ("forward", "backward")
            }
            step = {name: ms for name, ms in step.items() if not name.startswith(("forward", "backward"))} | whole
        fake.step(step, COUNTS, detail=i % 8 == 0)
    figures = ledger.derive(evidence(fake, warmup="0")).figures
    inside = 0
    for name, ms in truth.items():
        figure = figures[f"ledger.{name}"]
        assert figure.value == pytest.approx(ms, rel=0.02), name
        inside += figure.low <= ms <= figure.high
    assert inside >= 0.9 * len(truth)
