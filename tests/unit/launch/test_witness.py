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


@pytest.fixture
def sent_while_renewed(witness, monkeypatch):
    """Send a signal to the witnesses there are, before or behind the start of the second."""

    def sent(number, *, behind):
        start, first = witness._start, witness._pid

        def started():
            if behind:
                start()
                os.kill(witness._pid, number)
            os.kill(first, number)
            if not behind:
                start()
            witness._start = start

        monkeypatch.setattr(witness, "_start", started)

    return sent


@pytest.mark.parametrize("behind", [False, True])
def test_what_is_sent_while_another_takes_its_place_is_told_once(witness, sent_while_renewed, behind):
    sent_while_renewed(signal.SIGUSR2, behind=behind)
    os.kill(witness._pid, signal.SIGUSR1)
    assert witness.saw(signal.SIGUSR1)
    assert witness.saw(signal.SIGUSR2)
    assert not witness.saw(signal.SIGUSR2)


@pytest.mark.parametrize("first_saw", [False, True])
def test_what_we_were_never_sent_hides_no_later_signal(witness, monkeypatch, first_saw):
    monkeypatch.setattr(module, "LOOKS_S", 0)
    witness._looks_at = 0
    os.kill(witness._pid, signal.SIGTERM)
    if first_saw:
        os.kill(witness._pid, signal.SIGUSR1)
        assert witness.saw(signal.SIGUSR1)
    witness.rest()
    witness.rest()
    assert not witness.saw(signal.SIGTERM)


def test_what_may_be_on_its_way_to_us_is_kept(witness):
    witness._looks_at = 0
    os.kill(witness._pid, signal.SIGTERM)
    witness.rest()
    assert witness.saw(signal.SIGTERM)


def test_what_comes_while_an_old_one_is_forgotten_is_kept(witness, monkeypatch):
    monkeypatch.setattr(module, "LOOKS_S", 0)
    witness._looks_at = 0
    os.kill(witness._pid, signal.SIGTERM)
    witness.rest()
    os.kill(witness._pid, signal.SIGUSR1)
    witness.rest()
    assert witness.saw(signal.SIGUSR1)
    assert not witness.saw(signal.SIGTERM)
