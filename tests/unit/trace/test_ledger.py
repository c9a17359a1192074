"""The device ledger against an oracle that looks at every stretch of time, to the nanosecond."""

from itertools import pairwise

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepprobe.analysis.trace import device
from stepprobe.analysis.trace.report import read_summaries
from stepprobe.analysis.trace.summary import encode_summaries, summarise
from stepprobe.analysis.trace.track import segments
from stepprobe.errors import LedgerError
from stepprobe.instruments.trace.reader import read_bytes
from stepprobe.model.device import DEVICE_ACCOUNTS
from tests.fakes.traces import Builder, steps_of, training


def ledger(built):
    (found,) = summarise(read_bytes("a.json", built.text()))
    return [{account: step.accounts_ns[account] for account in DEVICE_ACCOUNTS} for step in steps_of(found)], found


def agrees(built):
    accounts, found = ledger(built)
    assert accounts == built.answer()
    tracked = [dict.fromkeys(DEVICE_ACCOUNTS, 0) for _ in steps_of(found)]
    places = {step.step: place for place, step in enumerate(steps_of(found))}
    for one in segments(read_bytes("a.json", built.text())):
        tracked[places[one.step]][one.account] += one.end_ns - one.start_ns
    assert tracked == accounts
    return found


@pytest.mark.parametrize("ns", [0, 1, 999])
def test_an_ordinary_training(ns):
    found = agrees(training(4, ns))
    assert steps_of(found)[0].hidden_ns == 50_000 + ns
    assert [step.launched_ns for step in steps_of(found)] == [690_000] * 4


def test_a_kernel_is_booked_to_the_step_that_launched_it():
    built = Builder()
    built.step(0, 0, 1000)
    built.step(1, 1000, 2000)
    first = built.launch(100, 110)
    built.kernel("gemm", 500, 1700, first, launched=100)
    second = built.launch(900, 910)
    built.kernel("gemm", 1700, 2500, second, launched=900)
    found = agrees(built)
    assert [step.launched_ns for step in steps_of(found)] == [2000, 0]
    assert steps_of(found)[0].tail_ns == -1500
    assert [step.accounts_ns["compute"] for step in steps_of(found)] == [500, 1000]


def test_what_was_launched_before_the_window_is_carried_over():
    built = Builder()
    built.step(0, 0, 1000)
    built.kernel("gemm", 0, 300, 5)
    late = built.launch(400, 410)
    built.kernel("gemm", 500, 600, late, launched=400)
    found = agrees(built)
    assert steps_of(found)[0].accounts_ns["carried_over"] == 300
    assert found.outcomes["carried over"] == (1, 300)
    assert found.outcomes["no launch row, unexplained"] == (0, 0)


def test_a_missing_launch_row_in_the_middle_is_unexplained_not_carried_over():
    built = Builder()
    built.step(0, 0, 1000)
    first = built.launch(100, 110)
    built.kernel("gemm", 200, 300, first, launched=100)
    built.kernel("gemm", 500, 600, built.next() + 50)
    found = ledger(built)[1]
    assert found.outcomes["no launch row, unexplained"] == (1, 100)
    assert steps_of(found)[0].accounts_ns["compute"] == 200
    assert ("(no launch row)", 1) in [(one.label, one.count) for one in found.by_name]


def test_one_graph_launch_owns_many_kernels():
    built = Builder()
    built.step(0, 0, 1000)
    built.op("graph_replay", 90, 130)
    graph = built.launch(100, 120, name="cudaGraphLaunch")
    for place in range(5):
        built.kernel(f"k{place}", 200 + 50 * place, 240 + 50 * place, graph, launched=100)
    found = agrees(built)
    assert found.outcomes["linked to an operation"] == (5, 200)
    assert found.outcomes["carried over"][0] == 0


def test_overlapping_streams_are_a_union():
    built = Builder()
    built.step(0, 0, 1000)
    for stream, (start, end) in enumerate([(100, 500), (200, 600), (300, 400), (100, 500)]):
        built.kernel("gemm", start, end, built.launch(50 + stream, 51 + stream), stream, 50 + stream)
    found = agrees(built)
    assert found.busy_ns == 500
    assert found.naive.device_ns == 1300
    assert sum(one.exclusive_ns for one in found.by_name) == 500


def test_the_backward_thread_launches_too():
    built = Builder()
    built.step(0, 0, 1000)
    built.op("autograd::engine::evaluate_function: AddmmBackward0", 100, 200, tid=43)
    built.kernel("gemm", 300, 500, built.launch(150, 160, tid=43), launched=150)
    built.op("aten::add", 140, 170)  # on the main thread at the same time
    found = agrees(built)
    assert [(one.label, one.count) for one in found.by_op] == [
        ("autograd::engine::evaluate_function: AddmmBackward0", 1)
    ]
    assert [(one.label, one.count) for one in found.by_phase] == [("backward", 1)]


def test_checkpointing_is_recompute():
    built = Builder()
    built.step(0, 0, 1000)
    built.op("autograd::engine::evaluate_function: CheckpointFunctionBackward", 100, 500, tid=43)
    built.op("aten::mm", 110, 150, tid=43)
    built.kernel("gemm", 300, 400, built.launch(120, 130, tid=43), launched=120)
    built.op("autograd::engine::evaluate_function: MmBackward0", 200, 300, tid=43)
    built.kernel("gemm", 400, 450, built.launch(210, 220, tid=43), launched=210)
    found = agrees(built)
    assert {one.label: one.total_ns for one in found.by_phase} == {"recompute": 100, "backward": 50}


def test_modules_reach_the_backward_by_sequence_number():
    built = Builder()
    built.step(0, 0, 1000)
    built.row("python_function", "nn.Module: Linear_0", 50, 150)
    built.op("aten::linear", 60, 140, Sequence_number=9)
    built.kernel("gemm", 200, 300, built.launch(70, 80), launched=70)
    built.op("autograd::engine::evaluate_function: AddmmBackward0", 300, 400, tid=43, Sequence_number=9)
    built.kernel("gemm", 400, 470, built.launch(310, 320, tid=43), launched=310)
    found = ledger(built)[1]
    assert {one.label: one.total_ns for one in found.by_module} == {"Linear_0": 170}


def test_without_steps_the_whole_trace_is_one_window():
    built = Builder()
    built.op("aten::mm", 0, 100)
    built.kernel("gemm", 200, 500, built.launch(10, 20), launched=10)
    found = ledger(built)[1]
    assert not found.marked
    assert "no ProfilerStep" in found.notes[0]
    assert found.step_walls_ns == (500,)
    assert steps_of(found)[0].accounts_ns["compute"] == 300


def test_two_processes_in_one_file_are_two_ranks():
    one, other = Builder(pid=42, device=0), Builder(pid=77, device=1)
    for built, shift in ((one, 0), (other, 100)):
        built.step(0, 0, 1000)
        built.op("aten::mm", 50 + shift, 150 + shift)
        built.kernel("gemm", 300 + shift, 500 + shift, built.launch(60 + shift, 70 + shift), launched=60 + shift)
    merged = Builder()
    merged.events = [*one.events, *other.events]
    found = summarise(read_bytes("a.json", merged.text()))
    assert [one.process for one in found] == ["42", "77"]
    for summary, built in zip(found, (one, other), strict=True):
        assert [dict(step.accounts_ns) for step in steps_of(summary)] == built.answer()


def test_absurd_rows_are_left_out_and_named():
    built = training()
    built.kernel("overflow", 300_000, 300_000 + 9 * 10**15, built.next(), launched=None)
    built.kernel("negative", 400_000, 300_000, built.next(), launched=None)
    built.kernel("spans others", 300_000, 300_000 + 2 * 10**9, built.next(), launched=None)
    built.kernel("another clock", 10**14, 10**14 + 10, built.next(), launched=None)
    clean = ledger(training())[0]
    accounts, found = ledger(built)
    assert accounts == clean
    assert sum(loss.count for loss in found.losses) == 4
    assert len(found.losses) == 4


def test_a_long_kernel_that_nothing_contradicts_stays():
    built = Builder()
    built.step(0, 0, 5 * 10**9)
    built.kernel("ncclDevKernel_AllReduce", 10**9, 4 * 10**9, built.launch(100, 110), launched=100)
    found = agrees(built)
    assert steps_of(found)[0].accounts_ns["communication"] == 3 * 10**9
    assert found.losses == ()


def test_two_devices_of_one_process_have_a_ledger_each():
    built = Builder()
    built.step(0, 0, 1000)
    built.kernel("gemm", 200, 500, built.launch(100, 110), launched=100)
    built.device = 1
    built.kernel("gemm", 300, 900, built.launch(120, 130), launched=120)
    found = ledger(built)[1]
    assert [(step.device, step.accounts_ns["compute"]) for step in steps_of(found)] == [("0", 300), ("1", 600)]
    assert found.busy_ns == 900


def test_a_clock_that_jumped_is_said():
    built = training()
    built.kernel("gemm", 100_000, 101_000, built.launch(150_000, 151_000), launched=150_000)
    assert ledger(built)[1].before_launch == 1


def test_broken_external_ids_change_nothing_but_are_counted():
    whole, broken = training(), training()
    for event in broken.events:
        if event["cat"] in ("kernel", "gpu_memcpy"):
            event["args"]["External id"] = event["args"]["correlation"]
    assert ledger(broken)[0] == ledger(whole)[0]
    assert ledger(broken)[1].by_op == ledger(whole)[1].by_op
    assert ledger(broken)[1].naive.equals_correlation == 12
    assert ledger(whole)[1].naive.agree == 6
    misled = training()
    for event in misled.events:
        if event["cat"] == "kernel" and event["args"].get("External id"):
            event["args"]["External id"] = 1  # the first aten::linear
    assert ledger(misled)[1].naive.differ > 0
    assert ledger(misled)[1].by_op == ledger(whole)[1].by_op


def test_siblings_that_overlap_on_a_stream_are_counted_once():
    built = Builder()
    built.step(0, 0, 1000)
    for start, end in ((100, 400), (300, 500)):
        built.kernel("gemm", start, end, built.launch(50, 60), launched=50)
    assert steps_of(agrees(built))[0].accounts_ns["compute"] == 400


def test_steps_without_kernels_stay():
    built = Builder()
    built.step(0, 0, 1000)
    built.step(1, 1000, 2000)
    built.kernel("gemm", 1200, 1500, built.launch(1100, 1110), launched=1100)
    found = agrees(built)
    assert [step.launched_ns for step in steps_of(found)] == [0, 300]
    assert steps_of(found)[0].accounts_ns["idle.python"] == 1000


def test_the_same_trace_later_and_with_other_ids_gives_the_same_ledger():
    moved = training(ns=1)
    moved.origin_ns += 10**15
    again = Builder(origin_ns=moved.origin_ns)
    again.events = [
        event
        | {"ts": event["ts"] + 1e9}
        | (
            {"args": event["args"] | {"correlation": event["args"]["correlation"] + 7_000}}
            if "correlation" in event.get("args", {})
            else {}
        )
        for event in training(ns=0).events
    ]
    assert ledger(again)[0] == ledger(training())[0]


def test_the_innermost_operation_owns_a_launch_even_when_all_start_together():
    for order in ((0, 1, 2), (2, 1, 0)):
        built = Builder()
        built.step(0, 0, 1000)
        ops = [("aten::linear", 100, 300), ("aten::addmm", 100, 250), ("aten::mm", 100, 200)]
        for place in order:
            built.op(*ops[place])
        built.kernel("gemm", 400, 500, built.launch(100, 110), launched=100)
        found = ledger(built)[1]
        assert [one.label for one in found.by_op] == ["aten::mm"]
        assert {row.name: row.own_ns for row in found.host} == {"aten::linear": 50, "aten::addmm": 50, "aten::mm": 100}


def test_an_operation_that_has_ended_contains_nothing():
    built = Builder()
    built.step(0, 0, 10_000_000)
    built.op("autograd::engine::evaluate_function: MmBackward0", 100, 200)
    built.op("aten::mm", 200, 300)
    built.op("aten::add", 5_000_000, 5_000_100)
    for start in (250, 5_000_050):
        built.kernel("gemm", start + 500, start + 600, built.launch(start, start + 10), launched=start)
    found = ledger(built)[1]
    assert {one.label: one.count for one in found.by_op} == {"aten::mm": 1, "aten::add": 1}
    assert {one.label: one.count for one in found.by_phase} == {"forward": 2}
    assert sum(row.own_ns for row in found.host) == 300


def test_step_marks_inside_a_step_are_left_out_and_said():
    built = training()
    built.row("user_annotation", "ProfilerStep#10", 100_000, 900_000)
    found = ledger(built)[1]
    assert found.step_walls_ns == (1_000_000,) * 3
    assert any("1 of 4 step marks" in note for note in found.notes)


def test_what_key_averages_would_add_up():
    built = Builder()
    built.step(0, 0, 1000)
    built.row("user_annotation", "loss", 50, 200, External_id=8)
    built.op("aten::mm", 60, 100, External_id=9)
    built.kernel("gemm", 300, 400, built.launch(70, 80), launched=70, External_id=9)
    built.kernel("gemm", 500, 550, built.launch(150, 160), launched=150, External_id=8)
    built.row("gpu_user_annotation", "loss", 500, 550, pid=0, tid=7)
    naive = ledger(built)[1].naive
    assert (naive.device_ns, naive.again_ns, naive.annotation_ns) == (150, 150, 50)


def test_annotations_are_no_device_time():
    built = training()
    before = ledger(built)[0]
    built.row("gpu_user_annotation", "ProfilerStep#10", 0, 900_000, pid=0, tid=7)
    after, found = ledger(built)
    assert after == before
    assert found.naive.annotation_ns == 900_000


@pytest.mark.parametrize(
    "planted",
    [{"wall": 1}, {"compute": -1}, {"idle.python": 7}, {"compute": -(10**9), "idle.data": 10**9}],
)
def test_a_ledger_that_does_not_close_is_refused(planted):
    (whole,) = ledger(training())[1].devices
    for place in range(len(whole)):
        columns = dict(whole.columns)
        for name, error in planted.items():
            column = whole.column(name).copy()
            column[place] += error
            columns[name] = column.tobytes()
        with pytest.raises(LedgerError, match=f"step {place + 1} of 3 on device 0"):
            msgspec.structs.replace(whole, columns=columns)


@pytest.mark.parametrize("at_once", [1, 2, 3])
def test_how_many_steps_are_booked_at_once_is_irrelevant(monkeypatch, at_once):
    built = training(7, 3)
    long = built.launch(1_100_000, 1_100_010)
    built.kernel("gemm", 1_800_000, 4_300_000, long, 9, 1_100_000)  # across three steps
    whole = agrees(built)
    monkeypatch.setattr(device, "STEPS_AT_ONCE", at_once)
    assert agrees(built).devices == whole.devices


def test_many_streams_and_names():
    built = Builder()
    built.step(0, 0, 100_000)
    for number in range(300):
        built.op(f"op {number}", 10 * number, 10 * number + 9, tid=1000 + number)
        call = built.launch(10 * number + 2, 10 * number + 4, tid=1000 + number)
        built.kernel(f"gemm {number}", 300 * number + 50, 300 * number + 90 + number, call, 1 + number, 10 * number + 2)
    found = agrees(built)
    assert (found.streams, found.outcomes["linked to an operation"][0]) == (300, 300)
    assert {one.label for one in found.by_op} == {f"op {number}" for number in range(300)}


def test_a_summary_survives_its_file():
    columns = read_bytes("a.json", training(5).text())
    assert read_summaries({"a.summary.json": encode_summaries(columns)}) == summarise(columns)


spans = st.tuples(st.integers(0, 3000), st.integers(0, 800)).map(lambda pair: (pair[0], pair[0] + pair[1]))


@st.composite
def builds(draw):
    built = Builder()
    edges = [0, *sorted(draw(st.sets(st.integers(1, 3000), min_size=1, max_size=4)))]
    for number, (start, end) in enumerate(pairwise(edges)):
        built.step(number, start, end)
    for start, end in draw(st.lists(spans, max_size=4)):
        built.data(start, end)
    for start, end in draw(st.lists(spans, max_size=3)):
        built.sync(start, end)
    for start, end in draw(st.lists(spans, max_size=6)):
        built.op("aten::mm", start, end)
    names = st.sampled_from(["gemm", "ncclDevKernel_AllReduce", "Memcpy HtoD"])
    for name, launch, (wait, length), stream in draw(
        st.lists(
            st.tuples(
                names, st.integers(0, 2500), st.tuples(st.integers(0, 500), st.integers(1, 900)), st.integers(1, 3)
            ),
            max_size=8,
        )
    ):
        category = "gpu_memcpy" if name.startswith("Memcpy") else "kernel"
        call = built.launch(launch, launch + 5)
        built.kernel(name, launch + wait, launch + wait + length, call, stream, launch, category)
    for start, end in draw(st.lists(spans, max_size=2)):
        if end > start and built.correlation > 110:
            built.kernel("gemm", start, end, 3)
    return built


@settings(max_examples=200, deadline=None)
@given(builds())
def test_any_trace_is_booked_as_the_oracle_books_it(built):
    accounts, found = ledger(built)
    carried = found.outcomes["carried over"][0]
    unexplained = found.outcomes["no launch row, unexplained"][0]
    if steps_of(found) and not unexplained:
        assert accounts == built.answer()
    for step in steps_of(found):
        assert sum(step.accounts_ns.values()) == step.wall_ns
    assert found.busy_ns <= found.naive.device_ns
    for table in (found.by_name, found.by_family, found.by_phase, found.by_op):
        assert sum(one.total_ns for one in table) == found.naive.device_ns
        assert sum(one.exclusive_ns for one in table) == found.busy_ns
        assert sum(one.count for one in table) == found.kernels + found.copies
    assert sum(count for count, _ in found.outcomes.values()) == found.kernels + found.copies
    assert carried >= 0
