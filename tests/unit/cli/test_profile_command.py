"""The options of `stepprobe profile`, and what they tell the process of the training."""

import json
import sys

import pytest

from stepprobe.cli import main
from stepprobe.launch.script import _child_environment, plan

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
