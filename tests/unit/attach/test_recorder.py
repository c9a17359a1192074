"""What the recorder writes can be read back, is bounded, and never harms the script."""

import json
import os
import random

import pytest

from stepprobe.errors import EvidenceError
from stepprobe.instruments.attach import recorder as module
from stepprobe.instruments.attach.recorder import Recorder, step_line
from stepprobe.model.records import decode_process

HEADER = {
    "schema": 1,
    "rank": 0,
    "local_rank": 0,
    "world_size": 1,
    "pid": 7,
    "origin_unix_ns": 1,
    "python": "3.11.7",
    "versions": {},
    "unit_cost_ns": {},
}


def step(index, wall=1_000_000, detail=False):
    return {
        "index": index,
        "start_ns": index * wall,
        "wall_ns": wall,
        "cpu_ns": wall // 2,
        "self_ns": 10,
        "detail": detail,
        "accounts": {"forward": (wall - 5, 3), "unattributed": (5, 0)},
        "counters": {"slots": 10},
        "end": "boundary",
    }


@pytest.fixture
def path(tmp_path):
    return tmp_path / "steps-rank0-pid7.jsonl"


def read(path):
    return decode_process(path.name, path.read_bytes())


def test_the_fast_line_is_the_encoder_s_line():
    record = step(3, detail=True)
    line = json.loads(step_line(record))
    assert line.pop("crc")
    assert line == json.loads(json.dumps({"type": "step", **record}))


def test_a_step_is_on_disk_when_step_returns(path):
    recorder = Recorder(str(path))
    recorder.write("header", HEADER)
    for index in range(3):
        recorder.step(step(index), 0)
        assert [record.index for record in read(path).steps] == list(range(index + 1))


def test_thinning_keeps_every_step_once(path):
    recorder = Recorder(str(path), full_steps=16)
    recorder.write("header", HEADER)
    chance = random.Random(1)
    walls = [chance.randint(1, 10**9) for _ in range(5000)]
    for index, wall in enumerate(walls):
        recorder.step(step(index, wall, detail=index % 3 == 0), index * 50_000_000)
    recorder.close()
    found = read(path)
    kept = sum(record.wall_ns for record in found.steps) + sum(record.wall_ns for record in found.summaries)
    assert kept == sum(walls)
    assert len(found.steps) + sum(record.count for record in found.summaries) == len(walls)
    assert all(sum(record.wall_histogram.values()) == record.count for record in found.summaries)
    for record in found.summaries:
        assert sum(wall for wall, _ in record.accounts.values()) == record.wall_ns


def test_a_kill_while_thinned_loses_no_step_that_took_a_tenth_of_a_second(path):
    recorder = Recorder(str(path), full_steps=8)
    recorder.write("header", HEADER)
    for index in range(100):
        recorder.step(step(index), index * module.TAIL_NS)
        found = read(path)  # as after a kill: nothing was closed
        assert len(found.steps) + sum(record.count for record in found.summaries) == index + 1


def test_each_doubling_of_the_steps_adds_the_same_and_a_million_stay_under_fifty_megabytes(path):
    recorder = Recorder(str(path))
    recorder.write("header", HEADER)
    record = step(0)
    record["accounts"] = {f"an account with a long name {n}": (10**9, 10**8) for n in range(26)}
    record["counters"] = {f"a counter with a long name {n}": 10**6 for n in range(12)}
    sizes = {}
    for index in range(1 << 17):
        record["index"] = index
        record["detail"] = index % 7 == 0
        recorder.step(record, index * 1_000_000)
        if (index + 1).bit_count() == 1:
            recorder.flush()
            sizes[index + 1] = path.stat().st_size
    doubling = [sizes[1 << n] - sizes[1 << n - 1] for n in (15, 16, 17)]
    assert max(doubling) < 1.1 * min(doubling)
    assert sizes[1 << 17] + 3 * max(doubling) < 50e6  # 2^20 steps


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), "short"])
def test_a_full_disk_never_reaches_the_script(path, monkeypatch, capfd, error):
    recorder = Recorder(str(path))
    recorder.write("header", HEADER)
    recorder.step(step(0), 0)

    def full(file, data, offset):
        if error == "short":
            return len(data) - 1
        raise error

    monkeypatch.setattr(os, "pwrite", full)
    recorder.step(step(1), 0)
    recorder.step(step(2), 0)
    monkeypatch.undo()
    recorder.step(step(3), 0)
    recorder.close()
    assert capfd.readouterr().err.count("cannot write evidence any more") == 1
    assert [record.index for record in read(path).steps] == [0]


def test_a_folder_that_cannot_be_written_never_reaches_the_script(tmp_path, capfd):
    recorder = Recorder(str(tmp_path / "gone" / "steps.jsonl"))
    recorder.write("header", HEADER)
    assert "cannot write evidence" in capfd.readouterr().err


def test_an_unfinished_last_line_is_dropped_and_counted(path):
    recorder = Recorder(str(path))
    recorder.write("header", HEADER)
    recorder.step(step(0), 0)
    recorder.step(step(1), 0)
    whole = path.read_bytes()
    path.write_bytes(whole[:-30])
    found = read(path)
    assert [record.index for record in found.steps] == [0]
    assert found.cut_bytes == len(step_line(step(1))) - 30


def test_one_changed_digit_is_noticed(path):
    recorder = Recorder(str(path))
    recorder.write("header", HEADER)
    recorder.step(step(0), 0)
    data = path.read_bytes()
    at = data.index(b"999995")
    path.write_bytes(data[:at] + b"8" + data[at + 1 :])
    with pytest.raises(EvidenceError, match=r"steps-rank0-pid7\.jsonl:2: damaged"):
        read(path)


def test_a_fork_never_writes(path):
    recorder = Recorder(str(path))
    recorder.write("header", HEADER)
    before = path.read_bytes()
    recorder.abandon()
    recorder.step(step(0), 0)
    recorder.close()
    assert path.read_bytes() == before


def test_a_number_that_the_script_closed_and_opened_again_is_the_script_s(path, tmp_path):
    recorder = Recorder(str(path))
    recorder.write("header", HEADER)
    with open(tmp_path / "theirs", "wb") as theirs:
        os.dup2(theirs.fileno(), recorder._file)
    recorder.step(step(0), 0)
    recorder.close()
    assert (tmp_path / "theirs").read_bytes() == b""
    assert [record.index for record in read(path).steps] == [0]


def test_evidence_is_never_a_standard_stream(path):
    free = os.dup(2)
    os.close(2)
    try:
        recorder = Recorder(str(path))
        recorder.write("header", HEADER)
        assert recorder._file > 2
        recorder.close()
    finally:
        os.dup2(free, 2)
        os.close(free)


def test_a_process_that_replaced_itself_writes_a_second_file(path):
    for index in range(2):
        recorder = Recorder(str(path))
        recorder.write("header", HEADER)
        recorder.step(step(index), 0)
    assert [record.index for record in read(path).steps] == [0]
    assert [record.index for record in read(path.with_name("steps-rank0-pid7-2.jsonl")).steps] == [1]


def test_a_path_that_is_no_unicode_costs_no_evidence(path):
    recorder = Recorder(str(path))
    recorder.write("header", HEADER)
    recorder.write("note", {"text": "tr\udcff\u2028\u202e</script>.py\n"})
    assert read(path).notes == ("tr?\u2028\u202e</script>.py\n",)
