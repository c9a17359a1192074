"""What every probe promises, asked of all of them at once."""

import math

import msgspec
import pytest

from stepprobe import probes
from stepprobe.errors import EvidenceError, UsageError
from stepprobe.model.evidence import Evidence
from stepprobe.model.report import Report

NAMES = probes.names()


@pytest.fixture(params=NAMES)
def probe(request):
    return probes.load(request.param)


def test_there_are_probes():
    assert "ledger" in NAMES


def test_a_probe_says_its_question_in_one_line(probe):
    assert probe.SUMMARY
    assert "\n" not in probe.SUMMARY


def test_a_probe_measures_what_its_subject_shows(probe):
    evidence, _ = probe.control()

    class Shown:
        def observe(self):
            return evidence

    assert probe.measure(Shown()) is evidence


def test_the_control_is_recovered_by_figure_name(probe):
    evidence, expected = probe.control()
    assert expected
    figures = probe.derive(evidence).figures
    for name, value in expected.items():
        assert figures[name].value == pytest.approx(value, rel=0.05, abs=1e-9), name


def test_the_report_carries_the_control_that_was_asked_first(probe):
    evidence, expected = probe.control()
    controls = probe.derive(evidence).controls
    assert {control.name for control in controls} == set(expected)
    assert all(control.ok for control in controls)


def test_a_derivation_is_pure(probe):
    evidence, _ = probe.control()
    first, second = (msgspec.json.encode(probe.derive(evidence)) for _ in range(2))
    assert first == second


def test_a_report_survives_json(probe):
    report = probe.derive(probe.control()[0])
    assert msgspec.json.decode(msgspec.json.encode(report), type=Report) == report


def test_every_figure_is_named_and_explained(probe):
    for name, figure in probe.derive(probe.control()[0]).figures.items():
        assert name == name.lower()
        assert "." in name
        assert figure.method
        assert math.isfinite(figure.value)
        if figure.low is not None and figure.high is not None:
            assert figure.low <= figure.value <= figure.high, name


def test_damage_is_seen(probe):
    """One changed digit anywhere in the evidence is an error or another report, never the same one."""
    evidence, _ = probe.control()
    name, content = max(evidence.files.items(), key=lambda item: len(item[1]))
    digit = next(i for i in range(len(content) // 2, len(content)) if content[i : i + 1].isdigit())
    changed = content[:digit] + bytes([content[digit] ^ 1]) + content[digit + 1 :]
    with pytest.raises(EvidenceError):
        probe.derive(msgspec.structs.replace(evidence, files={**evidence.files, name: changed}))


def test_nothing_seen_is_not_measured(probe):
    evidence, _ = probe.control()
    report = probe.derive(msgspec.structs.replace(evidence, files={}, status="exit 1"))
    assert report.verdict == "not measured"
    assert "exit 1" in report.headline


def test_an_unknown_probe_is_named_with_the_known_ones():
    with pytest.raises(UsageError, match="ledger"):
        probes.load("nonsense")


def test_evidence_survives_json(probe):
    evidence, _ = probe.control()
    assert msgspec.json.decode(msgspec.json.encode(evidence), type=Evidence) == evidence
