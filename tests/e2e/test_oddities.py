"""What scripts do beside training comes out the same when they are observed, and the training is observed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.e2e

ODDITIES = str(Path(__file__).parent / "scripts" / "oddities.py")


def test_nothing_that_a_script_does_beside_training_changes(tmp_path, environment):
    alone = subprocess.run([sys.executable, ODDITIES], env=environment, capture_output=True, text=True)
    assert alone.returncode == 0, alone.stderr
    assert "Error" not in alone.stdout
    command = [sys.executable, "-m", "stepprobe", "run", "--out", str(tmp_path), "--", sys.executable, ODDITIES]
    observed = subprocess.run(
        command, env={**environment, "STEPPROBE_DETAIL": "always"}, capture_output=True, text=True
    )
    assert observed.stdout.splitlines() == alone.stdout.splitlines()
    assert "Dynamo does not know" not in observed.stderr
    (path,) = tmp_path.glob("*/report.json")
    assert json.loads(path.read_text())["figures"]["step.count"]["value"] == 6
