"""Peaks, what is free, and errors that say that there is none left."""

from types import SimpleNamespace

import pytest

from stepprobe.instruments.experiments import memory
from stepprobe.instruments.experiments.memory import Memory, ran_out
from tests.fakes.harness import FakeOutOfMemory, FakeTorch

MIB = 1 << 20


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (FakeOutOfMemory("anything"), True),
        (MemoryError(), True),
        (RuntimeError("CUDA out of memory"), True),
        (RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory"), True),
        (RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 8 bytes"), True),
        (RuntimeError("shapes cannot be multiplied"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_ran_out(error, expected):
    assert ran_out(error, FakeTorch()) is expected


def test_what_torch_raises_is_known():
    torch = pytest.importorskip("torch")
    with pytest.raises(RuntimeError) as raised:
        torch.empty(1 << 60, dtype=torch.uint8)
    assert ran_out(raised.value, torch)


def test_the_resident_peak_is_what_was_held_and_given_back():
    def hold():
        return len(bytearray(b"x" * (64 * MIB)))

    for _ in range(2):  # freed memory does not hide the second
        found, peak = Memory(FakeTorch(), "cpu").peak_of(hold, warming=True)
        assert found == 64 * MIB
        if peak is None:
            pytest.skip("this kernel keeps no high-water mark that can be reset")
        assert 64 * MIB <= peak < 140 * MIB
    assert Memory(FakeTorch(), "cpu").peak_of(hold, warming=False) == (64 * MIB, None)


def test_a_cards_peak_is_above_what_lay_there():
    marks = {"peak": 900, "now": 100}
    cuda = SimpleNamespace(
        reset_peak_memory_stats=lambda: marks.update(peak=marks["now"]),
        memory_allocated=lambda: marks["now"],
        max_memory_allocated=lambda: marks["peak"],
        memory_reserved=lambda: 400,
        mem_get_info=lambda: (1000, 5000),
        empty_cache=lambda: marks.update(emptied=True),
    )
    found = Memory(SimpleNamespace(cuda=cuda), "cuda")
    assert found.peak_of(lambda: marks.update(peak=350), warming=False) == (None, 250)
    assert found.free_bytes() == 1000 + 400 - 100
    found.release()
    assert marks["emptied"]


def test_a_container_may_have_less_than_its_machine(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "_PROC", tmp_path)
    monkeypatch.setattr(memory, "_CGROUP", tmp_path)
    machine = Memory(FakeTorch(), "cpu")
    assert machine.free_bytes() is None
    (tmp_path / "meminfo").write_text("MemTotal: 9000 kB\nMemAvailable: 8000 kB\n")
    assert machine.free_bytes() == 8000 * 1024
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("3000000\n")
    assert machine.free_bytes() == 8000 * 1024
    (tmp_path / "memory.max").write_text("4000000\n")
    (tmp_path / "memory.stat").write_text("active_file 7\ninactive_file 500000\n")
    assert machine.free_bytes() == 4000000 - 3000000 + 500000
