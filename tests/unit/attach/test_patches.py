"""Replacements book time, call through, and can be taken back."""

import pytest

from stepprobe.instruments.attach.clock import INDEX, StackClock
from stepprobe.instruments.attach.patches import Gate, Patches, booked, swallowed
from tests.fakes.clocks import FakeTime

CLIP, EVAL = INDEX["clip"], INDEX["eval"]


class Base:
    def inherited(self):
        return "base"


class Thing(Base):
    def own(self):
        return "own"


@pytest.fixture
def gate():
    gate = Gate()
    gate.open = True
    return gate


@pytest.fixture
def time():
    return FakeTime()


@pytest.fixture
def clock(time):
    return StackClock(time.now, time.cpu_now)


def loud(function):
    return lambda *args: function(*args).upper()


def test_replace_undo_redo():
    patches = Patches()
    original = Thing.__dict__["own"]
    assert patches.replace(Thing, "own", loud)
    assert Thing().own() == "OWN"
    patches.undo()
    assert Thing.__dict__["own"] is original
    patches.redo()
    assert Thing().own() == "OWN"
    patches.undo()


def test_a_class_is_asked_for_its_own_attribute_only():
    assert not Patches().replace(Thing, "inherited", loud)


def test_an_inherited_attribute_is_removed_again():
    patches = Patches()
    assert patches.replace(Thing, "inherited", loud, inherited=True)
    assert (Thing().inherited(), Base().inherited()) == ("BASE", "base")
    patches.undo()
    assert "inherited" not in Thing.__dict__


def test_mappings_and_absent_names():
    patches, mapping = Patches(), {"loss": str.lower}
    assert patches.replace(mapping, "loss", loud)
    assert not patches.replace(mapping, "no such loss", loud)
    assert mapping["loss"]("Abc") == "ABC"
    patches.undo()
    assert mapping == {"loss": str.lower}


def test_nothing_is_replaced_twice():
    patches, mapping = Patches(), {"loss": str.lower}
    assert patches.replace(mapping, "loss", loud)
    assert not patches.replace(mapping, "loss", loud)


def test_booked_books_and_passes_everything_through(clock, gate, time):
    def work(a, b=0):
        time.spend(30)
        return a + b

    assert booked(clock, gate, CLIP)(work)(1, b=2) == 3
    assert clock.cut().wall[CLIP] == 30


def test_booked_leaves_its_account_when_the_function_raises(clock, gate, time):
    def fail():
        time.spend(30)
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        booked(clock, gate, CLIP)(fail)()
    assert (clock.cut().wall[CLIP], len(clock.stack)) == (30, 1)


def test_a_shut_gate_lets_everything_through_unbooked(clock, gate, time):
    gate.open = False
    booked(clock, gate, CLIP)(lambda: time.spend(30))()
    assert clock.cut().wall[CLIP] == 0


def test_swallowed_takes_what_is_inside(clock, gate, time):
    inner = booked(clock, gate, CLIP)(lambda: time.spend(7))
    swallowed(clock, gate, EVAL)(lambda: (time.spend(5), inner()))()
    books = clock.cut()
    assert (books.wall[EVAL], books.wall[CLIP], gate.open) == (12, 0, True)


def test_what_a_compiler_traces_is_not_booked(clock, gate, time):
    booked(clock, gate, CLIP, lambda: True)(lambda: time.spend(30))()
    assert clock.cut().wall[CLIP] == 0
