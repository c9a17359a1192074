"""The options of `stepprobe profile`, and what they tell the process of the training."""

import json
import sys
from io import StringIO

import pytest

from stepprobe.cli import main
from stepprobe.cli._console import show
from stepprobe.instruments.experiments import quiet
from stepprobe.launch.script import _child_environment, plan
from stepprobe.probes import profile
from tests.fakes.experiments import FakeExperiments, evidence
from tests.fakes.records import clean_process

EXPERIMENTS = {"harness": "steps:make", "keep_training": "yes", "anyway": "no", "seconds": "30.0"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--harness", "steps"], "not module:factory"),
        (["--harness", "my steps:make"], "not module:factory"),
        (["--time", "0"], "not a positive number of seconds"),
        (["--time", "soon"], "not a positive number of seconds"),
        (["--steps", "0"], "not a whole number of at least 1"),
    ],
)
def test_a_wrong_option_is_told(capsys, words, said):
    assert main(["profile", *words, "--", sys.executable, "-c", "pass"]) == 2
    assert said in capsys.readouterr().err


def test_a_profile_is_planned_and_told_to_the_process(tmp_path):
    planned = plan(["python", "train.py"], steps=40, warmup="auto", experiments=EXPERIMENTS)
    assert (planned.probe, planned.command) == ("profile", "profile")
    environment = _child_environment(tmp_path, planned)
    assert environment["STEPPROBE_STEPS"] == ""
    assert json.loads(environment["STEPPROBE_PROFILE"]) == {
        "steps": 40,
        "warmup": 10,
        "harness": "steps:make",
        "keep_training": True,
        "anyway": False,
        "seconds": 30.0,
    }


def test_a_run_makes_no_experiments(tmp_path):
    environment = _child_environment(tmp_path, plan(["python", "train.py"], steps=3, warmup="auto"))
    assert environment["STEPPROBE_PROFILE"] == ""
    assert environment["STEPPROBE_STEPS"] == "3"


WHY = "other processes use 1.6 of 2 processors: wait, or measure with --anyway"
WRITES = "import pathlib; pathlib.Path('ran').touch()"


def test_a_busy_machine_is_refused_before_the_script_is_started(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(quiet, "before_start", lambda: WHY)
    assert main(["profile", "--", sys.executable, "-c", WRITES]) == 3
    told = capfd.readouterr()
    assert told.err == f"stepprobe: not started: {WHY}\n"
    assert list(tmp_path.iterdir()) == []
    assert main(["profile", "--json", "--", sys.executable, "-c", WRITES]) == 3
    assert json.loads(capfd.readouterr().out)["headline"] == f"not started: {WHY}"


def test_anyway_starts_on_a_busy_machine(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(quiet, "before_start", lambda: WHY)
    main(["profile", "--anyway", "--", sys.executable, "-c", WRITES])
    assert (tmp_path / "ran").is_file()


def test_a_command_that_is_none_is_told_before_the_machine_is_looked_at(monkeypatch, capfd):
    monkeypatch.setattr(quiet, "before_start", lambda: pytest.fail("looked at"))
    assert main(["profile", "--", "no-such-program-at-all"]) == 2
    assert "no-such-program-at-all" in capfd.readouterr().err


def test_a_machine_that_became_busy_costs_the_experiments_alone():
    """The steps were observed: their ledger is printed beside the refusal, and nothing about experiments is."""
    report = profile.derive(evidence(FakeExperiments().quiet(refused=WHY).end(reason=WHY), clean_process()))
    stream = StringIO()
    assert show(report, as_json=False, stream=stream) == 3
    drawn = stream.getvalue()
    assert drawn.startswith("not measured: other processes use 1.6 of 2 processors")
    assert "forward · mlp" in drawn
    assert "no experiment was made" in drawn
    assert not any(word in drawn for word in ("padding was not measured", "no forecast:", "ceiling of matmul"))


def test_where_nothing_was_seen_the_headline_says_everything(capsys):
    report = profile.derive(evidence(FakeExperiments().quiet(refused=WHY).end(reason=WHY)))
    stream = StringIO()
    assert show(report, as_json=False, stream=stream) == 3
    assert stream.getvalue() == ""
    assert capsys.readouterr().err.startswith("stepprobe: not measured: other processes")
