import sys

import pytest

from stepprobe.errors import UsageError
from stepprobe.launch import command


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("pass\n")
    return tmp_path


def refusal(*argv):
    with pytest.raises(UsageError) as caught:
        command.check(argv)
    return str(caught.value)


def executable(path, first_line):
    path.write_text(f"{first_line}\npass\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize("argv", [(), ("train.py",), (".",), ("torchrun", "train.py")])
def test_the_next_step_is_told_with_the_command_that_was_given(folder, monkeypatch, argv):
    monkeypatch.setenv("PATH", str(folder))
    with pytest.raises(UsageError, match="stepprobe profile -- ") as caught:
        command.check(argv, "profile")
    assert "stepprobe run" not in str(caught.value)


@pytest.mark.parametrize(
    "flags",
    [
        (),
        ("-u",),
        ("-X", "dev"),
        ("-Xdev",),
        ("-W", "ignore"),
        ("-W", "I"),  # a value, not the flag -I
        ("-XI",),
        ("-uB",),
        ("--check-hash-based-pycs", "never"),
    ],
)
def test_a_python_that_can_be_attached_to_is_accepted(folder, flags):
    assert command.check([sys.executable, *flags, "train.py"]) == sys.executable


@pytest.mark.parametrize(
    "rest", [("-c", "pass", "-I"), ("-m", "this", "-S"), ("-uc", "pass", "-E"), ("train.py", "-I")]
)
def test_flags_after_the_script_are_the_scripts_own(folder, rest):
    assert command.check([sys.executable, *rest])


@pytest.mark.parametrize(
    ("flags", "named"), [(("-I",), "-I"), (("-S",), "-S"), (("-E",), "-E"), (("-IS",), "-I"), (("-u", "-BuS"), "-S")]
)
def test_a_python_that_ignores_us_is_refused_with_the_flag_to_drop(folder, flags, named):
    message = refusal(sys.executable, *flags, "train.py")
    assert f"without {named}" in message


def test_env_in_front_of_python_is_looked_through(folder):
    assert "without -I" in refusal("env", "A=1", "B=2", "python3", "-I", "train.py")
    assert command.check(["env", "A=1", sys.executable, "train.py"])


@pytest.mark.parametrize("line", ["#!/usr/bin/python3 -I", "#!/usr/bin/env -S python3 -uI", "#! /usr/bin/python3 -I"])
def test_a_first_line_that_isolates_is_refused(folder, line):
    script = executable(folder / "tool", line)
    assert "first line" in refusal(script)


def test_an_ordinary_first_line_is_accepted(folder):
    script = executable(folder / "tool", "#!/usr/bin/env python3")
    assert command.check([script]) == script


def test_no_command():
    assert "stepprobe run -- python train.py" in refusal()


@pytest.mark.parametrize("program", ["train.py", "./train.py"])
def test_a_script_that_is_not_executable_names_the_interpreter(folder, program):
    assert f"stepprobe run -- python {program} --lr 1" in refusal(program, "--lr", "1")


def test_a_missing_script_names_the_nearest(folder):
    assert "did you mean train.py?" in refusal(sys.executable, "trian.py")


def test_a_launcher_off_the_path_names_its_module(folder, monkeypatch):
    monkeypatch.setenv("PATH", str(folder))
    assert "python -m torch.distributed.run --n 2 train.py" in refusal("torchrun", "--n", "2", "train.py")
    assert "python -m accelerate.commands.launch train.py" in refusal("accelerate", "launch", "train.py")
    assert "no such command" in refusal("nosuchcommand")


def test_a_folder_is_not_a_command(folder):
    assert "is a folder" in refusal(str(folder))


@pytest.mark.parametrize(
    ("argv", "name"),
    [
        (("python", "src/train.py", "--config", "x.py"), "train"),
        (("torchrun", "--nproc", "2", "ddp.py"), "ddp"),
        (("python", "-m", "pkg.train"), "pkg.train"),
        (("/usr/bin/true",), "true"),
        (("python", "-c", "pass"), "python"),
    ],
)
def test_a_run_is_called_after_its_script(argv, name):
    assert command.name(argv) == name
