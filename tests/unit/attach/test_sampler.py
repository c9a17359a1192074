"""The sampler is nobody's thread but ours, and never keeps a process from ending."""

import os
import sys
import threading
import time
from types import SimpleNamespace

import pytest

from stepprobe.instruments.attach.budget import launched_as
from stepprobe.instruments.attach.callers import named
from stepprobe.instruments.attach.observer import Observer
from stepprobe.instruments.attach.sampler import Sampler


@pytest.fixture
def observer():
    observer = Observer("", None)
    observer.running = True
    return observer


def test_it_takes_samples_and_the_script_does_not_count_it(observer):
    before = threading.enumerate()
    sampler = Sampler(observer)
    sampler.start()
    deadline = time.monotonic() + 60
    while not observer.sites._pending and time.monotonic() < deadline:
        sum(range(1000))
    assert threading.enumerate() == before
    sampler.stop()
    assert observer.sites._pending


def test_a_call_of_ours_in_somebody_s_name_is_not_their_line(observer):
    compiler = SimpleNamespace(is_dynamo_compiling=lambda: False)
    named(Sampler(observer)._look, compiler)()
    ((_, user, _, leaf, _),) = observer.sites._pending
    assert user is leaf is sys._getframe().f_code


def test_stopping_what_never_started_returns(observer):
    sampler = Sampler(observer)
    sampler.stop()
    sampler.stop()
    assert observer.sites.sampler["taken"] == 0


def test_a_fork_does_not_wait_for_the_parent_s_thread(observer):
    sampler = Sampler(observer)
    sampler.start()
    child = os.fork()
    if child == 0:
        sampler.forget()
        sampler.stop()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    sampler.stop()


@pytest.mark.parametrize(
    ("text", "number"), [("3", 3), (" 3 ", 3), ("", 7), ("first", 7), ("-1", 7), ("²", 7), ("9" * 30, 7)]
)
def test_what_a_launcher_says_that_is_no_number_says_nothing(monkeypatch, text, number):
    monkeypatch.setenv("RANK", text)
    assert launched_as("RANK", 7) == number
