"""An exit of the step is about its batch; one out of a handler of a signal is meant."""

import os
import signal
import sys

import pytest

from stepprobe.instruments.experiments.exits import refuses


def leave(*_):
    sys.exit(7)


@pytest.fixture
def handled():
    before = signal.signal(signal.SIGUSR1, leave)
    yield
    signal.signal(signal.SIGUSR1, before)


def raised(act):
    try:
        act()
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


@pytest.mark.usefixtures("handled")
def test_an_exit_out_of_a_handler_is_meant_and_one_of_the_step_is_not():
    assert refuses(raised(lambda: sys.exit(7)))
    assert not refuses(raised(lambda: os.kill(os.getpid(), signal.SIGUSR1)))


def test_where_a_handler_cannot_be_told_no_exit_is_the_steps():
    class Handler:
        def __call__(self, *_):
            sys.exit(7)

    before = signal.signal(signal.SIGUSR1, Handler())
    try:
        assert not refuses(raised(lambda: sys.exit(7)))
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_every_exception_is_about_the_batch_and_an_interrupt_is_not():
    assert refuses(ValueError("no"))
    assert refuses(MemoryError())
    assert not refuses(KeyboardInterrupt())
