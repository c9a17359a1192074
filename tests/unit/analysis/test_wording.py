"""Sizes inside sentences."""

import pytest

from stepprobe.analysis.wording import size


@pytest.mark.parametrize(
    ("count", "told"),
    [
        (0, "0 B"),
        (1023, "1,023 B"),
        (1024, "1.0 KiB"),
        (5_400_000, "5.1 MiB"),
        ((1 << 30) - 1, "1,024.0 MiB"),
        (1 << 30, "1.0 GiB"),
        (5000 << 30, "5,000.0 GiB"),
    ],
)
def test_bytes_are_told_in_the_largest_unit_of_which_there_is_one(count, told):
    assert size(count) == told
