"""Who is busy: from the kernel's books, written down for a machine that does not exist, and from this one."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from stepprobe.instruments.experiments import quiet
from stepprobe.instruments.experiments.quiet import Sample, busy, processors


class Books:
    """A /proc in a folder, in which time passes when somebody rests."""

    def __init__(self, folder, others, own, child, stolen=0, cpus=2):
        self.folder, self.spent, self.cpus = folder, {"others": others, "own": own, "child": child}, cpus
        self.stolen = stolen
        self.at = 0
        self.write()

    def write(self, *_):
        mine, tick = os.getpid(), self.at
        busy_ticks = sum(self.spent.values()) * tick
        whole = 30 * tick
        lines = [f"cpu  {busy_ticks} 0 0 0 0 0 0 0 0 0"]
        for number in range(self.cpus + 1):  # the last one is not ours, and always busy
            if number == 0:
                idle, user, steal = whole - busy_ticks - self.stolen * tick, busy_ticks, self.stolen * tick
            else:
                idle, user, steal = (whole, 0, 0) if number < self.cpus else (0, whole, 0)
            lines.append(f"cpu{number} {user} 0 0 {idle} 0 0 0 {steal} 5 0")
        self.folder.mkdir(exist_ok=True)
        (self.folder / "stat").write_text("\n".join([*lines, "intr 5"]))
        for pid, parent, ticks in ((mine, 1, "own"), (mine + 1, mine, "child"), (mine + 2, 1, "others")):
            (self.folder / str(pid)).mkdir(exist_ok=True)
            fields = ["S", str(parent), *["0"] * 9, str(self.spent[ticks] * tick), "0"]
            (self.folder / str(pid) / "stat").write_text(f"{pid} (a name) with) {' '.join(fields)}")
        self.at += 1


@pytest.fixture
def books(tmp_path, monkeypatch):
    def made(**spent):
        found = Books(tmp_path / "proc", **spent)
        monkeypatch.setattr(quiet, "_PROC", found.folder)
        monkeypatch.setattr(quiet, "_allowed", lambda: {0, 1})
        monkeypatch.setattr(quiet, "_cpus", len)
        return found

    return made


def test_before_the_start_a_step_needs_one_processor_at_least(books, monkeypatch):
    found = books(others=12, own=3, child=0)
    monkeypatch.setattr(quiet, "processors", lambda: processors(found.write))
    assert quiet.before_start() == ""  # of two processors one is free: a step of two threads is refused later
    found = books(others=24, own=3, child=0)
    looks = found.at
    why = quiet.before_start()
    assert why.startswith("other processes use 0.8 of 2 processors, and a step needs 1 at least: wait until")
    assert "--anyway" in why
    assert found.at - looks == quiet.PATIENCE


def test_others_are_told_from_the_jobs_own_workers(books):
    sample = processors(books(others=12, own=3, child=6).write)
    assert sample == Sample(2, pytest.approx(12 / 30), pytest.approx(9 / 30))
    assert "other processes use 0.4 of 2 processors, and the step needs 2" in busy(sample, 2)
    assert busy(sample, 1) == ""  # there is a processor for it


def test_data_workers_alone_do_not_make_a_machine_busy(books):
    sample = processors(books(others=0, own=0, child=20).write)
    assert sample.others == 0
    assert sample.own == pytest.approx(20 / 30)
    assert busy(sample, 2) == ""


def test_time_that_another_machine_took_counts(books):
    assert processors(books(others=0, own=0, child=0, stolen=15).write).others == pytest.approx(0.5)


def test_without_books_nothing_is_known_and_nothing_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(quiet, "_PROC", tmp_path)
    sample = processors(lambda _: None)
    assert sample.others is None
    assert busy(sample, 8) == ""


@pytest.mark.parametrize(
    ("sample", "threads", "refused"),
    [
        (Sample(2, 0.2, 0), 2, False),  # what a machine does by itself
        (Sample(2, 0.3, 0), 2, True),
        (Sample(64, 1.0, 0), 64, True),  # one thread of 64 waits for its core, and the others for that thread
        (Sample(64, 1.0, 0), 32, False),
        (Sample(64, 20.0, 0), 32, True),  # enough cores, but memory is shared
    ],
)
def test_thresholds(sample, threads, refused):
    assert bool(busy(sample, threads)) is refused


def test_a_busy_child_of_this_process_is_its_own():
    child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        samples = [processors() for _ in range(3)]
    finally:
        child.kill()
        child.wait()
    assert max(sample.own for sample in samples) > 0.1


def observed(monkeypatch, samples, torch=None, kind="cpu", *, anyway=False):
    left = list(samples)
    monkeypatch.setattr(quiet, "processors", lambda: left.pop(0))
    monkeypatch.setattr(quiet.time, "sleep", lambda _: None)
    found = quiet.observe(torch or SimpleNamespace(get_num_threads=lambda: 2), kind, free_bytes=5, anyway=anyway)
    return found, left


def test_a_machine_that_becomes_quiet_is_waited_for(monkeypatch):
    found, left = observed(monkeypatch, [Sample(2, 2.0, 0), Sample(2, 1.0, 0), Sample(2, 0.0, 0.5), Sample(2, 2.0, 0)])
    assert found["refused"] == ""
    assert found["others_share"] == 0
    assert found["own_share"] == 0.25
    assert len(left) == 1


def test_a_machine_that_stays_busy_is_refused_unless_anyway(monkeypatch):
    found, _ = observed(monkeypatch, [Sample(2, 1.0, 0)] * quiet.PATIENCE)
    assert "--anyway" in found["refused"]
    assert found["others_share"] == 0.5
    found, _ = observed(monkeypatch, [Sample(2, 1.0, 0)] * quiet.PATIENCE, anyway=True)
    assert (found["refused"], found["anyway"], found["others_share"]) == ("", True, 0.5)
    assert "other processes use" in found["busy"]


def test_a_quiet_machine_is_not_called_busy_because_anyway_was_said(monkeypatch):
    found, _ = observed(monkeypatch, [Sample(4, 0.1, 0)] * quiet.PATIENCE, anyway=True)
    assert (found["busy"], found["anyway"]) == ("", True)


def card(share, listed="GPU:0\nno processes are running"):
    def utilization():
        if isinstance(share, Exception):
            raise share
        return share

    cuda = SimpleNamespace(synchronize=lambda: None, utilization=utilization, list_gpu_processes=lambda: listed)
    return SimpleNamespace(get_num_threads=lambda: 8, cuda=cuda)


def test_a_card_that_works_while_this_process_rests_is_refused(monkeypatch):
    idle = [Sample(8, 0.0, 0)] * quiet.PATIENCE
    listed = (
        f"GPU:0\nprocess {os.getpid():>10d} uses   12.0 MB GPU memory\nprocess          7 uses    9.0 MB GPU memory"
    )
    found, _ = observed(monkeypatch, idle, card(90, listed), "cuda")
    assert "the card is 90% busy" in found["refused"]
    assert (found["device_busy_share"], found["device_processes"]) == (0.9, 1)
    found, _ = observed(monkeypatch, idle, card(0, listed), "cuda")
    assert found["refused"] == ""  # a process that holds memory and does nothing is no load
    found, _ = observed(monkeypatch, idle, card(ModuleNotFoundError("pynvml"), "pynvml module not found"), "cuda")
    assert (found["device_busy_share"], found["device_processes"], found["refused"]) == (None, None, "")
