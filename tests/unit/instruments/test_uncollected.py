"""The garbage collector rests for a while, and is afterwards as it was."""

import gc

import pytest

from stepprobe.instruments.uncollected import uncollected


@pytest.fixture(params=[True, False])
def before(request):
    was = gc.isenabled()
    (gc.enable if request.param else gc.disable)()
    yield request.param
    (gc.enable if was else gc.disable)()


def fail():
    with uncollected():
        assert not gc.isenabled()
        raise KeyError


def test_the_collector_rests_and_is_as_it_was_even_after_an_error(before):
    with pytest.raises(KeyError):
        fail()
    assert gc.isenabled() is before
