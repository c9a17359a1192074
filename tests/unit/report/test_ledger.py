import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepprobe.model.accounts import ACCOUNTS
from stepprobe.model.device import DEVICE_ACCOUNTS
from stepprobe.model.estimate import Estimate
from stepprobe.report import ledger, terminal
from tests.fakes import reports

TIMES = st.dictionaries(st.sampled_from(ACCOUNTS), st.floats(0, 1e4), min_size=1)


@given(TIMES)
def test_drawn_rows_and_families_sum_to_the_wall(accounts):
    accounts = {"unattributed": 0.0} | accounts | {"optimizer": 1.0}
    report = msgspec.structs.replace(reports.clean(), ledger=reports.ledger(accounts, {}, {}))
    wall = math.fsum(row.time.value for row in report.ledger)
    lines, families = ledger.lines(report), ledger.families(report)
    assert math.fsum(line.ms for line in lines) == pytest.approx(wall)
    assert math.fsum(family.ms for family in families) == pytest.approx(wall)
    assert math.fsum(line.share for line in lines) == pytest.approx(1)
    assert lines[-1].label == "unattributed"


def test_small_accounts_without_a_finding_share_one_row():
    report = reports.data_bound()
    labels = [line.label for line in ledger.lines(report)]
    assert labels[-2:] == ["5 small accounts", "unattributed"]
    finding = msgspec.structs.replace(report.findings[0], accounts=("gc",))
    found = msgspec.structs.replace(report, findings=(finding,))
    assert [line.label for line in ledger.lines(found)][-3:] == [
        "garbage collection",
        "4 small accounts",
        "unattributed",
    ]


def test_a_finding_stands_beside_its_first_account():
    report = reports.data_bound()
    beside = {line.label: (line.number, line.more) for line in ledger.lines(report) if line.finding}
    assert beside == {
        "data · wait for the loader": (1, 0),
        "forward · attention": (2, 0),
        "synchronise": (3, 0),
    }
    doubled = msgspec.structs.replace(report, findings=report.findings + report.findings[:1])
    assert next(line.more for line in ledger.lines(doubled) if line.number == 1) == 1


def ranked(*predicted):
    """A report whose findings lie in one account and predict so much."""
    one = reports.data_bound().findings[0]
    remedies = [(msgspec.structs.replace(one.remedies[0], predicted=each),) if each else () for each in predicted]
    found = tuple(msgspec.structs.replace(one, remedies=each) for each in remedies)
    return msgspec.structs.replace(reports.data_bound(), findings=found)


def predicted(value, low=None, high=None, *, bound=False):
    return Estimate(value=value, unit="ms", low=low, high=high, n=9, method="planted", bound=bound)


@pytest.mark.parametrize(
    ("gains", "number"),
    [
        ([None, predicted(3.0, 2.0, 4.0), predicted(9.0, 8.0, 10.0)], 3),
        ([None, predicted(40.0, 0.0, 80.0, bound=True), predicted(9.0, 8.0, 10.0)], 3),
        ([None, predicted(9.0, -8.0, 30.0), predicted(4.0, 0.0, 8.0, bound=True)], 3),
        ([None, predicted(9.0, -8.0, 30.0)], 2),
        ([None, None], 1),
        ([predicted(5.0, 4.0, 6.0), predicted(5.0, 4.0, 6.0)], 1),
    ],
)
def test_a_row_shows_the_finding_that_gains_most(gains, number):
    report = ranked(*gains)
    (line,) = [line for line in ledger.lines(report) if line.finding]
    assert (line.number, line.more) == (number, len(gains) - 1)
    assert line.finding is report.findings[number - 1]
    assert line.gains == gains[number - 1]
    shown = terminal.render(report, width=100).split("Findings")[0]
    assert f"[{number}] " in shown


@pytest.mark.parametrize(
    ("ms", "off", "told"), [(10.0, 0.5, 0.5), (10.0, 0.19, None), (0.9, 0.5, None), (10.0, None, None)]
)
def test_off_cpu_is_told_where_it_is_large(ms, off, told):
    rows = reports.ledger({"optimizer": ms}, {"optimizer": off}, {})
    (line,) = ledger.lines(msgspec.structs.replace(reports.clean(), ledger=rows))
    assert line.off_cpu == told


def test_a_busy_machine_is_said_in_one_word():
    rows = reports.ledger(reports.DATA_BOUND, dict.fromkeys(reports.DATA_BOUND, 0.5), {})
    assert ledger.off_cpu(msgspec.structs.replace(reports.data_bound(), ledger=rows)) == (
        "nearly everything: 50 % of the step"
    )
    assert ledger.off_cpu(reports.data_bound()) == "data · wait for the loader 97\u00a0%, optimizer 31\u00a0%"


def test_every_account_has_a_family():
    assert "rest" not in {ledger.family(account) for account in DEVICE_ACCOUNTS}
    assert set(ledger.FAMILIES) == {ledger.family(account) for account in (*ACCOUNTS, *DEVICE_ACCOUNTS)}
