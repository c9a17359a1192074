"""`stepprobe demo`: what it hands to `run`, and what it says when it cannot."""

import argparse
import subprocess
import sys
from pathlib import Path

import pytest

from stepprobe.cli import demo, main
from stepprobe.errors import NotObserved, UsageError


def parse(*words):
    parser = argparse.ArgumentParser()
    demo.add_arguments(parser)
    return parser.parse_args(words)


@pytest.fixture
def handed_over(monkeypatch):
    """Command lines that the demo gives to `stepprobe` itself; the dataset builder is not run."""
    lines = []
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")  # so that it is put back after the test
    monkeypatch.setattr("stepprobe.cli.main", lambda argv: lines.append(argv) or 7)
    monkeypatch.setattr(subprocess, "run", lambda command, **_: subprocess.CompletedProcess(command, 0))
    return lines


def test_demo_is_run_on_the_unmodified_example(handed_over, tmp_path, capsys):
    assert demo.run(parse("--steps", "9", "--out", str(tmp_path))) == 7
    script = Path(__file__).parents[3] / "examples" / "sft_trainer.py"
    data, tokenizer = (str(tmp_path / demo.DATASET / part) for part in ("data", "tokenizer"))
    training = [sys.executable, str(script), "--data", data, "--tokenizer", tokenizer, "--steps", "9"]
    assert handed_over == [["run", "--out", str(tmp_path), "--", *training]]
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "stepprobe run -- " in printed.err


def test_json_is_passed_on(handed_over, tmp_path):
    demo.run(parse("--json", "--out", str(tmp_path)))
    assert "--json" in handed_over[0][: handed_over[0].index("--")]


def test_missing_packages_are_named_with_the_line_that_installs_them(handed_over, tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "NEEDED", ("torch", "no_such_package"))
    with pytest.raises(UsageError, match=r"lacks no_such_package;.* -m pip install '\.\[demo\]'"):
        demo.run(parse("--out", str(tmp_path)))
    assert handed_over == []


def test_impossible_step_counts_are_refused(handed_over, tmp_path):
    assert main(["demo", "--steps", "0", "--out", str(tmp_path)]) == UsageError.exit_code
    assert handed_over == []


def test_an_output_folder_that_cannot_be_made_is_said(handed_over, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="--out DIR"):
        demo.run(parse("--out", str(tmp_path / "file" / "below")))


def test_a_failed_dataset_stops_the_demo(handed_over, tmp_path, monkeypatch):
    monkeypatch.setattr(subprocess, "run", lambda command, **_: subprocess.CompletedProcess(command, 3))
    with pytest.raises(NotObserved, match=r"exit 3.*make_dataset.py --out"):
        demo.run(parse("--out", str(tmp_path)))
    assert handed_over == []
