"""The few steps under the profiler: their trace is in the report, and the script notices nothing."""

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes.damage import damaged

pytestmark = pytest.mark.e2e

TRACED = str(Path(__file__).parent / "scripts" / "traced.py")
STEPS = 40


def alone(environment, *words):
    return subprocess.run([sys.executable, TRACED, *words], env=environment, capture_output=True, text=True)


def run(folder, environment, *words, options=()):
    command = [sys.executable, "-m", "stepprobe", "run", *options, "--out", str(folder / "runs"), "--"]
    command += [sys.executable, TRACED, *words]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)


def folder_of(folder):
    (found,) = (folder / "runs").iterdir()
    return found


def report_of(folder):
    return json.loads((folder_of(folder) / "report.json").read_text())


def stepprobe(environment, *words):
    command = [sys.executable, "-m", "stepprobe", *map(str, words)]
    return subprocess.run(command, env=environment, capture_output=True, text=True)


def traces(folder):
    return sorted(path.suffix for path in folder_of(folder).glob("trace-rank0-pid*"))


@pytest.fixture(scope="module")
def traced(tmp_path_factory, environment):
    folder = tmp_path_factory.mktemp("traced")
    return folder, run(folder, environment, str(STEPS))


def test_the_report_holds_the_traced_steps_beside_the_others(traced, environment):
    folder, observed = traced
    assert observed.returncode == 0
    report = report_of(folder)
    figures = {name: figure["value"] for name, figure in report["figures"].items()}
    assert figures["trace.steps"] == 3
    assert figures["step.count"] == STEPS
    assert figures["step.measured"] == STEPS - 5 - figures["step.warmup"]
    (table,) = [table for table in report["tables"] if table["name"] == "trace_host"]
    assert any(str(row[0]).startswith("aten::") for row in table["rows"])
    assert not any(table["name"] == "device_ledger" for table in report["tables"])
    notes = " ".join(report["notes"])
    assert "3 steps (19, 20, 21) ran under torch.profiler" in notes
    assert "5 steps ran under the profiler or right behind it" in notes
    assert traces(folder) == [".columns", ".gz"]
    assert "Operations on the host, under the profiler" in observed.stderr


def test_its_folder_can_be_derived_verified_compared_and_read(traced, environment):
    folder, _ = traced
    found = folder_of(folder)
    before = (found / "report.json").read_bytes()
    assert stepprobe(environment, "report", found).returncode == 0
    assert (found / "report.json").read_bytes() == before
    assert stepprobe(environment, "verify", found).returncode == 0
    copied = shutil.copytree(found, folder / "copied")
    assert stepprobe(environment, "compare", found, copied).returncode == 0
    (trace,) = found.glob("*.json.gz")
    read = stepprobe(environment, "trace", trace, "--out", folder / "read", "--json")
    assert json.loads(read.stdout)["figures"]["trace.steps"]["value"] == 3


def test_evidence_that_was_changed_is_refused(traced, environment, tmp_path):
    folder, _ = traced
    changed = tmp_path / "changed"
    changed.mkdir()
    for path in folder_of(folder).iterdir():
        content = path.read_bytes()
        (changed / path.name).write_bytes(damaged(content) if path.suffix == ".columns" else content)
    verified = stepprobe(environment, "verify", changed)
    assert verified.returncode == 4, verified.stderr
    assert ".columns" in verified.stderr


def test_no_trace_takes_none(tmp_path, environment, traced):
    observed = run(tmp_path, environment, str(STEPS), options=("--no-trace",))
    assert observed.stdout == traced[1].stdout
    assert traces(tmp_path) == []
    report = report_of(tmp_path)
    assert not any(name.startswith("trace.") for name in report["figures"])
    assert not any("trace" in note for note in report["notes"])
    assert report["figures"]["step.measured"]["value"] + report["figures"]["step.warmup"]["value"] == STEPS


def test_steps_that_were_asked_for_come_before_it(tmp_path, environment):
    observed = run(tmp_path, environment, "400", options=("--steps", "20", "--warmup", "3"))
    assert observed.returncode == 0
    assert "ended the script after 20 steps, as asked, and 3 to warm up, and 4 set aside" in observed.stderr
    figures = report_of(tmp_path)["figures"]
    assert (figures["step.measured"]["value"], figures["trace.steps"]["value"]) == (20, 3)


@pytest.mark.parametrize(
    ("happening", "code", "kept", "said"),
    [
        ("", 0, True, ""),
        ("loads with workers", 0, True, ""),
        ("compiles", 0, True, ""),
        ("forks inside", 0, True, ""),
        ("forks behind", 0, True, ""),
        ("profiles before", 0, False, "runs torch.profiler itself"),
        ("profiles inside", 0, False, "runs torch.profiler itself"),
        ("profiles behind", 0, True, ""),
        ("waits", 0, False, "runs torch.profiler itself"),
        ("exits inside", 4, False, "the script ended while one was taken"),
        ("exits while warming", 4, False, "the script ended while one was taken"),
        ("killed inside", -signal.SIGKILL, False, "the process ended before it was written"),
    ],
)
def test_the_script_goes_on_as_without_it(tmp_path, environment, happening, code, kept, said):
    bare = alone(environment, str(STEPS), happening)
    observed = run(tmp_path, environment, str(STEPS), happening)
    assert (bare.returncode, observed.returncode) == (code, code), (bare.stderr, observed.stderr)
    assert observed.stdout == bare.stdout
    assert observed.stderr.count("profiler_start") <= bare.stderr.count("profiler_start")  # what Kineto says itself
    assert traces(tmp_path) == ([".columns", ".gz"] if kept else [])
    report = report_of(tmp_path)
    assert ("trace.steps" in report["figures"]) is kept
    if said:
        assert any(said in note for note in report["notes"]), report["notes"]
    assert stepprobe(environment, "verify", folder_of(tmp_path)).returncode == 0


def test_a_training_that_is_too_short_says_so_in_one_line(tmp_path, environment):
    observed = run(tmp_path, environment, "15")
    assert observed.returncode == 0
    assert [note for note in report_of(tmp_path)["notes"] if "trace" in note] == [
        "no trace: the training ended before step 18, where one was to begin"
    ]
