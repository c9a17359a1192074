"""The stack clock books each nanosecond once, whatever happens between two events."""

import gc
import threading
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepprobe.instruments.attach.clock import INDEX, UNATTRIBUTED, StackClock
from tests.fakes.clocks import FakeTime

FORWARD, LOSS, SYNC = INDEX["forward"], INDEX["forward.loss"], INDEX["sync"]


@pytest.fixture
def time():
    return FakeTime()


@pytest.fixture
def clock(time):
    return StackClock(time.now, time.cpu_now)


def test_time_goes_to_the_account_on_top(clock, time):
    time.spend(5)
    outer = clock.push(FORWARD)
    time.spend(10)
    inner = clock.push(LOSS)
    time.spend(100)
    clock.pop_to(inner)
    time.spend(20)
    clock.pop_to(outer)
    time.spend(3)
    books = clock.cut()
    assert (books.wall[UNATTRIBUTED], books.wall[FORWARD], books.wall[LOSS]) == (8, 30, 100)
    assert sum(books.wall) == books.end_wall - books.begin_wall == 138


def test_off_cpu_is_what_the_cpu_clock_did_not_see(clock, time):
    depth = clock.push(SYNC)
    time.spend(100, cpu=4)
    clock.pop_to(depth)
    books = clock.cut()
    assert (books.wall[SYNC], books.cpu[SYNC]) == (100, 4)


def test_leaving_an_outer_account_closes_what_an_exception_left_open(clock, time):
    outer = clock.push(FORWARD)
    clock.push(LOSS)
    time.spend(7)
    clock.pop_to(outer)
    time.spend(2)
    books = clock.cut()
    assert (books.wall[LOSS], books.wall[FORWARD], books.wall[UNATTRIBUTED]) == (7, 0, 2)
    assert clock.stack == [UNATTRIBUTED]


def test_the_lowest_account_cannot_be_left(clock):
    clock.pop_to(0)
    assert clock.stack == [UNATTRIBUTED]


def test_mark_goes_over_at_the_same_depth(clock, time):
    depth = clock.push(FORWARD)
    time.spend(1)
    clock.mark(LOSS)
    time.spend(2)
    clock.pop_to(depth)
    books = clock.cut()
    assert (books.wall[FORWARD], books.wall[LOSS]) == (1, 2)


def test_a_clock_that_goes_backwards_is_held_still_and_counted(clock, time):
    clock.push(FORWARD)
    time.spend(50)
    clock.mark(LOSS)
    time.wall -= 30
    clock.mark(SYNC)
    time.spend(40)
    books = clock.cut()
    assert clock.backwards == 1
    assert min(books.wall) >= 0
    assert sum(books.wall) == books.end_wall - books.begin_wall == 60


def test_events_of_another_thread_book_wall_time_but_not_its_cpu_time(clock, time):
    clock.push(FORWARD)
    time.spend(10)

    def elsewhere():
        time.spend(100, cpu=0)
        clock.mark(LOSS)
        time.cpu += 77  # the other thread's own CPU clock reads something else altogether

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    time.cpu -= 77
    books = clock.cut()
    assert books.wall[FORWARD] == 110
    assert sum(books.cpu) == 10


def test_take_ends_at_the_last_event(clock, time):
    clock.pop_to(clock.push(FORWARD))
    time.spend(1_000)
    books = clock.take()
    assert books.end_wall - books.begin_wall == sum(books.wall) == 0


def test_books_close_when_the_collector_books_itself_between_any_two_reads():
    clock = StackClock()
    account = INDEX["gc"]
    depths = []

    def collecting(phase, _):
        if phase == "start":
            depths.append(clock.push(account))
        else:
            clock.pop_to(depths.pop())

    threshold = gc.get_threshold()
    gc.callbacks.append(collecting)
    gc.set_threshold(1)
    try:
        books = []
        for _ in range(300):
            clock.pop_to(clock.push(FORWARD))
            books.append(clock.cut())
    finally:
        gc.set_threshold(*threshold)
        gc.callbacks.remove(collecting)
    assert any(book.wall[account] for book in books), "the collector never ran: the test shows nothing"
    assert all(sum(book.wall) == book.end_wall - book.begin_wall for book in books)
    assert all(before.end_wall == after.begin_wall for before, after in pairwise(books))


EVENTS = st.lists(
    st.tuples(st.sampled_from(["push", "pop", "mark", "rebase", "cut"]), st.integers(0, 30), st.integers(-20, 1000))
)


@given(EVENTS)
def test_any_sequence_of_events_closes(events):
    time = FakeTime()
    clock = StackClock(time.now, time.cpu_now)
    for event, account, elapsed in events:
        time.wall += elapsed
        match event:
            case "push":
                clock.push(account)
            case "pop":
                clock.pop_to(account % 4)
            case "mark":
                clock.mark(account)
            case "rebase":
                clock.rebase(account)
            case "cut":
                books = clock.cut()
                assert sum(books.wall) == books.end_wall - books.begin_wall
    books = clock.cut()
    assert sum(books.wall) == books.end_wall - books.begin_wall
    assert min(books.wall) >= 0
