"""A waste that is planted, found, taken out and compared: what came is what the plant took by its own clock."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.e2e

SCRIPT = str(Path(__file__).parent / "scripts" / "planted.py")
STEPS = 24

TAKEN_OUT = {
    # plant: the remedy whose outcome it is
    "slow getitem": "loader.precompute",
    "sleep after the step": "line.removed",
}


def observe(folder, environment, plant):
    command = [sys.executable, "-m", "stepprobe", "run", "--json", "--warmup", "4", "--out", str(folder), "--"]
    done = subprocess.run(
        [*command, sys.executable, SCRIPT, str(STEPS), plant], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    truth_ms = [float(line) for line in done.stderr.splitlines() if line.replace(".", "").isdigit()]
    return json.loads(done.stdout)["run"], truth_ms


@pytest.mark.parametrize("plant", TAKEN_OUT)
def test_what_came_of_taking_the_plant_out_is_what_it_took(tmp_path, environment, plant):
    before, truth_ms = observe(tmp_path, environment, plant)
    after, _ = observe(tmp_path, environment, "nothing")
    done = subprocess.run(
        [sys.executable, "-m", "stepprobe", "compare", before, after, "--json"],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode in (0, 1), done.stderr
    document = json.loads(done.stdout)
    outcomes = {remedy["name"]: remedy for finding in document["findings"] for remedy in finding["remedies"]}
    assert TAKEN_OUT[plant] in outcomes, [row for table in document["tables"] for row in table["rows"]][:6]
    # the last step ends with the script, the first hold the start of everything
    planted_ms = sum(truth_ms[4:-1]) / len(truth_ms[4:-1])
    account = {"slow getitem": "data.fetch", "sleep after the step": "unattributed"}[plant]
    came = -document["figures"][f"compare.ledger.{account}"]["value"]
    assert came == pytest.approx(planted_ms, rel=0.5)  # the machine may be busier in one of the two runs
    predicted = outcomes[TAKEN_OUT[plant]]["predicted"]
    assert 0.5 * planted_ms < predicted["value"] < 1.5 * planted_ms
    log = (tmp_path / "calibration.jsonl").read_text().splitlines()
    assert any(TAKEN_OUT[plant] in line for line in log)
