"""The length probes' controls: they fire when a derivation is wrong, and the answer is then "not measured"."""

import numpy as np
import pytest

from stepprobe.analysis.lengths import batching, packs
from stepprobe.analysis.lengths.packing import Packing
from stepprobe.errors import EvidenceError
from stepprobe.model.lengths import ABOUT, ARRAYS, decode
from stepprobe.probes import bucket, padding
from tests.fakes.damage import damaged
from tests.fakes.lengths import chat_mix, evidence_of


def failed(report):
    return {control.name for control in report.controls if not control.ok}


@pytest.fixture
def mix():
    return chat_mix(2000)


def test_the_known_dataset_is_recovered():
    for probe in (padding, bucket):
        report = probe.derive(probe.control()[0])
        assert failed(report) == set()
        assert report.verdict == "ok"


def test_a_wrong_expectation_is_caught(mix, monkeypatch):
    monkeypatch.setattr(batching, "none_reaches", lambda known, rows: (1 - known.at_least / known.rows) ** (rows - 1))
    report = padding.derive(evidence_of("padding", *mix))
    assert failed(report) >= {"padding.expected_longest", "padding.waste_share"}
    assert report.verdict == "not measured"
    assert "padding.waste_share" in report.headline


def test_a_packing_that_opens_too_many_bins_is_caught(mix, monkeypatch):
    whole = packs.best_fit_decreasing

    def one_more(lengths, rows, cap):
        made = whole(lengths, rows, cap)
        return Packing(cap, made.bins + 1000, made.moves)

    monkeypatch.setattr(packs, "best_fit_decreasing", one_more)
    assert "packing.bins" in failed(bucket.derive(evidence_of("bucket", *mix)))


def test_a_bound_that_is_too_low_is_caught(mix, monkeypatch):
    monkeypatch.setattr(packs, "lower_bounds", lambda lengths, rows, cap: (1, 1))
    assert failed(bucket.derive(evidence_of("bucket", *mix))) == {"packing.bins_bound"}


@pytest.mark.parametrize("name", [ARRAYS, ABOUT])
def test_damage_is_seen(mix, name):
    files = dict(evidence_of("padding", *mix).files)
    files[name] = files[name].replace(b"2000", b"2001") if name == ABOUT else damaged(files[name])
    with pytest.raises(EvidenceError):
        decode(files)
    with pytest.raises(EvidenceError, match="belong together"):
        decode({name: files[name]})


def test_the_same_lengths_give_the_same_bytes(mix):
    assert evidence_of("padding", *mix).files == evidence_of("padding", *mix).files
    assert evidence_of("padding", np.array([1])).files != evidence_of("padding", np.array([2])).files
