"""Each waste that a report should name is planted, with a clock of its own, and must be found, sized and placed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from stepprobe.model.records import decode_process

pytestmark = [pytest.mark.e2e, pytest.mark.noisy]

SCRIPT = str(Path(__file__).parent / "scripts" / "planted.py")
STEPS = 16

SIZED = {
    # plant: (accounts that hold it, kind of finding, words of the place or title)
    "slow getitem": (("data.fetch",), "data.slow", "planted.py"),
    "slow collate": (("data.collate",), "data.slow", "planted.py"),
    "sleep after the step": (("unattributed",), "host.line", "planted.py"),
    "collector": (("gc",), "gc", ""),
    "saves": (("checkpoint",), "checkpoint", ""),
    "evaluation": (("eval",), "eval", ""),
    "loader made anew": (("data.start",), "data.start", ""),
}
NAMED = {
    "many syncs": ("sync.site", "planted.py"),
    "checkpointing": ("recompute", ""),
    "padding": ("padding.waste", "75"),
    "prompts": ("loss.unlabelled", "12"),
    "forward for nothing": ("forward.extra", ""),
}


def observe(folder, environment, plant):
    command = [sys.executable, "-m", "stepprobe", "run", "--json", "--warmup", "2", "--out", str(folder), "--"]
    done = subprocess.run(
        [*command, sys.executable, SCRIPT, str(STEPS), plant], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    truth_ms = [float(line) for line in done.stderr.splitlines() if line.replace(".", "").isdigit()]
    (file,) = folder.glob("*/steps-*.jsonl")
    return json.loads(done.stdout), truth_ms, decode_process(file.name, file.read_bytes()).steps


def found(document, kind, words):
    findings = [finding for finding in document["findings"] if finding["kind"].startswith(kind)]
    return any(words in finding["where"] + finding["title"] for finding in findings)


@pytest.mark.parametrize("plant", SIZED)
def test_the_plant_is_sized_and_named(tmp_path, environment, plant):
    accounts, kind, words = SIZED[plant]
    document, truth_ms, steps = observe(tmp_path, environment, plant)
    assert len(truth_ms) == len(steps) == STEPS
    # the first step holds the start of everything, the last ends with the script: the others are compared one by one
    inner = range(2, STEPS - 1)
    booked_ms = sum(steps[index].accounts.get(account, (0, 0))[0] for index in inner for account in accounts) / 1e6
    planted_ms = sum(truth_ms[index] for index in inner)
    # an account that others use, too, holds more than the plant; it never holds less, but for the end of a loader
    ordinary_ms = sum(steps[index].wall_ns for index in inner) / 1e6 * 0.1
    # on a busy machine the thread is put aside, also at the system call of our own clock: inside the plant or out of it
    off_ms = sum(steps[index].accounts.get("unattributed", (0, 0))[1] for index in inner) / 1e6
    aside_ms = max(0.0, off_ms - (planted_ms if "unattributed" in accounts else 0.0))
    assert 0.95 * planted_ms - aside_ms <= booked_ms <= 1.03 * planted_ms + ordinary_ms + aside_ms
    assert found(document, kind, words), [(finding["kind"], finding["where"]) for finding in document["findings"]]


@pytest.mark.parametrize("plant", NAMED)
def test_the_plant_is_named(tmp_path, environment, plant):
    document, _, _ = observe(tmp_path, environment, plant)
    assert found(document, *NAMED[plant]), [
        (finding["kind"], finding["title"], finding["where"]) for finding in document["findings"]
    ]


def test_nothing_planted_nothing_named(tmp_path, environment):
    document, truth_ms, _ = observe(tmp_path, environment, "nothing")
    assert truth_ms == [0.0] * STEPS
    kinds = {finding["kind"] for finding in document["findings"]}
    planted = {kind for _, kind, _ in SIZED.values()} | {kind for kind, _ in NAMED.values()}
    assert not kinds & (planted - {"data.slow", "host.line"}), document["findings"]
