"""What all tests share."""

import signal

import pytest

TRIES = 3


def pytest_configure() -> None:
    """Whoever starts the tests in the background may have them ignore what a terminal sends; scripts inherit that."""
    for number in (signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test of what a clock said is tried again: a busy machine hides a fault once, a bug fails all three."""
    for item in items:
        if item.get_closest_marker("noisy"):
            item.add_marker(pytest.mark.flaky(reruns=TRIES - 1))
