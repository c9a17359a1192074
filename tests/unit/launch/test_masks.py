"""Foretelling masks at the end of a job: bounded, and never the reason that a report is missing."""

import json
import sys

import pytest

from stepprobe.launch import masks
from stepprobe.model.first_calls import UNTOLD


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "batches-rank0-pid1.jsonl").write_bytes(b"")
    return tmp_path


def foretell(folder, code, **options):
    masks.foretell(folder, command=(sys.executable, "-c", code), **options)
    return json.loads((folder / UNTOLD).read_text()) if (folder / UNTOLD).exists() else None


def test_without_kept_batches_nothing_is_started(tmp_path):
    assert foretell(tmp_path, "raise SystemExit('started')") is None


def test_what_goes_well_leaves_no_reason(folder):
    assert foretell(folder, "") is None


@pytest.mark.parametrize(
    ("without", "said"),
    [("run --no-masks", "(at most 7 s; run --no-masks leaves this out)"), ("", "(at most 7 s)")],
)
def test_one_line_says_what_the_report_waits_for_before_it_waits(folder, capfd, without, said):
    foretell(folder, "import sys; print('begun', file=sys.stderr); sys.stderr.flush()", limit_s=7.0, without=without)
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("stepprobe: the job has ended; foretelling the attention masks")
    assert line.endswith(said)


@pytest.mark.parametrize("asked", [True, False])
def test_nothing_is_said_where_nothing_is_done(tmp_path, capfd, asked):
    if not asked:
        (tmp_path / "batches-rank0-pid1.jsonl").write_bytes(b"")
    masks.foretell(tmp_path, asked=asked, command=(sys.executable, "-c", ""))
    assert capfd.readouterr() == ("", "")


def test_that_nobody_reads_it_is_no_reason(folder, monkeypatch):
    with open(folder / "closed", "w") as gone:
        monkeypatch.setattr(sys, "stderr", gone)
    assert foretell(folder, "") is None
    monkeypatch.setattr(sys, "stderr", None)
    assert foretell(folder, "") is None


def test_the_last_line_that_it_said_is_the_reason(folder):
    assert foretell(folder, "import sys; sys.exit('first\\nno such class')")["reason"] == "no such class"


def test_a_crash_is_a_reason(folder):
    assert foretell(folder, "import os; os.kill(os.getpid(), 9)")["reason"] == "its process ended with -9"


def test_it_may_take_no_longer_than_its_limit_and_half_files_go(folder):
    code = f"open({str(folder / 'masks-1.json.part')!r}, 'w').write('half'); import time; time.sleep(60)"
    told = foretell(folder, code, limit_s=1.0)
    assert told == {"reason": "it took longer than 1 s", "again": True}
    assert not list(folder.glob("*.part"))


def test_a_program_that_cannot_be_started_is_a_reason(folder):
    masks.foretell(folder, command=("/no/such/program",))
    assert "could not be started" in json.loads((folder / UNTOLD).read_text())["reason"]


def test_a_folder_that_is_gone_is_no_error(tmp_path):
    masks.foretell(tmp_path / "gone")


def test_without_transformers_it_says_so(folder, monkeypatch):
    monkeypatch.setattr(masks, "find_spec", lambda name: None if name == "transformers" else object())
    assert foretell(folder, "") == {"reason": "transformers is not installed where stepprobe is", "again": True}
