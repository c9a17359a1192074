"""`stepprobe demo` from its first line to the report, and once more on the dataset that is there."""

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.e2e


def demo(folder, environment, *options):
    command = [sys.executable, "-m", "stepprobe", "demo", "--out", str(folder), "--steps", "12", *options]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)


def test_demo_ends_with_a_report(tmp_path, environment):
    first = demo(tmp_path, environment)
    assert first.returncode == 0, first.stderr
    assert "final training loss" in first.stdout
    (report,) = tmp_path.glob("*/report.html")
    assert str(report.parent) in first.stderr
    assert (tmp_path / "demo-dataset" / "tokenizer" / "tokenizer.json").is_file()

    again = demo(tmp_path, environment, "--json")
    assert again.returncode == 0, again.stderr
    assert "are there" in again.stderr
    document = json.loads(again.stdout)
    assert document["figures"]["step.count"]["value"] == 12
    assert document["figures"]["ledger.closure_ns"]["value"] == 0
    assert len(list(tmp_path.glob("*/report.html"))) == 2
