"""Scripts that end badly, or live oddly: they end as they would alone, and what was seen is kept."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.e2e

LOOP = str(Path(__file__).parent / "scripts" / "loop.py")


def run(folder, environment, *command, options=()):
    command = [sys.executable, "-m", "stepprobe", "run", *options, "--out", str(folder / "runs"), "--", *command]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)


def report_of(folder):
    (path,) = (folder / "runs").glob("*/report.json")
    return json.loads(path.read_text())


def steps_of(folder):
    return report_of(folder)["figures"]["step.count"]["value"]


def verify(folder, environment):
    (run_folder,) = (folder / "runs").glob("*/")
    command = [sys.executable, "-m", "stepprobe", "verify", str(run_folder)]
    return subprocess.run(command, env=environment, capture_output=True, text=True).returncode


@pytest.mark.parametrize(
    ("misfortune", "code", "steps"),
    [
        ("", 0, 12),
        ("crashes in step 3", 1, 3),
        ("leaves through os._exit", 7, 5),
        ("closes stdout", 0, 12),
        ("forks", 0, 12),
        ("starts a Python", 0, 12),
        ("killed by a signal", -signal.SIGTERM, 4),
        ("evaluates", 0, 12),
        ("trains in eval mode", 0, 12),
        ("no loader", 0, 12),
        ("evaluates first", 0, 12),
        ("is interrupted", 0, 12),
        ("class named to break reports", 0, 12),
    ],
)
def test_it_ends_as_it_would_alone_and_its_steps_are_kept(tmp_path, environment, misfortune, code, steps):
    alone = subprocess.run([sys.executable, LOOP, "12", misfortune], env=environment, capture_output=True, text=True)
    observed = run(tmp_path, environment, sys.executable, LOOP, "12", misfortune)
    assert (alone.returncode, observed.returncode) == (code, code)
    assert observed.stdout == alone.stdout
    assert steps_of(tmp_path) == steps
    assert verify(tmp_path, environment) == 0
    if misfortune == "evaluates":
        assert report_of(tmp_path)["figures"]["ledger.eval"]["value"] > 0


@pytest.mark.parametrize(
    ("misfortune", "code", "said"),
    [("exits before a step", 5, "optimizer"), ("never steps", 3, "optimizer")],
)
def test_without_a_step_it_says_how_far_the_script_came(tmp_path, environment, misfortune, code, said):
    observed = run(tmp_path, environment, sys.executable, LOOP, "12", misfortune)
    assert observed.returncode == code
    assert said in observed.stderr
    assert report_of(tmp_path)["verdict"] == "not measured"


def test_a_sitecustomize_of_the_user_s_own_still_runs(tmp_path, environment):
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("import os\nos.environ['OWN'] = 'ran'\n")
    script = tmp_path / "script.py"
    script.write_text("import os, sitecustomize\nprint(os.environ['OWN'], sitecustomize.__file__)\n")
    observed = run(tmp_path, {**environment, "PYTHONPATH": str(own)}, sys.executable, str(script))
    assert observed.stdout.split() == ["ran", str(own / "sitecustomize.py")]


def test_a_sitecustomize_package_still_runs(tmp_path, environment):
    own = tmp_path / "own" / "sitecustomize"
    own.mkdir(parents=True)
    (own / "__init__.py").write_text("import os\nfrom sitecustomize.more import VALUE\nos.environ['OWN'] = VALUE\n")
    (own / "more.py").write_text("VALUE = 'package'\n")
    script = tmp_path / "script.py"
    script.write_text("import os\nprint(os.environ['OWN'])\n")
    observed = run(tmp_path, {**environment, "PYTHONPATH": str(own.parent)}, sys.executable, str(script))
    assert observed.stdout.split() == ["package"], observed.stderr


@pytest.mark.parametrize("flag", ["-I", "-S", "-E", "-IS"])
def test_an_interpreter_that_would_ignore_us_is_refused_with_the_next_step(tmp_path, environment, flag):
    observed = run(tmp_path, environment, sys.executable, flag, LOOP, "12")
    assert observed.returncode == 2
    assert "PYTHONPATH" in observed.stderr
    assert not observed.stdout


def test_a_script_that_is_missing(tmp_path, environment):
    observed = run(tmp_path, environment, sys.executable, "no_such_script.py")
    assert observed.returncode == 2
    assert "no_such_script.py" in observed.stderr


def test_our_dependencies_may_be_missing_in_the_script_s_python(tmp_path, environment):
    blocked = tmp_path / "blocked"
    blocked.mkdir()
    for name in ("msgspec", "rich", "jinja2", "vl_convert"):
        (blocked / f"{name}.py").write_text("raise ImportError('not installed here')\n")
    script = tmp_path / "in_another_python.sh"
    script.write_text(f'#!/bin/sh\nexport PYTHONPATH="$PYTHONPATH:{blocked}"\nexec "{sys.executable}" "{LOOP}" 12\n')
    script.chmod(0o755)
    observed = run(tmp_path, environment, str(script))
    assert observed.returncode == 0
    assert steps_of(tmp_path) == 12


def test_a_full_disk_stops_the_evidence_and_not_the_script(tmp_path, environment):
    limited = tmp_path / "limited.sh"
    # a file-size limit is the full disk that an ordinary user can make
    limited.write_text(f'#!/bin/sh\nulimit -f 8\nexec "{sys.executable}" "{LOOP}" 60\n')
    limited.chmod(0o755)
    alone = subprocess.run([sys.executable, LOOP, "60"], env=environment, capture_output=True, text=True)
    observed = run(tmp_path, environment, str(limited))
    assert observed.returncode == 0
    assert observed.stdout == alone.stdout
    assert observed.stderr.count("cannot write evidence any more") == 1
    assert 0 < steps_of(tmp_path) < 60
    assert verify(tmp_path, environment) == 0


def test_standard_input_goes_to_the_script(tmp_path, environment):
    script = tmp_path / "script.py"
    script.write_text("print(input()[::-1])\n")
    command = [sys.executable, "-m", "stepprobe", "run", "--out", str(tmp_path / "runs"), "--"]
    observed = subprocess.run(
        [*command, sys.executable, str(script)], env=environment, input="abc\n", capture_output=True, text=True
    )
    assert observed.stdout == "cba\n"


def test_python_m_module(tmp_path, environment):
    (tmp_path / "loop.py").write_text(Path(LOOP).read_text())
    observed = run(tmp_path, environment, sys.executable, "-m", "loop", "12")
    assert observed.returncode == 0, observed.stderr
    assert steps_of(tmp_path) == 12


def test_accelerate_launch(tmp_path, environment):
    pytest.importorskip("accelerate")
    command = [sys.executable, "-m", "accelerate.commands.launch", "--cpu", "--num_processes", "1", LOOP, "12"]
    observed = run(tmp_path, environment, *command)
    assert observed.returncode == 0, observed.stderr
    assert steps_of(tmp_path) == 12
    assert len(list((tmp_path / "runs").glob("*/steps-*.jsonl"))) == 1


def test_an_interrupted_script_ends_as_interrupted_and_its_report_comes(tmp_path, environment):
    script = tmp_path / "until_interrupted.py"
    befall = (
        "if misfortune == 'waits' and step == 6:\n        print('waiting', flush=True)\n        signal.pause()\n    "
    )
    script.write_text(
        Path(LOOP).read_text().replace('if misfortune == "crashes', befall + 'if misfortune == "crashes', 1)
    )
    command = [sys.executable, "-m", "stepprobe", "run", "--out", str(tmp_path / "runs"), "--"]
    with subprocess.Popen(
        [*command, sys.executable, str(script), "12", "waits"],
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        while process.stdout.readline() != "waiting\n":
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=60)
    assert error.count("KeyboardInterrupt") == 1
    assert process.returncode == -signal.SIGINT
    assert steps_of(tmp_path) == 6
