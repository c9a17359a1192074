"""Ceilings: measured without touching the user's random numbers, the most over sizes, and floors under them."""

import time

import pytest

from stepprobe.analysis.limits.ceilings import (
    Work,
    ceiling,
    ceiling_table,
    clock_of,
    floor,
    limit_figures,
    rate_of,
    spread_of,
)
from stepprobe.model.experiments import Limit

MS = 1_000_000


def limit(kind="matmul", work=10**9, ms=(10.0,), **changes):
    times = [round(one * MS) for one in ms]
    return Limit(
        **{"kind": kind, "size": 512, "dtype": "float32", "work": work, "wall_ns": times, "thread_ns": times, **changes}
    )


def ceilings(*limits, clock="thread"):
    return {kind: ceiling(limits, kind, clock) for kind in ("matmul", "copy", "dispatch")}


def test_the_most_over_sizes_and_repeats_is_the_ceiling():
    slow, fast = limit(ms=(70, 71, 72), size=1024), limit(ms=(12, 10, 11))
    found = ceiling([slow, fast], "matmul", "thread")
    assert found.rate == pytest.approx(1e11)
    assert found.best is fast
    assert found.wide == ()


def test_repeats_that_differ_are_flagged():
    narrow, wide = limit(ms=(10, 10.5, 11)), limit(ms=(10, 12.5, 13), size=1024)
    assert spread_of(narrow, "thread") == pytest.approx(0.05)
    figures, notes = limit_figures(ceilings(narrow, wide, limit("copy"), limit("dispatch", 1000)))
    assert set(figures) == {"limit.matmul_flops", "limit.copy_bytes_per_s", "limit.dispatch"}
    assert [note for note in notes if "1024" in note and "25%" in note] == list(notes)


def test_what_was_not_measured_is_said_and_has_no_figure():
    figures, notes = limit_figures(ceilings(limit()))
    assert set(figures) == {"limit.matmul_flops"}
    assert sum("not measured" in note for note in notes) == 2


def test_only_the_element_type_of_the_step_counts():
    half = limit(ms=(1,), dtype="bfloat16")
    assert ceiling([limit(), half], "matmul", "thread", "float32").best.dtype == "float32"
    assert ceiling([limit(), half], "matmul", "thread").best is half


def test_the_clock_follows_the_device():
    assert [clock_of("cuda", 8), clock_of("cpu", 1), clock_of("cpu", 2)] == ["device", "thread", "wall"]
    asked = limit(device_ns=[2 * MS])
    assert rate_of(asked, "device") == 5 * rate_of(asked, "wall")
    assert rate_of(limit(), "device") == rate_of(limit(), "wall")  # a device without events


def test_a_floor_is_its_longest_term():
    made = ceilings(limit(work=10**9), limit("copy", 10**8), limit("dispatch", 1000, ms=(2,)))
    # 1e11 FLOP/s, 1e10 bytes/s, 5e5 operators/s
    assert floor(Work(flops=1e9), made).ms == pytest.approx(10)
    assert floor(Work(flops=1e9, bytes=2e8, operators=100), made) == floor(Work(bytes=2e8), made)
    assert floor(Work(flops=1e9, bytes=2e8, operators=100), made).bound == "memory"
    assert floor(Work(operators=50), made).ms == pytest.approx(0.1)
    assert floor(Work(), made).bound == ""


def test_the_table_leaves_bursts_out():
    assert len(ceiling_table([limit(), limit(block=3)], "thread").rows) == 1


@pytest.mark.noisy
def test_measuring_takes_two_seconds_and_no_random_number():
    torch = pytest.importorskip("torch")
    from stepprobe.instruments.experiments import limits
    from stepprobe.instruments.experiments.limits import FEWEST, SECONDS, burst, measure_limits

    late = limits._Place(torch, "cpu")
    assert [len(line["wall_ns"]) for line in late.copy(time.monotonic() - 1)] == [FEWEST]
    assert [line["size"] for line in late.products("float32", time.monotonic() - 1)] == [256]
    state = torch.get_rng_state()
    began = time.process_time()
    with torch.enable_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        lines = list(measure_limits(torch, "cpu", "float32", also=("bfloat16",)))
        timed = burst(torch, "cpu", "float32")(7)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.is_grad_enabled()
    assert time.process_time() - began < 3 * SECONDS + 2
    found = [Limit(**line) for line in (*lines, timed)]
    assert {"matmul", "copy", "dispatch"} == {one.kind for one in found}
    assert {"float32", "bfloat16"} == {one.dtype for one in found if one.kind == "matmul"}
    assert found[-1].block == 7
    assert min(len(one.wall_ns) for one in found[:-1]) >= 3
    assert all(rate_of(one, "thread") > 0 for one in found)


def test_a_machine_without_memory_to_spare_is_not_filled():
    torch = pytest.importorskip("torch")
    from stepprobe.instruments.experiments import limits

    place = limits._Place(torch, "cpu")
    place._free_bytes = lambda: 8 << 20
    assert list(place.copy(time.monotonic() + 1)) == []
    assert [line["size"] for line in place.products("float32", time.monotonic() + 1)] == [256]
