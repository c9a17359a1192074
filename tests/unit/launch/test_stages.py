import json

import pytest

from stepprobe.launch.stages import explain
from stepprobe.model.evidence import Evidence


def evidence(*events, status="finished", tail=b""):
    lines = b"".join(json.dumps({"pid": 1, "event": event, "detail": ""}).encode() + b"\n" for event in events)
    return Evidence(
        probe="ledger",
        command="run",
        subject="x",
        environment={},
        files={"attach-events.jsonl": lines + tail},
        status=status,
    )


@pytest.mark.parametrize(
    ("reached", "told"),
    [
        ((), "no Python process"),
        (("python",), "never imported torch"),
        (("python", "python", "torch"), "no optimizer was made"),
        (("python", "torch", "optimizer"), "no training step was begun"),
        (("python", "torch", "optimizer", "step"), "never called optimizer.step()"),
    ],
)
def test_the_first_stage_that_was_not_reached_is_explained(reached, told):
    assert told in explain(evidence(*reached))


def test_a_cut_line_is_no_event():
    assert "never imported torch" in explain(evidence("python", tail=b'{"pid":1,"event":"tor'))


@pytest.mark.parametrize(
    ("status", "told"), [("exit 2", "exit code 2"), ("signal 9", "signal 9"), ("interrupted", "interrupted")]
)
def test_the_end_is_told(status, told):
    assert told in explain(evidence(status=status))


@pytest.mark.parametrize(
    ("living", "told"), [([1, 7], "where it is observed"), ([7], "a forked process is not observed")]
)
def test_what_goes_on_in_the_background_is_observed_where_it_has_a_python_of_its_own(living, told):
    assert told in explain(evidence("python"), living)


def test_a_command_that_failed_is_explained_whatever_it_left_running():
    told = explain(evidence("python", status="exit 1"), [7])
    assert "exit code 1" in told
    assert "never imported torch" in told
