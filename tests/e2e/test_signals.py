"""A signal reaches the script as often as it does without us, whoever it was sent to."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.noisy]

SCRIPT = str(Path(__file__).parent / "scripts" / "signalled.py")
COUNTED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT)
SETTLES_S = 0.3


class Started:
    """The counting script in a session of its own, bare or under `stepprobe run`."""

    def __init__(self, folder, environment, attached, before):
        ours = [sys.executable, "-m", "stepprobe", "run", "--out", str(folder), "--"] if attached else []
        self.process = subprocess.Popen(
            [*before, *ours, sys.executable, SCRIPT],
            env=environment, text=True, start_new_session=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        self.script = int(self.process.stdout.readline())
        time.sleep(SETTLES_S)

    def counts(self, line="?"):
        """What the script has seen, once everything has arrived."""
        time.sleep(SETTLES_S)
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        return dict(zip(COUNTED, map(int, self.process.stdout.readline().split()), strict=True))

    def named(self):
        """All processes whose command line names the script: those that `pkill -f` finds."""
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            number = int(path.parent.name)
            try:
                if SCRIPT.encode() in path.read_bytes() and os.getsid(number) == self.process.pid:
                    yield number
            except OSError:
                continue

    def end(self):
        self.process.communicate(timeout=60)
        return self.process.returncode


@pytest.fixture(params=[False, True], ids=["bare", "attached"])
def started_by(request, tmp_path, environment):
    return lambda *before: Started(tmp_path, environment, request.param, before)


@pytest.fixture
def started(started_by):
    started = started_by()
    yield started
    started.end()


@pytest.mark.parametrize("number", COUNTED)
def test_each_way_of_sending_it_arrives_once(started, number):
    before = started.counts()[number]
    for time_, send in enumerate(
        (
            lambda: os.killpg(started.process.pid, number),
            lambda: os.kill(started.process.pid, number),
            lambda: os.kill(started.script, number),
            lambda: os.killpg(started.process.pid, number),
            lambda: [os.kill(one, number) for one in started.named()],
            lambda: os.kill(started.process.pid, number),
        ),
        1,
    ):
        send()
        assert started.counts()[number] == before + time_


def test_several_sent_to_all_at_once(started):
    for time_ in range(1, 6):
        for number in COUNTED:
            os.killpg(started.process.pid, number)
        assert set(started.counts().values()) == {time_}


def test_what_the_script_sends_to_its_own_group(started):
    assert started.counts("own")[signal.SIGUSR2] <= 1
    assert started.counts()[signal.SIGUSR2] == 1


@pytest.mark.parametrize(("option", "most"), [("--foreground", 1), ("--signal=TERM", 2)])
def test_timeout(started_by, option, most):
    """It sends to its child and then, unless in the foreground, to the group: the two may fall together."""
    started = started_by("timeout", option, "5")
    deadline = time.monotonic() + 30
    while not started.counts()[signal.SIGTERM] and time.monotonic() < deadline:
        pass
    assert 1 <= started.counts()[signal.SIGTERM] <= most
    assert started.end() == 124


def test_nothing_of_ours_outlives_the_run(tmp_path, environment):
    started = Started(tmp_path, environment, attached=True, before=())
    os.kill(started.process.pid, signal.SIGKILL)
    os.kill(started.script, signal.SIGKILL)
    deadline = time.monotonic() + 10
    while list(started.named()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not list(started.named())
    assert started.end() == -signal.SIGKILL
