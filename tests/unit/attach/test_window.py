"""The profiler's window on a device that is not there: what is asked of torch, in which order, and what is kept."""

import contextlib
import sys
from types import SimpleNamespace

import pytest

from stepprobe.instruments.attach import window as module
from stepprobe.instruments.attach.observer import Limit
from stepprobe.instruments.attach.window import Window, first_step
from tests.unit.attach.test_aside import Training


class FakeTorch:
    """As much of torch as the window uses, with a CUDA device; everything asked of it is noted."""

    def __init__(self, cuda=True, size=10, cudagraphs=False):
        self.asked, self.size, self.ticks = [], size, 0
        self.profiler = SimpleNamespace(
            _KinetoProfile=self._profile,
            kineto_available=lambda: True,
            ProfilerActivity=SimpleNamespace(CPU="CPU", CUDA="CUDA"),
        )
        self.autograd = SimpleNamespace(
            _profiler_enabled=lambda: False, profiler=SimpleNamespace(record_function=self._mark)
        )
        self.cuda = SimpleNamespace(
            is_initialized=lambda: cuda,
            is_current_stream_capturing=lambda: False,
            Event=self._event,
            synchronize=lambda: None,
        )
        nothing = contextlib.nullcontext
        self._C = SimpleNamespace(DisableTorchFunction=nothing, _DisableTorchDispatch=nothing)

    def ones(self, *_, device):
        self.asked.append(f"kernel on {device}")

    def _profile(self, activities):
        self.asked.append("+".join(activities))
        names = ("prepare_trace", "start_trace", "stop_trace")
        return SimpleNamespace(
            **{name: lambda name=name: self.asked.append(name) for name in names}, export_chrome_trace=self._export
        )

    def _export(self, path):
        with open(path, "wb") as file:
            file.truncate(self.size)

    @contextlib.contextmanager
    def _mark(self, name):
        self.asked.append(f"> {name}")
        yield
        self.asked.append(f"< {name}")

    def _event(self, enable_timing):
        assert enable_timing
        self.ticks += 1
        at = self.ticks
        return SimpleNamespace(at=at, record=lambda: None, elapsed_time=lambda other: 10.0 * (other.at - at))


@pytest.fixture
def begin(tmp_path, monkeypatch):
    def begin(torch, limit=None, first=4):
        monkeypatch.setitem(sys.modules, "torch", torch)
        training = Training(tmp_path, limit)
        training.observer._open = lambda: training.observer.journal.begin(0, 1, {"schema": 1, **HEADER})
        window = Window(training.observer, str(tmp_path), first, ends=limit is not None)
        training.observer.on.boundary.append(window.boundary)
        training.observer.on.finish.append(window.finish)
        return training

    return begin


HEADER = {
    **{"rank": 0, "local_rank": 0, "world_size": 1, "pid": 7, "origin_unix_ns": 1, "python": "3"},
    **{"versions": {}, "unit_cost_ns": {}},
}


def test_on_a_device_a_known_kernel_and_events_are_recorded_beside_the_steps(begin):
    torch = FakeTorch()
    training = begin(torch)
    training.steps(12)
    records = training.records()
    steps = [word for number in (5, 6, 7) for word in (f"> ProfilerStep#{number}", f"< ProfilerStep#{number}")]
    known = [f"> {module.KNOWN}", "kernel on cuda", f"< {module.KNOWN}"]
    assert torch.asked == ["CPU+CUDA", "prepare_trace", "start_trace", *known, *steps, "stop_trace"]
    assert [one.index for one in records.steps if one.aside] == [4, 5, 6, 7, 8]
    assert records.facts["window.steps"] == "5 6 7"
    assert records.facts["window.event_ms"] == "10.000 10.000 10.000"
    assert records.facts["window.known_kernel"] is True
    assert len(list(training.folder.glob("trace-rank0-pid*.json"))) == 1


def test_without_a_device_there_is_none_of_that(begin):
    torch = FakeTorch(cuda=False)
    training = begin(torch)
    training.steps(12)
    records = training.records()
    assert torch.asked[0] == "CPU"
    assert not [word for word in torch.asked if "kernel" in word]
    assert "window.event_ms" not in records.facts


@pytest.mark.parametrize(("milliseconds", "steps"), [(1, 3), (500, 2), (20_000, 1)])
def test_long_steps_are_recorded_less_often(begin, milliseconds, steps):
    training = begin(FakeTorch())
    window = training.observer.on.boundary[0].__self__
    training.steps(4)
    training.observer.data_asked()  # the boundary before the window
    assert window._count == 3
    window._prepare(milliseconds * 1_000_000)
    assert window._count == steps


def test_a_trace_that_is_too_large_is_not_kept(begin):
    training = begin(FakeTorch(size=module.BYTES_MOST + 1))
    training.steps(12)
    (note,) = training.records().notes
    assert "no trace: that of 3 steps is 256 MiB" in note
    assert not [path for path in training.folder.iterdir() if path.name.startswith("trace")]


def test_where_cuda_graphs_are_used_the_profiler_stays_off(begin, monkeypatch):
    torch = FakeTorch()
    graphs = SimpleNamespace(triton=SimpleNamespace(cudagraphs=True))
    training = begin(torch)
    monkeypatch.setitem(sys.modules, "torch._inductor.config", graphs)
    training.steps(12)
    records = training.records()
    assert torch.asked == []
    assert "CUDA graphs" in records.notes[0]
    assert not [one for one in records.steps if one.aside]


def test_a_profiler_that_fails_is_told_and_its_step_is_set_aside(begin):
    torch = FakeTorch()

    def refuses(path):
        raise OSError("No space left on device")

    torch._export = refuses
    training = begin(torch)
    training.steps(12)
    records = training.records()
    assert records.notes == ("left out between two steps: OSError: No space left on device",)
    assert len(records.steps) == 12
    assert [one.index for one in records.steps if one.aside] == [4, 5, 6, 7, 8]


def test_where_it_begins():
    assert first_step(None, "auto") == 18
    assert first_step(None, "40") == 48
    assert first_step(Limit(30, 7), "7") == 37


def test_behind_the_steps_that_were_asked_for_nothing_more_is_run(begin):
    training = begin(FakeTorch(), limit=Limit(3, 1))
    with pytest.raises(SystemExit):
        training.steps(50)
    assert [one.aside for one in training.records().steps] == [""] * 4 + ["profiler"] * 4


def test_a_training_that_ends_inside_leaves_its_whole_steps(begin):
    training = begin(FakeTorch())
    training.steps(7)
    training.observer.training_ended()
    records = training.records()
    assert records.facts["window.steps"] == "5 6"
    assert records.notes == ("the training ended inside the trace; steps in it: 2",)
    assert len(list(training.folder.glob("trace-*.json"))) == 1


def test_a_second_training_in_the_process_is_waited_for(begin):
    training = begin(FakeTorch())
    training.steps(3)
    training.observer.training_ended()
    training.steps(12)
    assert training.records().facts["window.steps"]


def test_a_fork_writes_no_trace(begin):
    torch = FakeTorch()
    training = begin(torch)
    training.steps(7)
    training.observer.on.boundary[0].__self__.forget()
    training.steps(5)
    training.records()
    assert "stop_trace" not in torch.asked
    assert not list(training.folder.glob("trace-*"))
