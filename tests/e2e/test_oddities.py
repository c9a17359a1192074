"""What scripts do beside training comes out the same when they are observed, and the training is observed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.e2e

SCRIPTS = Path(__file__).parent / "scripts"
ODDITIES, WARNED = str(SCRIPTS / "oddities.py"), str(SCRIPTS / "warned.py")


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


@pytest.mark.parametrize("flags", [(), ("-W", "always"), ("-W", "ignore:::__main__"), ("-W", "default:::__main__:30")])
def test_warnings_name_the_script_s_own_lines(tmp_path, environment, flags):
    alone = subprocess.run([sys.executable, *flags, WARNED], env=environment, capture_output=True, text=True)
    assert alone.returncode == 0, alone.stderr
    command = [sys.executable, "-m", "stepprobe", "run", "--out", str(tmp_path), "--", sys.executable, *flags, WARNED]
    observed = subprocess.run(
        command, env={**environment, "STEPPROBE_DETAIL": "always"}, capture_output=True, text=True
    )
    assert observed.stdout.splitlines() == alone.stdout.splitlines()
    told = alone.stderr.splitlines()
    assert observed.stderr.splitlines()[: len(told)] == told  # behind them, the report
    (path,) = tmp_path.glob("*/report.json")
    assert json.loads(path.read_text())["figures"]["step.count"]["value"] == 6


def test_a_warning_that_is_an_error_ends_the_script_as_it_does_alone(tmp_path, environment):
    alone = subprocess.run([sys.executable, "-W", "error", WARNED], env=environment, capture_output=True, text=True)
    assert alone.returncode == 1
    command = [sys.executable, "-m", "stepprobe", "run", "--out", str(tmp_path), "--"]
    observed = subprocess.run(
        [*command, sys.executable, "-W", "error", WARNED], env=environment, capture_output=True, text=True
    )
    assert observed.returncode == 1
    assert alone.stderr.splitlines()[-1] in observed.stderr.splitlines()


@pytest.mark.parametrize(("kind", "account"), [("lightning", "forward"), ("closure", "unattributed")])
def test_what_a_closure_trains_is_not_the_optimizers_time(tmp_path, environment, kind, account):
    """Each step sleeps 20 ms before the forward pass, in a closure that the optimizer calls."""
    script = [sys.executable, str(SCRIPTS / "parts.py"), kind]
    alone = subprocess.run(script, env=environment, capture_output=True, text=True)
    assert alone.returncode == 0, alone.stderr
    command = [sys.executable, "-m", "stepprobe", "run", "--no-trace", "--out", str(tmp_path), "--", *script]
    observed = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert observed.stdout.splitlines() == alone.stdout.splitlines()
    (path,) = tmp_path.glob("*/report.json")
    figures = {name: one["value"] for name, one in json.loads(path.read_text())["figures"].items()}
    booked = sum(ms for name, ms in figures.items() if name.startswith(f"ledger.{account}"))
    assert booked > 20 > figures["ledger.optimizer"]
