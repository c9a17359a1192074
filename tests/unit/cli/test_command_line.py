import io
import json
import os
import shutil
import signal
import sys
from pathlib import Path

import msgspec
import pytest

from stepprobe import cli
from stepprobe.cli import _config
from stepprobe.errors import UsageError
from stepprobe.session import observing
from tests.fakes import faked

STEPS = ["sh", "-c", 'echo "12 13" >> $STEPPROBE_RUN/steps-rank0-pid1.jsonl']


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    faked.installed(monkeypatch)
    monkeypatch.chdir(tmp_path)
    for name in ("NO_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def say(capfd):
    def say(*words):
        code = cli.main(words)
        out, err = capfd.readouterr()
        return code, out, err

    return say


@pytest.fixture
def kept(say, tmp_path):
    assert say("run", "--", *STEPS)[0] == 0
    return next((tmp_path / "stepprobe-runs").iterdir())


@pytest.mark.parametrize("word", ["--help", "-h"])
def test_help_lists_every_command_with_its_question(say, word):
    code, out, err = say(word)
    assert (code, err) == (0, "")
    for name in cli.names():
        assert f"{name:<10}{cli.load(name).SUMMARY}" in out


def test_no_word_at_all_is_wrong_use(say):
    code, out, _ = say()
    assert code == 2
    assert "stepprobe run -- python train.py" in out


def test_version(say):
    from stepprobe import __version__

    assert say("--version") == (0, f"stepprobe {__version__}\n", "")


@pytest.mark.parametrize("name", cli.names())
def test_each_command_explains_itself_with_at_most_eight_options(say, name):
    code, out, _ = say(name, "--help")
    assert code == 0
    assert cli.load(name).SUMMARY.split()[0] in out
    assert 1 <= out.count("\n  --") <= 8


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["rnu"], "did you mean run?"),
        (["verfy"], "did you mean verify?"),
        (["_parser"], "no command '_parser'"),
        (["run", "--stpes", "3", "--", "true"], "did you mean --steps?"),
        (["run", "--step", "3", "--", "true"], "did you mean --steps?"),  # abbreviations are not taken
        (["report", "--fromat=html"], "did you mean --format?"),
        (["run", "--steps", "0", "--", "true"], "at least 1"),
        (["run", "--steps", "²", "--", "true"], "at least 1"),
        (["run", "--warmup", "some", "--", "true"], "neither auto nor"),
        (["run", "python", "train.py", "--lr", "1 2"], "stepprobe run -- python train.py --lr '1 2'"),
        (["run"], "stepprobe run -- python train.py"),
        (["run", "--"], "stepprobe run -- python train.py"),
        (["report", "absent"], "does not exist"),
        (["report", "long" * 2000], "cannot be read (File name too long)"),
        (["report", "--format", "pdf"], "invalid choice"),
        (["report"], "stepprobe run -- CMD"),
        (["compare", "a"], "required: B"),
        (["report", "--", "python", "train.py"], "nothing can follow --"),
    ],
)
def test_wrong_use_says_what_to_do_and_exits_2(say, words, told):
    code, out, err = say(*words)
    assert (code, out) == (2, "")
    assert told in err
    assert err.startswith("stepprobe: ")
    assert err.count("\n") == 1


def test_the_report_of_run_leaves_standard_output_to_the_script(say, tmp_path):
    code, out, err = say("run", "--", "sh", "-c", STEPS[2] + "; echo own")
    assert (code, out) == (0, "own\n")
    report, kept = err.splitlines()
    assert report == "2 steps, finished width=80 color=False"
    page = tmp_path / kept.removeprefix("stepprobe: kept; open ")
    assert (page.name, page.is_file()) == ("report.html", True)


def test_a_defect_of_a_renderer_does_not_cost_the_scripts_exit_code(say):
    def defect(report, **_):
        raise KeyError("absent")

    sys.modules["stepprobe.report.terminal"].render = defect
    code, out, err = say("run", "--", "sh", "-c", STEPS[2] + "; exit 5")
    assert (code, out) == (5, "")
    assert "could not be drawn: KeyError: 'absent'" in err
    assert "kept" in err
    assert say("run", "--", *STEPS)[0] == 1


def test_report_takes_the_newest_run_or_a_named_one(say, kept):
    assert say("report") == (0, "2 steps, finished width=80 color=False\n", "")
    assert say("report", str(kept)) == say("report")


def test_every_format(say, kept):
    assert say("report", "--format", "html")[1] == "<p>ok</p>\n"
    assert say("report", "--format", "markdown")[1] == "# 2 steps, finished\n"
    assert json.loads(say("report", "--json")[1]) == json.loads(say("report", "--format", "json")[1])
    assert say("report", "--schema")[1] == "{}\n"


def test_a_report_into_a_file(say, kept, tmp_path):
    code, out, err = say("report", "--format", "markdown", "--out", "a.md")
    assert (code, out) == (0, "")
    assert "a.md" in err
    assert (tmp_path / "a.md").read_text() == "# 2 steps, finished\n"
    code, _, err = say("report", "--out", "a.md/b")
    assert code == 2
    assert "another file with --out" in err


def test_verify_says_what_it_checked(say, kept):
    code, out, err = say("verify")
    assert (code, err) == (0, "")
    assert out.startswith("3 files have the hash")


@pytest.mark.parametrize("words", [["verify"], ["report"], ["compare", "RUN", "RUN"]])
def test_damage_exits_4(say, kept, words):
    (kept / "steps-rank0-pid1.jsonl").write_text("12 14\n")
    code, out, err = say(*[str(kept) if word == "RUN" else word for word in words])
    assert (code, out) == (4, "")
    assert "steps-rank0-pid1.jsonl" in err


def test_an_error_under_json_is_an_object_too(say, kept):
    (kept / "steps-rank0-pid1.jsonl").write_text("12 14\n")
    code, out, _ = say("verify", "--json")
    told = json.loads(out)
    assert (code, told["command"], told["verdict"], told["figures"]) == (4, "verify", "not measured", {})
    code, out, _ = say("run", "--json", "--", "/no/such/command")
    assert (code, json.loads(out)["verdict"]) == (2, "not measured")
    assert say("run", "--", "/no/such/command", "--json")[1] == ""  # the script's option, not ours


def test_a_report_that_does_not_derive_again_is_a_failed_assertion(say, kept, monkeypatch):
    derive = faked.CountingProbe.derive
    monkeypatch.setattr(
        faked.CountingProbe, "derive", lambda self, seen: msgspec.structs.replace(derive(self, seen), headline="other")
    )
    code, out, err = say("verify", "--json")
    assert (code, json.loads(out)["verdict"]) == (1, "fail")
    assert 'headline: kept "2 steps, finished", derived "other"' in err


def test_compare_prints_the_comparison(say, kept):
    after = kept.with_name("after")
    shutil.copytree(kept, after)
    assert say("compare", str(kept), str(after)) == (0, "finished finished width=80 color=False\n", "")
    code, out, err = say("compare", str(kept), str(kept))
    assert (code, out) == (2, "")
    assert "is named twice" in err


def test_a_run_without_a_step_exits_3_whoever_asks(say):
    assert say("run", "--", "true")[0] == 3
    code, out, err = say("report")
    assert (code, out) == (3, "")
    assert "no training step was observed" in err
    code, out, _ = say("report", "--json")
    assert (code, json.loads(out)["verdict"]) == (3, "not measured")


def test_a_job_that_goes_on_in_the_background_ends_as_its_command_did(say, tmp_path, monkeypatch):
    """What a daemon does: the command has ended well at once, and whether there are steps is not known yet."""
    monkeypatch.setattr(observing, "_PATIENCE_S", 0)
    code, _, err = say("run", "--", "sh", "-c", "sleep 600 >/dev/null 2>&1 & echo $! >pid")
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
    assert code == 0
    assert "no training step was observed yet" in err
    assert "still lives" in err


def test_a_place_that_cannot_be_written_is_told_before_the_script_runs(say, tmp_path):
    (tmp_path / "file").write_text("")
    code, out, err = say("run", "--out", "file/runs", "--", "touch", "ran")
    assert (code, out) == (2, "")
    assert "--out DIR" in err
    assert not (tmp_path / "ran").exists()


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(("no_color", "color"), [(None, True), ("", True), ("1", False)])
def test_colour_needs_a_terminal_and_no_objection(kept, monkeypatch, no_color, color):
    monkeypatch.setattr(sys, "stdout", Terminal())
    if no_color is not None:
        monkeypatch.setenv("NO_COLOR", no_color)
    cli.main(["report"])
    assert f"color={color}" in sys.stdout.getvalue()
    cli.main(["report", "--out", "file"])
    assert "color=False" in Path("file").read_text()


@pytest.mark.parametrize(
    ("columns", "width"), [("120", 120), ("1", 40), ("9999", 160), ("wide", 80), ("", 80), ("²", 80)]
)
def test_columns_are_respected_within_reason(say, kept, monkeypatch, columns, width):
    monkeypatch.setenv("COLUMNS", columns)
    assert f"width={width} " in say("report")[1]


def test_config_stands_for_options_that_are_not_given(say, tmp_path):
    (tmp_path / "stepprobe.toml").write_text('[run]\nsteps = 7\nout = "elsewhere"\n')
    told = ["sh", "-c", STEPS[2] + '; echo "$STEPPROBE_STEPS"']
    assert say("run", "--", *told)[1] == "7\n"
    assert say("run", "--steps", "8", "--", *told)[1] == "8\n"
    assert len(list((tmp_path / "elsewhere").iterdir())) == 2
    assert say("report")[0] == 0  # finds the runs where run puts them


@pytest.mark.parametrize(
    ("config", "options", "taken"),
    [
        ('repeat = ["c", "d"]', [], ["c", "d"]),
        ('repeat = "c"', [], ["c"]),
        ('repeat = ["c", "d"]', ["--repeat", "e"], ["e"]),
        ("", ["--repeat", "c", "--repeat", "d", "e"], ["c", "d", "e"]),
    ],
)
def test_repeats_may_stand_in_the_config_and_be_given_one_by_one(say, tmp_path, monkeypatch, config, options, taken):
    for name in "abcde":
        (tmp_path / name).mkdir()
    (tmp_path / "stepprobe.toml").write_text(f"[compare]\n{config}\n")
    asked = []

    def compare(*folders):
        asked.extend(folders[2])
        raise UsageError("stopped")

    monkeypatch.setattr("stepprobe.session.compare", compare)
    say("compare", "a", "b", *options)
    assert [str(folder) for folder in asked] == taken


def test_config_in_pyproject(say, tmp_path):
    (tmp_path / "pyproject.toml").write_text("[tool.stepprobe.run]\nwarmup = 3\n[tool.other]\nx = 1\n")
    assert say("run", "--", "sh", "-c", 'echo "$STEPPROBE_WARMUP"')[1] == "3\n"
    (tmp_path / "stepprobe.toml").write_text("[run]\nwarmup = 4\n")
    assert say("run", "--", "sh", "-c", 'echo "$STEPPROBE_WARMUP"')[1] == "4\n"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[run]\nstesp = 3\n", "did you mean steps?"),
        ("[rnu]\nsteps = 3\n", "did you mean run?"),
        ("steps = 3\n", "'steps' is no command"),
        ("run = 3\n", "must be a table"),
        ("[run]\nsteps = 0\n", "at least 1"),
        ("[run]\nsteps = [1]\n", "must be one value"),
        ("[run]\njson = 1\n", "must be true or false"),
        ("[run]\nhelp = true\n", "unknown key 'help'"),
        ("[report]\nformat = 'pdf'\n", "must be one of text"),
        ("[run\n", "is not TOML"),
    ],
)
def test_a_config_that_does_not_fit_is_refused_with_its_name(say, tmp_path, text, told):
    (tmp_path / "stepprobe.toml").write_text(text)
    words = ["report"] if text.startswith("[report]") else ["run", "--", "true"]
    code, out, err = say(*words)
    assert (code, out) == (2, "")
    assert "stepprobe.toml" in err
    assert told in err


@pytest.mark.parametrize("text", ["[tool]\nstepprobe = 3\n", "[tool]\nstepprobe.run = 3\n"])
def test_a_table_of_ours_in_pyproject_that_is_none_is_refused(say, tmp_path, text):
    (tmp_path / "pyproject.toml").write_text(text)
    code, _, err = say("run", "--", "true")
    assert code == 2
    assert "must " in err


def test_a_pyproject_without_tables_says_nothing_to_us(tmp_path):
    (tmp_path / "pyproject.toml").write_text("tool = 3\n")
    assert _config.read_config(tmp_path, ["run"])[1] == {}


def test_a_config_that_is_no_text_is_refused(tmp_path):
    (tmp_path / "stepprobe.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="not TOML"):
        _config.read_config(tmp_path, ["run"])


def test_an_interrupt_exits_130(say, monkeypatch):
    def interrupt(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "_dispatch", interrupt)
    assert say("report")[0] == 130
