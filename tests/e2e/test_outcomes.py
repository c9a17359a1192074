"""A waste that is planted, found, taken out and compared: what came is what the plant took by its own clock."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.noisy]

SCRIPT = str(Path(__file__).parent / "scripts" / "planted.py")
RAGGED = str(Path(__file__).parent / "scripts" / "ragged.py")
STEPS = 24

TAKEN_OUT = {
    # plant: the remedy whose outcome it is
    "slow getitem": "loader.precompute",
    "sleep after the step": "line.removed",
}


def watched(folder, environment, script, *words):
    command = [sys.executable, "-m", "stepprobe", "run", "--json", "--warmup", "4", "--out", str(folder), "--"]
    done = subprocess.run([*command, sys.executable, script, *words], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["run"], done.stderr


def compared(environment, before, after):
    done = subprocess.run(
        [sys.executable, "-m", "stepprobe", "compare", before, after, "--json"],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode in (0, 1), done.stderr
    return json.loads(done.stdout)


def observe(folder, environment, plant):
    run, said = watched(folder, environment, SCRIPT, str(STEPS), plant)
    return run, [float(line) for line in said.splitlines() if line.replace(".", "").isdigit()]


@pytest.mark.parametrize("plant", TAKEN_OUT)
def test_what_came_of_taking_the_plant_out_is_what_it_took(tmp_path, environment, plant):
    before, truth_ms = observe(tmp_path, environment, plant)
    after, _ = observe(tmp_path, environment, "nothing")
    document = compared(environment, before, after)
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


def test_padding_to_the_longest_row_and_grouping_are_told_apart(tmp_path, environment):
    """The same rows: padded to one length, then to the longest of their batch, then grouped by length as well."""
    ways = (("fixed", "chance"), ("longest", "chance"), ("longest", "grouped"))
    fixed, longest, grouped = (watched(tmp_path, environment, RAGGED, "40", *way)[0] for way in ways)

    def made(before, after):
        found = compared(environment, before, after)["findings"]
        names = {remedy["name"] for finding in found for remedy in finding["remedies"]}
        return sorted(name for name in names if name.startswith("padding"))

    assert made(fixed, longest) == ["padding.longest"]
    assert made(longest, grouped) == ["padding.group"]
    assert made(fixed, grouped) == ["padding.group", "padding.longest"]
