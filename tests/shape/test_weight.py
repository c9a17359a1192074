"""What ``stepprobe --help`` may cost and load."""

import os
import statistics
import subprocess
import sys

import pytest

HEAVY = ("torch", "transformers", "numpy", "rich", "jinja2", "vl_convert", "msgspec", "tomllib", "asyncio")
HELP_CPU_S = 0.080
HELP_OF_BARE = 4
"""Times a bare interpreter with argparse beside it (it is about 3): what the limit is where others slow the machine."""


def run(*words):
    """Run a process and return the CPU seconds that it used."""
    process = subprocess.Popen([sys.executable, *words], stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return used.ru_utime + used.ru_stime


def loaded_after(text):
    shown = subprocess.run(
        [sys.executable, "-c", f"import sys\n{text}\nprint(*sys.modules, file=sys.stderr)"],
        check=True,
        capture_output=True,
        text=True,
    )
    return {name.partition(".")[0] for name in shown.stderr.split()}


@pytest.mark.noisy
def test_help_is_cheap():
    run("-m", "stepprobe", "--help")  # compiles the bytecode
    bare, used = zip(*((run("-c", "import argparse"), run("-m", "stepprobe", "--help")) for _ in range(7)), strict=True)
    assert statistics.median(used) <= max(HELP_CPU_S, HELP_OF_BARE * statistics.median(bare)), (used, bare)


@pytest.mark.parametrize("words", [[], ["--help"], ["run", "--help"], ["--version"]])
def test_help_loads_nothing_heavy(words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    loaded = loaded_after(f"from stepprobe.cli import main; main({words!r})")
    assert "argparse" in loaded
    assert loaded.isdisjoint(HEAVY), loaded & set(HEAVY)


def test_the_check_sees_what_is_loaded():
    assert "tomllib" in loaded_after("import tomllib")


@pytest.mark.parametrize(
    "module", ["stepprobe", "stepprobe.launch", "stepprobe.model.accounts", "stepprobe.instruments"]
)
def test_what_runs_in_the_users_process_needs_the_standard_library_alone(module):
    assert loaded_after(f"import {module}").isdisjoint(HEAVY)
