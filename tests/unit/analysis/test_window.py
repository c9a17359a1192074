"""Traced steps of a run: a device ledger of their own, and nothing of them in the ledger of the host."""

import msgspec
import pytest

from stepprobe.analysis import beside
from stepprobe.analysis.attention.in_run import RunMasks
from stepprobe.analysis.trace.attended import attended as trace_attended
from stepprobe.analysis.trace.summary import summarise
from stepprobe.errors import EvidenceError, UsageError
from stepprobe.instruments.trace.reader import read_bytes
from stepprobe.model.device import DEVICE_LABELS
from stepprobe.model.trace import UNREAD, encode_columns
from stepprobe.probes import ledger
from tests.fakes.damage import damaged
from tests.fakes.records import CLEAN, COUNTS, METHODS, FakeProcess, evidence
from tests.fakes.traces import ACCOUNTS, Builder, training

STEPS = 3
COLUMNS = "trace-rank0-pid100.columns"


def process(rank=0, **facts):
    built = FakeProcess(rank=rank, **{**METHODS, **facts}).steps(20, CLEAN, COUNTS)
    return built.steps(STEPS + 2, CLEAN, COUNTS, aside="profiler").steps(20, CLEAN, COUNTS).end()


def columns(text, rank=0):
    return b"".join(encode_columns(read_bytes(f"trace-rank{rank}-pid100.json", text)))


def derive(files, *processes):
    kept = evidence(*(processes or (process(),)))
    return ledger.derive(msgspec.structs.replace(kept, files={**kept.files, **files}))


def table(report, name):
    (found,) = [one for one in report.tables if one.name == name]
    return found


def host_trace():
    built = Builder()
    for number in range(STEPS):
        built.step(number, number * 1000, (number + 1) * 1000)
        built.op("aten::mm", number * 1000 + 100, number * 1000 + 700)
        built.op("aten::add", number * 1000 + 200, number * 1000 + 300)
    return built.text(about={})


def attended(*ops, steady_ms=1e-3, device=False):
    """Traced steps of 1,000 ns, each with these operations: name, start and end in it, by what they hold."""
    built = Builder()
    for number in range(STEPS):
        built.step(number, number * 1000, (number + 1) * 1000)
        for name, start, end in ops:
            built.op(name, number * 1000 + start, number * 1000 + end)
        if device:
            launch = built.launch(number * 1000 + 900, number * 1000 + 910)
            built.kernel("gemm", number * 1000 + 920, number * 1000 + 930, launch, launched=number * 1000 + 900)
    (one,) = summarise(read_bytes("trace-rank0-pid100.json", built.text(about={})))
    return trace_attended([one], steady_ms)


MM, ATTENTION = ("aten::mm", 0, 300), ("aten::_scaled_dot_product_flash_attention_for_cpu", 300, 500)
BACKWARD = ("autograd::engine::evaluate_function: ScaledDotProductFlashAttentionForCpuBackward0", 500, 700)
SPREAD = ("aten::copy_", 700, 750)


def test_attention_takes_its_kernels_and_what_may_feed_them_and_no_projection():
    found = attended(MM, ATTENTION, BACKWARD, SPREAD)
    assert found.value == pytest.approx(450e-6)
    assert found.n == STEPS


def test_where_traced_steps_were_the_faster_ones_attention_grows_with_the_others():
    assert attended(MM, ATTENTION, steady_ms=3e-3).value == pytest.approx(600e-6)
    assert attended(MM, ATTENTION, steady_ms=0.5e-3).value == pytest.approx(200e-6)


@pytest.mark.parametrize(
    "ops", [(MM,), (MM, ATTENTION, ("aten::_scaled_dot_product_attention_math", 700, 800)),
            (MM, ATTENTION, ("Torch-Compiled Region: 0/0", 700, 800))]
)  # fmt: skip
def test_attention_that_a_trace_does_not_show_is_not_told(ops):
    assert attended(*ops) is None


@pytest.mark.parametrize("walls", [(), (0, 0)])
def test_steps_that_took_no_time_in_the_trace_say_nothing_of_attention(walls):
    built = Builder()
    built.step(0, 0, 1000)
    built.op(ATTENTION[0], 300, 500)
    (one,) = summarise(read_bytes("trace-rank0-pid100.json", built.text(about={})))
    assert trace_attended([one], 1.0) is not None
    assert trace_attended([msgspec.structs.replace(one, step_walls_ns=walls)], 1.0) is None


def test_on_a_card_the_host_does_not_tell_what_attention_takes():
    assert attended(MM, ATTENTION, device=True) is None


def test_what_attention_takes_in_the_traced_steps_prices_the_masks(monkeypatch):
    """Of the process whose ledger is shown."""
    told = []
    monkeypatch.setattr(beside, "run_masks", lambda files, process, found: told.append(found) or RunMasks())
    built = Builder()
    for number in range(STEPS):
        built.step(number, number * 1000, (number + 1) * 1000)
        built.op(ATTENTION[0], number * 1000 + 300, number * 1000 + 500)
    derive({COLUMNS: columns(built.text(about={}))})
    derive({})
    assert told[0].value == pytest.approx(0.2 * 100), "its share of a step of 100 ms"
    assert told[1] is None


def test_the_device_ledger_is_right_to_the_nanosecond_and_stands_alone():
    built = training(STEPS)
    report, plain = derive({COLUMNS: columns(built.text())}), derive({})
    found = {row[0]: row[1] for row in table(report, "device_ledger").rows}
    for account in ACCOUNTS:
        truth = sum(step[account] for step in built.answer()) / STEPS / 1e6
        assert found.get(DEVICE_LABELS[account], 0.0) == pytest.approx(truth), account
    assert sum(found.values()) == pytest.approx(report.figures["trace.step_wall"].value)
    assert sum(row[2] for row in table(report, "device_ledger").rows) == pytest.approx(1)
    assert report.ledger == plain.ledger
    assert {name: report.figures[name] for name in plain.figures} == plain.figures
    assert {name.partition(".")[0] for name in report.figures.keys() - plain.figures.keys()} == {"trace"}
    assert report.figures["trace.kernels"].value == 3 * STEPS
    assert all(one.ok for one in report.controls)
    assert len(report.controls) > len(plain.controls)


def test_without_a_device_it_is_the_operations_of_the_host():
    report = derive({COLUMNS: columns(host_trace())})
    rows = table(report, "trace_host").rows
    assert rows[0] == ("aten::mm", 1, pytest.approx(500e-6), pytest.approx(0.5))
    assert not [one for one in report.tables if one.name == "device_ledger"]
    assert not [note for note in report.notes if "CUPTI" in note]


def test_a_device_that_the_profiler_does_not_see_is_said_and_timed_by_events():
    seen = process(**{"window.known_kernel": True, "window.event_ms": "12.5 13.5"})
    report = derive({COLUMNS: columns(host_trace())}, seen)
    assert [note for note in report.notes if "the profiler did not see the device" in note]
    assert report.figures["trace.event_step"].value == 13.0
    assert not [name for name in report.figures if name.startswith("trace.device")]


def test_ranks_are_compared_in_the_trace_too():
    ranks = [process(rank, **{"window.first": 20}) for rank in range(2)]
    files = {f"trace-rank{rank}-pid100.columns": columns(training(STEPS).text(about={}), rank) for rank in range(2)}
    report = derive(files, *ranks)
    assert report.figures["trace.ranks"].value == 2
    assert [row[0] for row in table(report, "ranks").rows] == [0, 1]
    assert len(table(report, "trace_ranks").rows) == 2


@pytest.mark.parametrize(
    ("files", "told"),
    [
        ({}, "no trace: one was begun, but the process ended before it was written"),
        ({UNREAD: b'["trace-rank0-pid100.json.gz: cut"]'}, "not read: trace-rank0-pid100.json.gz: cut"),
    ],
)
def test_what_is_missing_is_told(files, told):
    report = derive(files, process(**{"window.first": 20}))
    assert told in report.notes
    assert report.verdict == "ok"


def test_a_step_that_never_came_is_named():
    short = FakeProcess(**METHODS, **{"window.first": 18}).steps(12, CLEAN, COUNTS).end()
    assert "no trace: the training ended before step 18, where one was to begin" in derive({}, short).notes


def test_a_reason_of_the_process_is_not_told_twice():
    told = process(**{"window.first": 20}).note("no trace: this PyTorch has no Kineto profiler")
    assert len([note for note in derive({}, told).notes if "no trace" in note]) == 1


def test_damaged_columns_are_refused():
    with pytest.raises(EvidenceError, match="damaged"):
        derive({COLUMNS: damaged(columns(host_trace()))})


def test_without_numpy_the_next_step_is_named(monkeypatch):
    kept = {COLUMNS: columns(host_trace())}
    monkeypatch.setattr(beside, "find_spec", lambda _: None)
    with pytest.raises(UsageError, match="pip install numpy"):
        derive(kept)
    assert derive({}).verdict == "ok"
