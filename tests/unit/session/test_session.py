import json
import os
import subprocess
import time

import msgspec
import pytest

from stepprobe import session, store
from stepprobe.errors import AssertionFailed, EvidenceError, StepprobeError, UsageError
from stepprobe.launch import script
from stepprobe.model.estimate import exact
from stepprobe.session import observing
from stepprobe.session.verifying import differences
from tests.fakes import faked

STEPS = 'f=$STEPPROBE_RUN/steps-rank0-pid1.jsonl; echo "12 13" >> $f; '


@pytest.fixture(autouse=True)
def _stand_ins(monkeypatch):
    faked.installed(monkeypatch)


def run(tmp_path, text, **options):
    return session.run(["sh", "-c", text], out=tmp_path / "runs", **options)


def test_a_run_is_measured_kept_derived_and_drawn(tmp_path):
    result = run(tmp_path, STEPS)
    assert (result.status, result.problems) == ("finished", ())
    assert result.report.figures["step.wall"].value == 12.5
    assert result.report.run == str(result.folder)
    assert json.loads((result.folder / "report.json").read_bytes())["headline"] == "2 steps, finished"
    assert (result.folder / "report.html").read_text() == "<p>ok</p>\n"
    assert session.verify(result.folder).verdict == "ok"


def test_only_a_run_is_told_its_option_without_masks(tmp_path, monkeypatch):
    """``profile`` has no such option."""
    seen = []
    monkeypatch.setattr(observing.masks, "foretell", lambda folder, *, asked, without: seen.append((asked, without)))
    run(tmp_path, STEPS)
    experiments = {"harness": "", "keep_training": "no", "anyway": "yes", "seconds": "1"}
    session.profile(["sh", "-c", STEPS], out=tmp_path / "runs", steps=4, experiments=experiments)
    assert seen == [(True, "run --no-masks"), (True, "")]


def test_the_script_is_told_where_and_how_long(tmp_path):
    told = tmp_path / "told"
    result = run(tmp_path, f'echo "$STEPPROBE_RUN|$STEPPROBE_STEPS|$STEPPROBE_WARMUP" > {told}', steps=7, warmup="3")
    assert told.read_text() == f"{result.folder}|7|3\n"
    assert store.load(result.folder).options == {"steps": "7", "warmup": "3", "trace": "on"}


@pytest.mark.parametrize("inherited", [None, "/a:/b"])
def test_python_finds_the_injection_first_and_the_rest_as_before(tmp_path, monkeypatch, inherited):
    if inherited is None:
        monkeypatch.delenv("PYTHONPATH", raising=False)
    else:
        monkeypatch.setenv("PYTHONPATH", inherited)
    run(tmp_path, f"printenv PYTHONPATH > {tmp_path}/told")
    first, *rest = (tmp_path / "told").read_text().strip().split(":")
    assert first == str(script.INJECT)
    assert rest == ([] if inherited is None else ["/a", "/b"])


def test_a_run_folder_that_the_script_removes_is_said_to_be_gone(tmp_path):
    result = run(tmp_path, 'rm -r "$STEPPROBE_RUN"; exit 3')
    assert result.status == "exit 3"
    assert "was removed while the script ran" in result.report.headline
    assert "--out DIR" in result.report.headline
    assert (result.problems, result.folder.exists()) == ((), False)


@pytest.mark.parametrize(("text", "status"), [("exit 3", "exit 3"), ("kill -9 $$", "signal 9"), ("true", "finished")])
def test_no_step_is_explained_and_kept(tmp_path, text, status):
    result = run(tmp_path, text)
    assert result.status == status
    assert result.report.verdict == "not measured"
    assert "no training step was observed" in result.report.headline
    assert session.report(result.folder).report == result.report
    assert session.verify(result.folder).verdict == "ok"


def test_a_crash_after_some_steps_still_reports_them(tmp_path):
    result = run(tmp_path, STEPS + "exit 5")
    assert result.report.headline == "2 steps, exit 5"


def test_evidence_that_cannot_be_derived_does_not_lose_the_scripts_end(tmp_path):
    result = run(tmp_path, STEPS + "echo damaged >> $f; exit 5")
    assert (result.status, result.report.verdict) == ("exit 5", "not measured")
    assert "damaged line" in result.report.headline
    with pytest.raises(EvidenceError, match="damaged line"):
        session.report(result.folder)


def test_a_defect_of_ours_costs_neither_the_scripts_end_nor_its_evidence(tmp_path, monkeypatch):
    with monkeypatch.context() as broken:
        broken.setattr(faked.CountingProbe, "derive", lambda self, evidence: {}["absent"])
        result = run(tmp_path, STEPS + "exit 5")
    assert (result.status, result.report.verdict) == ("exit 5", "not measured")
    assert "KeyError: 'absent' (test_session.py:" in result.report.headline
    assert session.report(result.folder).report.headline == "2 steps, exit 5"


def test_a_script_that_spoils_its_run_folder_keeps_its_end(tmp_path):
    result = run(tmp_path, STEPS + "echo x > $STEPPROBE_RUN/manifest.json; exit 5")
    assert result.status == "exit 5"
    assert any("manifest.json is damaged" in problem for problem in result.problems)


def test_a_command_that_leaves_its_training_behind_is_not_sealed_under_it(tmp_path, monkeypatch):
    monkeypatch.setattr(observing, "_PATIENCE_S", 0.1)
    left = "f=$STEPPROBE_RUN/steps-rank0-pid1.jsonl; (while [ ! -e go ]; do sleep 0.05; done; echo 12 13 >> $f) & :"
    monkeypatch.chdir(tmp_path)
    result = run(tmp_path, left)
    assert result.status == "finished"
    assert "still lives" in result.problems[0]
    (tmp_path / "go").touch()
    assert script.living(result.folder, patience_s=20) == []
    assert session.report(result.folder).report.headline == "2 steps, interrupted"
    assert session.verify(result.folder).verdict == "ok"


def test_what_cannot_start_leaves_nothing_behind(tmp_path):
    with pytest.raises(UsageError, match="no such command"):
        session.run(["/no/such/command"], out=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_a_broken_first_line_names_the_interpreter(tmp_path):
    program = tmp_path / "tool"
    program.write_text("#!/no/such/python\n")
    program.chmod(0o755)
    with pytest.raises(UsageError, match="cannot be started"):
        session.run([str(program)], out=tmp_path / "runs")


@pytest.mark.parametrize("place", ["seal", "write_report"])
def test_a_disk_that_fills_up_costs_neither_report_nor_evidence(tmp_path, monkeypatch, place):
    def full(*_):
        raise StepprobeError("No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(store, place, full)
        result = run(tmp_path, STEPS)
    assert result.report.headline == "2 steps, finished"
    assert result.problems == ("No space left on device",)
    assert session.report(result.folder).report.figures == result.report.figures
    assert session.verify(result.folder).verdict == "ok"


@pytest.mark.parametrize("error", [ImportError("no jinja2"), ValueError("no jinja2: the painter fell")])
def test_html_that_cannot_be_drawn_is_said(tmp_path, monkeypatch, error):
    import stepprobe.report

    def missing(_):
        raise error

    monkeypatch.setattr(stepprobe.report.html, "render", missing)
    result = run(tmp_path, STEPS)
    assert "no jinja2" in result.problems[0]
    assert session.verify(result.folder).verdict == "ok"


def test_verify_names_what_differs(tmp_path, monkeypatch):
    result = run(tmp_path, STEPS)
    derive = faked.CountingProbe.derive

    def other(self, evidence):
        report = derive(self, evidence)
        return msgspec.structs.replace(report, figures={**report.figures, "step.wall": exact(12.6, "ms", 2)})

    monkeypatch.setattr(faked.CountingProbe, "derive", other)
    with pytest.raises(AssertionFailed, match=r"figures\.step\.wall\.value: kept 12\.5, derived 12\.6"):
        session.verify(result.folder)


@pytest.mark.parametrize(
    ("kept", "derived", "named"),
    [
        ({"a": 1}, {"a": 2}, "a: kept 1, derived 2"),
        ({"a": [1, 2]}, {"a": [1]}, "a: kept [1, 2], derived [1]"),
        ({"a": [{"b": "x"}]}, {"a": [{"b": "y"}]}, 'a[0].b: kept "x", derived "y"'),
        ({"a": None}, {"a": 0}, "a: kept null, derived 0"),
        ({"a": True}, {"a": 1}, "a: kept true, derived 1"),
        ({}, {"b": 1}, "b: kept null, derived 1"),
        ({"b": 1}, {}, "b: kept 1, derived null"),
        ({"a": 1.0}, {"a": 1.0 + 1e-9}, "a: kept 1.0, derived 1.000000001"),
    ],
)
def test_differences_are_named_by_their_place(kept, derived, named):
    assert list(differences(kept, derived)) == [named]


def test_rounding_of_another_machine_is_no_difference():
    assert list(differences({"a": [1.0]}, {"a": [1.0 + 4e-16]})) == []


@pytest.mark.parametrize("word", ["b\udcff", "</script>", "a\nb", "\u202egnp", "'\"`$(x)"])
def test_a_hostile_word_is_kept_and_derives_again(tmp_path, word):
    result = session.run(["sh", "-c", STEPS, word], out=tmp_path / "runs")
    assert result.report.title == store.load(result.folder).subject
    assert session.verify(result.folder).verdict == "ok"


def test_a_moved_folder_still_verifies(tmp_path):
    result = run(tmp_path, STEPS)
    moved = result.folder.rename(tmp_path / "moved")
    assert session.verify(moved).run == str(moved)


def test_a_run_that_still_goes_on_is_read_but_not_sealed(tmp_path):
    planned = script.plan(["x"], steps=None, warmup="auto")
    folder = store.create(tmp_path, "x", planned, ("x",))
    (folder / "steps-rank0-pid1.jsonl").write_text("12\n")
    child = subprocess.Popen(["sleep", "60"], env={"PATH": "/usr/bin:/bin", "STEPPROBE_RUN": str(folder)})
    try:
        deadline = time.monotonic() + 60
        while not script.living(folder) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert session.report(folder).report.headline == "1 steps, interrupted"
        assert store.read_manifest(folder).state == "running"
    finally:
        child.kill()
        child.wait()
    session.report(folder)
    assert store.read_manifest(folder).state == "sealed"
    assert session.verify(folder).verdict == "ok"


def test_a_changed_byte_fails_everywhere(tmp_path):
    result = run(tmp_path, STEPS)
    (result.folder / "steps-rank0-pid1.jsonl").write_text("12 14\n")
    for question in (session.report, session.verify, lambda folder: session.compare(folder, folder)):
        with pytest.raises(EvidenceError, match=r"steps-rank0-pid1\.jsonl"):
            question(result.folder)


def test_two_runs_are_handed_over_in_their_order(tmp_path):
    before, after = run(tmp_path, STEPS), run(tmp_path, STEPS + "exit 3")
    assert session.compare(before.folder, after.folder).headline == "finished exit 3"


def test_a_repeat_is_another_folder_than_the_two(tmp_path):
    before, after, again = (run(tmp_path, STEPS) for _ in range(3))
    session.compare(before.folder, after.folder, [again.folder])
    for twice in ([after.folder], [again.folder, again.folder]):
        with pytest.raises(UsageError, match=r"is named twice.*other runs as repeats"):
            session.compare(before.folder, after.folder, twice)


def test_the_folder_of_this_interpreter_is_not_running(tmp_path):
    assert not script.living(tmp_path)


class Killed(BaseException):
    """Stands for ``kill -9``: nothing cleans up after it."""


def test_a_kill_before_any_write_loses_no_evidence(tmp_path, monkeypatch):
    """Stop the parent before each of its disk operations in turn; the next ``report`` must make the run whole."""
    for survived in range(100):
        left = [survived]

        def counted(operation, left=left):
            def operate(*arguments):
                if left[0] == 0:
                    raise Killed
                left[0] -= 1
                return operation(*arguments)

            return operate

        with monkeypatch.context() as killing:
            for name in ("fsync", "replace"):
                killing.setattr(os, name, counted(getattr(os, name)))
            try:
                run(tmp_path / str(survived), STEPS)
            except Killed:
                killed = True
            else:
                killed = False
        if survived >= 2:  # before that, not even the folder's manifest is whole and the script was never started
            folder = store.newest(tmp_path / str(survived) / "runs")
            assert session.report(folder).report.figures["step.count"].value == 2
            assert session.verify(folder).verdict == "ok"
        if not killed:
            break
    assert survived == 10  # the manifest three times, and two report files: each one fsync and one rename
