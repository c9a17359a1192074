"""What all tests share."""

import pytest

TRIES = 3


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test of what a clock said is tried again: a busy machine hides a fault once, a bug fails all three."""
    for item in items:
        if item.get_closest_marker("noisy"):
            item.add_marker(pytest.mark.flaky(reruns=TRIES - 1))
