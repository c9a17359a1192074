"""Traces that a run's own processes wrote are packed and read, each by itself, and what fails is told."""

import gzip
import json

import pytest

from stepprobe.instruments.trace import window
from stepprobe.model.trace import UNREAD, decode_columns
from tests.fakes.traces import training

NAME = "trace-rank0-pid7.json"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / NAME).write_bytes(training(2).text())
    return tmp_path


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_it_is_packed_and_its_columns_stand_beside_it(folder):
    text = (folder / NAME).read_bytes()
    window.gather(folder)
    assert names(folder) == ["trace-rank0-pid7.columns", f"{NAME}.gz"]
    assert gzip.decompress((folder / f"{NAME}.gz").read_bytes()) == text
    columns = decode_columns("a", (folder / "trace-rank0-pid7.columns").read_bytes())
    assert columns.header.text_bytes == len(text)
    assert sum(name.startswith("ProfilerStep#") for name in columns.header.names) == 2


def test_a_second_time_changes_nothing(folder):
    window.gather(folder)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    window.gather(folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_files_of_other_names_are_left_alone(tmp_path):
    for name in ("trace.json", "trace-rank0-pid7.json.part", "steps-rank0-pid7.jsonl"):
        (tmp_path / name).write_bytes(b"x")
    before = names(tmp_path)
    window.gather(tmp_path)
    assert names(tmp_path) == before


def test_one_that_is_no_trace_is_kept_and_told_and_the_others_are_read(folder):
    (folder / "trace-rank1-pid8.json").write_bytes(b"")
    window.gather(folder)
    assert names(folder) == ["trace-rank0-pid7.columns", f"{NAME}.gz", "trace-rank1-pid8.json.gz", UNREAD]
    (told,) = json.loads((folder / UNREAD).read_bytes())
    assert told.startswith("trace-rank1-pid8.json.gz: the file is empty")


def test_one_that_is_cut_off_is_read_as_far_as_it_goes(folder):
    text = (folder / NAME).read_bytes()
    (folder / NAME).write_bytes(text[: len(text) * 2 // 3])
    window.gather(folder)
    columns = decode_columns("a", (folder / "trace-rank0-pid7.columns").read_bytes())
    assert columns.header.losses


def test_without_numpy_it_is_kept_unread_with_the_next_step(folder, monkeypatch):
    monkeypatch.setattr(window, "find_spec", lambda _: None)
    window.gather(folder)
    assert names(folder) == [f"{NAME}.gz", UNREAD]
    assert "pip install numpy" in json.loads((folder / UNREAD).read_bytes())[0]


def test_where_nothing_can_be_written_the_trace_stays(folder, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(window.shutil, "copyfileobj", full)
    text = (folder / NAME).read_bytes()
    with pytest.raises(OSError, match="No space"):
        window.gather(folder)
    assert (folder / NAME).read_bytes() == text
