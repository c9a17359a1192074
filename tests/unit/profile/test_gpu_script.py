"""The prepared script for a machine with a GPU says what is missing before it begins."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "bench" / "gpu" / "profile_check.sh"


def started(tmp_path, python, *arguments):
    command = ["bash", str(SCRIPT), *arguments, str(tmp_path / "evidence")]
    environment = {"PATH": "/usr/bin:/bin", "PYTHON": str(python), "HOME": str(tmp_path)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_it_is_a_script():
    assert subprocess.run(["bash", "-n", str(SCRIPT)], check=False).returncode == 0


def test_missing_packages_are_named(tmp_path):
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S -E "$@"\n')
    bare.chmod(0o755)
    told = started(tmp_path, bare, "--cpu")
    assert told.returncode == 2
    assert "torch" in told.stderr
    assert "WHEELS=" in told.stderr


def test_wheels_that_do_not_fit_are_named(tmp_path):
    (tmp_path / "wheels").mkdir()
    command = ["bash", str(SCRIPT), "--cpu", str(tmp_path / "evidence")]
    environment = {"PATH": "/usr/bin:/bin", "PYTHON": sys.executable, "WHEELS": str(tmp_path / "wheels")}
    told = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert told.returncode == 2
    assert "wheels" in told.stderr


def test_a_machine_without_a_gpu_is_told(tmp_path):
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU: run bench/gpu/profile_check.sh itself")
    told = started(tmp_path, sys.executable)
    assert told.returncode == 3
    assert "--cpu" in told.stderr
