"""Dividing what was booked whole, without losing a nanosecond."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepprobe.analysis.ledger.attribution import attribute, detailed_shares, divide
from stepprobe.analysis.ledger.process import Process
from stepprobe.errors import LedgerError
from stepprobe.model.accounts import ACCOUNTS, FORWARD
from stepprobe.model.records import Step, decode_process
from tests.fakes.records import FakeProcess

NS = st.integers(0, 10**10)
PAIR = st.tuples(NS, st.integers(0, 100)).map(lambda pair: (pair[0], pair[0] * pair[1] // 100))


def make_step(index, detail, accounts):
    wall = sum(spent for spent, _ in accounts.values())
    return Step(
        index=index, start_ns=0, wall_ns=wall, cpu_ns=0, self_ns=0, detail=detail, accounts=accounts, counters={}
    )


DETAILED = st.dictionaries(st.sampled_from(ACCOUNTS), PAIR)
WHOLE = st.dictionaries(st.sampled_from(["forward", "backward", "optimizer", "sync", "forward.loss"]), PAIR)
STEPS = st.lists(st.one_of(st.tuples(st.just(True), DETAILED), st.tuples(st.just(False), WHOLE)), max_size=12).map(
    lambda drawn: [make_step(index, detail, accounts) for index, (detail, accounts) in enumerate(drawn)]
)


@given(NS, st.dictionaries(st.text(max_size=3), st.integers(1, 10**12), min_size=1, max_size=8))
def test_parts_sum_to_the_whole_and_are_within_one_of_their_share(total, weights):
    parts = divide(total, weights)
    assert sum(parts.values()) == total
    whole = sum(weights.values())
    assert all(abs(spent - total * weights[name] / whole) < 1 + 1e-6 * total for name, spent in parts.items())


def test_nothing_cannot_be_divided_by():
    with pytest.raises(ValueError, match="sum to nothing"):
        divide(5, {"forward.mlp": 0})


@given(STEPS)
def test_divided_accounts_sum_to_the_wall_exactly(steps):
    entries = attribute(steps, detailed_shares(steps))
    assert [sum(entry.accounts.values()) for entry in entries] == [step.wall_ns for step in steps]
    assert all(account in ACCOUNTS for entry in entries for account in entry.accounts)
    for entry, step in zip(entries, steps, strict=True):
        assert sum(entry.off_cpu.values()) == sum(off for _, off in step.accounts.values())


@given(STEPS, st.integers(1, 1000))
def test_scaling_the_detailed_steps_leaves_the_division_alone(steps, factor):
    scaled = [
        make_step(one.index, True, {name: (wall * factor, off) for name, (wall, off) in one.accounts.items()})
        if one.detail
        else one
        for one in steps
    ]
    before = attribute(steps, detailed_shares(steps))
    after = attribute(scaled, detailed_shares(scaled))
    assert [e.accounts for e in before if not e.detail] == [e.accounts for e in after if not e.detail]


def process(fake: FakeProcess) -> Process:
    return Process(decode_process(fake.name, fake.data()), "0")


def test_undivided_time_goes_where_the_detailed_steps_spend_it():
    fake = FakeProcess().step({"forward.attention": 20, "forward.mlp": 60, "backward.mlp": 30, "recompute": 10})
    fake.steps(3, {"forward": 100, "backward": 60, "optimizer": 5}, detail=False)
    seen = process(fake)
    assert seen.entries[1].accounts == {
        "forward.attention": 25_000_000,
        "forward.mlp": 75_000_000,
        "backward.mlp": 45_000_000,
        "recompute": 15_000_000,
        "optimizer": 5_000_000,
    }


def test_a_part_that_undivided_steps_book_themselves_gets_nothing_of_the_rest():
    fake = FakeProcess().step({"forward.loss": 50, "forward.mlp": 50})
    fake.steps(2, {"forward": 40, "forward.loss": 50}, detail=False)
    assert process(fake).entries[1].accounts == {"forward.loss": 50_000_000, "forward.mlp": 40_000_000}


def test_without_a_detailed_step_the_whole_is_other():
    seen = process(FakeProcess().steps(3, {"forward": 40, "backward": 80}, detail=False))
    assert seen.entries[0].accounts == {"forward.other": 40_000_000, "backward.other": 80_000_000}


def test_the_shares_of_warmup_steps_are_taken_only_where_there_are_no_others():
    fake = FakeProcess().step({"forward.mlp": 900}).steps(4, {"forward": 100}, detail=False)
    seen = Process(decode_process(fake.name, fake.data()), "1")
    assert seen.borrowed_detail
    assert seen.entries[0].accounts == {"forward.mlp": 100_000_000}
    fake.step({"forward.norm": 100})
    seen = Process(decode_process(fake.name, fake.data()), "1")
    assert not seen.borrowed_detail
    assert seen.entries[0].accounts == {"forward.norm": 100_000_000}


@pytest.mark.parametrize("lost", [-1, 1])
def test_a_step_that_does_not_close_is_refused(lost):
    fake = FakeProcess().step({account: 10 for account in FORWARD})
    record = fake.records[-1]
    broken = Step(**{name: getattr(record, name) for name in record.__struct_fields__} | {"wall_ns": 80_000_000 + lost})
    fake.records[-1] = broken
    with pytest.raises(LedgerError, match="does not close"):
        process(fake)
