"""A step that is set aside is written in full, says why, and teaches the instrument nothing."""

import pytest

from stepprobe.instruments.attach.observer import Limit, Observer
from stepprobe.instruments.attach.recorder import Recorder
from stepprobe.model.records import decode_process
from tests.unit.attach.test_recorder import HEADER, step


class Training:
    """Drives an observer through steps, without a training."""

    def __init__(self, folder, limit=None):
        self.folder = folder
        self.observer = Observer(str(folder), limit)
        self.observer.optimizers = 1

    def step(self):
        self.observer.data_asked()
        self.observer.optimizer_begins()
        self.observer.optimizer_ended()

    def steps(self, count):
        for _ in range(count):
            self.step()

    def records(self):
        self.observer.close()
        (path,) = self.folder.glob("steps-*.jsonl")
        return decode_process(path.name, path.read_bytes())


@pytest.fixture
def training(tmp_path):
    return Training(tmp_path)


def test_the_step_under_way_is_marked_and_the_next_is_not(training):
    def mark(index):
        training.observer.aside = "profiler" if index in (2, 3) else ""
        return False

    training.observer.on.boundary.append(mark)
    for _ in range(6):
        training.step()
    assert [one.aside for one in training.records().steps] == ["", "", "profiler", "profiler", "", ""]


def test_a_mark_without_a_hook_ends_with_its_step(training):
    training.step()
    training.observer.aside = "experiments"
    for _ in range(3):
        training.step()
    assert [one.aside for one in training.records().steps] == ["experiments", "", "", ""]


def test_what_happens_between_two_steps_is_in_none(training):
    def last(index):
        if index == 2:
            training.observer.clock.wall_at -= 10**12  # as if it had taken a thousand seconds
        return index == 2

    training.observer.on.boundary.append(last)
    for _ in range(4):
        training.step()
    found = training.records().steps
    assert max(one.wall_ns for one in found) < 10**11
    assert all(one.wall_ns == sum(wall for wall, _ in one.accounts.values()) for one in found)
    assert max(one.self_ns for one in found) < 10**11


def test_a_fault_between_two_steps_is_told_and_ends_only_itself(training):
    def fails(_):
        raise OSError("no room")

    training.observer.on.boundary.append(fails)
    for _ in range(3):
        training.step()
    records = training.records()
    assert len(records.steps) == 3
    assert records.notes == ("left out between two steps: OSError: no room",)


@pytest.mark.parametrize(
    ("stays", "said"),
    [
        ("", "4 steps, as asked, and 1 to warm up, and 2 set aside"),
        ("--stay", "4 steps and 1 to warm up, and 2 for trace and experiments; --stay lets it go on"),
    ],
)
def test_steps_that_are_asked_for_are_ordinary_ones(tmp_path, capfd, stays, said):
    """Of a profile nobody may have named a number; ``stays`` is the option with which its job goes on."""
    training = Training(tmp_path, None if stays else Limit(4, 1))
    if stays:
        training.observer.end_after(Limit(4, 1), stays)

    def mark(index):
        training.observer.aside = "profiler" if index in (2, 3) else ""
        return False

    training.observer.on.boundary.append(mark)
    with pytest.raises(SystemExit):
        training.steps(20)
    found = training.records().steps
    assert [one.aside for one in found].count("") == 5
    assert len(found) == 7
    assert capfd.readouterr().err == f"stepprobe: ended the script after {said}\n"


def test_it_teaches_the_budget_nothing(training):
    budget = training.observer.budget
    taught = []
    budget.learn = lambda detail, cost, cpu: taught.append(detail)
    budget.feel = lambda parts, inside: taught.append(parts)
    training.step()
    training.observer.aside = "profiler"
    training.observer.data_asked()
    assert not taught
    training.observer.optimizer_ended()
    training.observer.data_asked()
    assert taught == [0, True]


def test_its_samples_are_dropped(training):
    code = compile("", "here.py", "exec")
    for aside in ("profiler", ""):
        training.step()
        training.observer.aside = aside
        training.observer.sites.sample("forward", code, 1, code, 1)
        training.observer.data_asked()
        training.observer.optimizer_ended()
    training.observer.data_asked()
    assert training.observer.sites.sampler["taken"] == 1


def test_sums_never_swallow_it(tmp_path):
    path = tmp_path / "steps-rank0-pid7.jsonl"
    recorder = Recorder(str(path), full_steps=4)
    recorder.write("header", HEADER)
    for index in range(100):
        recorder.step({**step(index), "aside": "profiler" if index in (33, 34, 35) else ""}, index)
    recorder.close()
    read = decode_process(path.name, path.read_bytes())
    assert [one.index for one in read.steps if one.aside] == [33, 34, 35]
    assert len(read.steps) + sum(one.count for one in read.summaries) == 100
