"""The synthetic harness gives what is planted, in lines that the model reads."""

import pytest

from stepprobe.model.experiments import Measured, decode_experiments
from tests.fakes.harness import FakeHarness, FakeOutOfMemory, planted_lines, sealed


def test_planted_lines_decode_and_hold_the_planted_cost():
    records, cut = decode_experiments("experiments-rank0-pid1.jsonl", sealed(planted_lines(FakeHarness())))
    assert cut == 0
    by_point = {(one.rows, one.length): one.wall_ns for one in records if isinstance(one, Measured)}
    assert by_point[1, 128] == 6e6 + 128 * 24e3 + 40 * 128**2
    assert by_point[2, 512] == 6e6 + 1024 * 24e3 + 40 * 2 * 512**2
    assert len([one for one in records if isinstance(one, Measured)]) == 4 * 9


def test_drift_noise_and_model_error_are_planted():
    drifting = FakeHarness(drift=0.5)
    first = [drifting.clocks.now, *(drifting.step(drifting.batch(1, 8)) and drifting.clocks.now for _ in range(101))]
    assert (first[101] - first[100]) / (first[1] - first[0]) == pytest.approx(1.5)
    assert FakeHarness(beyond=(1024, 0.2)).truth(1, 1025) == pytest.approx(1.2 * FakeHarness().truth(1, 1025))
    noisy = FakeHarness(noise=0.03)
    noisy.step(noisy.batch(1, 8))
    assert noisy.clocks.now - 1000 != FakeHarness().truth(1, 8)


def test_refusals_and_the_end_of_memory_are_planted():
    with pytest.raises(ValueError, match="from 64 to 64"):
        FakeHarness(shortest=64, longest=64).batch(1, 32)
    small = FakeHarness(capacity=100_000)
    small.step(small.batch(1, 100))
    with pytest.raises(FakeOutOfMemory):
        small.step(small.batch(2, 51))
