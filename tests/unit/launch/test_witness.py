"""The witness tells what was sent to all from what was sent to one, and can be missing."""

import os
import signal

import pytest

from stepprobe.launch import witness as module
from stepprobe.launch.witness import Witness


@pytest.fixture
def witness():
    witness = Witness(["python", "train.py"])
    yield witness
    witness.end()


def test_what_reached_it_is_told_once(witness):
    os.kill(witness._pid, signal.SIGUSR1)
    os.kill(witness._pid, signal.SIGTERM)
    assert witness.saw(signal.SIGTERM)
    assert witness.saw(signal.SIGUSR1)
    assert not witness.saw(signal.SIGTERM)
    assert not witness.saw(signal.SIGUSR1)


def test_one_that_was_killed_saw_nothing(witness):
    os.kill(witness._pid, signal.SIGKILL)
    assert not witness.saw(signal.SIGTERM)


def test_where_it_cannot_be_had_nothing_was_sent_to_all(monkeypatch):
    monkeypatch.setattr(module, "_SHELL", "/no such shell")
    before = set(os.listdir("/proc/self/fd"))
    witness = Witness(["python"])
    assert not witness.saw(signal.SIGTERM)
    witness.end()
    assert set(os.listdir("/proc/self/fd")) == before


def test_it_leaves_no_process_and_no_file():
    before = set(os.listdir("/proc/self/fd"))
    witness = Witness(["python"])
    witness.end()
    witness.end()
    assert set(os.listdir("/proc/self/fd")) == before
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)
