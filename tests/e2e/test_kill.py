"""``kill -9`` at any moment: the report of all finished steps comes out, and verify accepts it."""

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.e2e

LOOP = str(Path(__file__).parent / "scripts" / "loop.py")
MOMENTS = [random.Random(seed).uniform(0.0, 1.5) for seed in range(20)]


@pytest.mark.parametrize("moment", MOMENTS, ids=lambda moment: f"{moment:.2f} s")
def test_kill_9(tmp_path, environment, moment):
    command = [sys.executable, "-m", "stepprobe", "run", "--out", str(tmp_path / "runs"), "--"]
    with subprocess.Popen(
        [*command, sys.executable, LOOP, "1000000"],
        env=environment,
        text=True,
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        first = process.stdout.readline() + process.stdout.readline()
        time.sleep(moment)
        os.killpg(process.pid, signal.SIGKILL)  # the script and stepprobe itself, in the same instant
        printed = first + process.stdout.read()

    (folder,) = (tmp_path / "runs").glob("*/")
    reported = stepprobe("report", str(folder), "--json", environment=environment)
    assert reported.returncode == 0, reported.stderr
    # a step is finished when the next batch is asked for: the last step that the script printed may not be
    last = max(int(number) for number in re.findall(r"^(\d+) \S+$", printed, flags=re.MULTILINE))
    assert last <= json.loads(reported.stdout)["figures"]["step.count"]["value"] <= last + 2
    verified = stepprobe("verify", str(folder), environment=environment)
    assert verified.returncode == 0, verified.stderr


def stepprobe(*arguments, environment):
    return subprocess.run(
        [sys.executable, "-m", "stepprobe", *arguments], env=environment, capture_output=True, text=True
    )
