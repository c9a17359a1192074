import errno
import json
import os
import re
import time

import msgspec
import pytest

from stepprobe import store
from stepprobe.errors import EvidenceError, StepprobeError, UsageError
from stepprobe.model.evidence import Evidence
from stepprobe.store.manifest import Manifest, write_manifest

PLANNED = Evidence(
    probe="ledger",
    command="run",
    subject="python train.py",
    environment={"python": "3.11"},
    files={},
    options={"warmup": "auto"},
)
REPORT = {"report.json": "{}", "report.html": "<p>"}


def make(out, name="train"):
    return store.create(out, name, PLANNED, ("python", "train.py"))


@pytest.fixture
def folder(tmp_path):
    folder = make(tmp_path)
    (folder / "steps-rank0-pid7.jsonl").write_bytes(b"12\n13\n")
    (folder / "attach-events.jsonl").write_bytes(b"{}\n")
    return folder


@pytest.fixture
def sealed(folder):
    store.seal(folder, "exit 3")
    store.write_report(folder, REPORT)
    return folder


def edit_manifest(folder, change):
    """Change the manifest as someone would who also knows how it is signed."""
    path = folder / "manifest.json"
    content = json.loads(path.read_bytes())
    change(content)
    manifest = msgspec.convert(content, Manifest)
    write_manifest(folder, manifest)


def test_evidence_comes_back_as_it_was(sealed):
    evidence = store.load(sealed)
    assert evidence.files == {"steps-rank0-pid7.jsonl": b"12\n13\n", "attach-events.jsonl": b"{}\n"}
    assert evidence.status == "exit 3"
    assert (evidence.subject, evidence.environment, evidence.options) == (
        PLANNED.subject,
        PLANNED.environment,
        PLANNED.options,
    )


def test_a_killed_run_loads_as_interrupted(folder):
    (folder / "report.json.part").write_text("half")
    evidence = store.load(folder)
    assert evidence.status == "interrupted"
    assert evidence.files["steps-rank0-pid7.jsonl"] == b"12\n13\n"
    assert not any(name.startswith("report") for name in evidence.files)


def test_the_folder_says_when_and_what(tmp_path):
    assert re.fullmatch(r"\d{8}-\d{6}-run-train", make(tmp_path).name)


@pytest.mark.parametrize(
    "name", ["../../etc/passwd", "</script><script>", "a\nb", "", "...", "\u202egnp.py", "x" * 400, "b\udcff", "a b"]
)
def test_a_hostile_name_stays_one_plain_folder(tmp_path, name):
    folder = make(tmp_path, name)
    assert folder.parent == tmp_path
    assert re.fullmatch(r"[A-Za-z0-9_.-]{1,80}", folder.name)
    assert store.read_manifest(folder).state == "running"


def test_text_that_is_no_unicode_can_be_kept(tmp_path):
    planned = msgspec.structs.replace(PLANNED, subject="python b\udcff.py", environment={"env.X": "\udc80"})
    evidence = store.load(store.create(tmp_path, "b", planned, ("python", "b\udcff.py")))
    assert evidence.subject == "python b\\udcff.py"


def test_two_runs_in_one_second_do_not_share_a_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(time, "strftime", lambda form: "20260101-000000")
    assert [make(tmp_path).name for _ in range(3)] == [
        "20260101-000000-run-train",
        "20260101-000000-run-train-2",
        "20260101-000000-run-train-3",
    ]


def test_sealing_again_changes_nothing(sealed):
    before = (sealed / "manifest.json").read_bytes()
    store.seal(sealed, "finished")
    assert (sealed / "manifest.json").read_bytes() == before


def test_the_report_can_be_written_again_and_the_evidence_keeps_its_hashes(sealed):
    before = store.read_manifest(sealed).files
    store.write_report(sealed, {"report.json": "{} ", "report.html": "<b>"})
    after = store.read_manifest(sealed).files
    assert {name for name in after if after[name] != before[name]} == {"report.json", "report.html"}
    assert store.read_sealed(sealed)["report.html"] == b"<b>"
    assert store.load(sealed).status == "exit 3"


@pytest.mark.parametrize("name", ["steps-rank0-pid7.jsonl", "attach-events.jsonl"])
@pytest.mark.parametrize("read", [store.load, store.read_sealed])
def test_one_changed_byte_is_named(sealed, name, read):
    path = sealed / name
    content = bytearray(path.read_bytes())
    content[0] ^= 1
    path.write_bytes(content)
    with pytest.raises(EvidenceError, match=name):
        read(sealed)


def test_a_changed_report_is_found_but_does_not_lose_the_evidence(sealed):
    (sealed / "report.html").write_text("<q>")
    with pytest.raises(EvidenceError, match=r"report\.html"):
        store.read_sealed(sealed)
    assert store.load(sealed).files


def test_a_removed_file_is_named(sealed):
    (sealed / "attach-events.jsonl").unlink()
    with pytest.raises(EvidenceError, match=r"attach-events\.jsonl"):
        store.load(sealed)


def test_an_added_file_is_named_and_a_note_of_the_user_is_not(sealed):
    (sealed / ".notes").write_text("mine")
    (sealed / "folder").mkdir()
    store.read_sealed(sealed)
    (sealed / "steps-rank1-pid8.jsonl").write_text("1\n")
    with pytest.raises(EvidenceError, match=r"steps-rank1-pid8\.jsonl was added"):
        store.read_sealed(sealed)


@pytest.mark.parametrize("length", [0, 1, 40, -2])
def test_a_half_written_manifest_is_named(sealed, length):
    path = sealed / "manifest.json"
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(EvidenceError, match=r"manifest\.json is damaged or half-written"):
        store.load(sealed)


def test_a_manifest_with_one_changed_digit_is_refused(sealed):
    path = sealed / "manifest.json"
    path.write_bytes(path.read_bytes().replace(b'"exit 3"', b'"exit 4"'))
    with pytest.raises(EvidenceError, match="was changed"):
        store.load(sealed)


@pytest.mark.parametrize("content", [b"[]", b"{}", b"null", b"\xff\xfe", b'{"schema": "1"}', b'{"schema": 1}'])
def test_a_manifest_of_another_shape_is_refused(sealed, content):
    (sealed / "manifest.json").write_bytes(content)
    with pytest.raises(EvidenceError, match=r"manifest\.json"):
        store.load(sealed)


def test_a_newer_schema_asks_for_an_upgrade(sealed):
    (sealed / "manifest.json").write_text('{"schema": 99, "shape": "unknown"}')
    with pytest.raises(EvidenceError, match="upgrade stepprobe"):
        store.load(sealed)


def test_a_folder_without_manifest_is_no_run_folder(tmp_path):
    for path in (tmp_path, tmp_path / "absent"):
        with pytest.raises(EvidenceError, match="not a run folder"):
            store.load(path)


@pytest.mark.parametrize("name", ["../secret", "/etc/hostname", "a/b", "..", "", "manifest.json", "a\0b"])
def test_a_manifest_cannot_name_a_file_elsewhere(sealed, name):
    (sealed.parent / "secret").write_text("s")
    edit_manifest(sealed, lambda content: content["files"].update({name: {"sha256": "0" * 64, "bytes": 1}}))
    with pytest.raises(EvidenceError, match="not a file of its own folder"):
        store.load(sealed)


def test_links_and_pipes_are_not_read(folder):
    secret = folder.parent / "secret"
    secret.write_text("s")
    (folder / "steps-rank1-pid1.jsonl").symlink_to(secret)
    with pytest.raises(EvidenceError, match=r"steps-rank1-pid1\.jsonl"):
        store.load(folder)
    (folder / "steps-rank1-pid1.jsonl").unlink()
    os.mkfifo(folder / "steps-rank1-pid1.jsonl")
    with pytest.raises(EvidenceError, match="not a plain file"):
        store.seal(folder, "finished")


def test_a_place_that_cannot_be_written_names_the_option(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="--out DIR"):
        make(tmp_path / "file" / "runs")


def full_disk(descriptor):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_keeps_the_evidence_and_names_the_next_step(folder, monkeypatch):
    with monkeypatch.context() as full:
        full.setattr(os, "fsync", full_disk)
        with pytest.raises(StepprobeError, match=r"No space left.*evidence there is kept.*stepprobe report"):
            store.seal(folder, "finished")
        with pytest.raises(StepprobeError, match="No space left"):
            store.write_report(folder, REPORT)
        with pytest.raises(UsageError, match="No space left"):
            make(folder.parent)
    assert not list(folder.glob("*.part"))
    store.seal(folder, "finished")
    assert store.load(folder).files["steps-rank0-pid7.jsonl"] == b"12\n13\n"


def test_an_open_or_reportless_folder_cannot_be_verified(folder):
    with pytest.raises(EvidenceError, match="not sealed"):
        store.read_sealed(folder)
    store.seal(folder, "finished")
    with pytest.raises(EvidenceError, match=r"no report\.json"):
        store.read_sealed(folder)


def test_the_newest_is_the_last_that_was_made_not_the_last_that_was_touched(tmp_path, monkeypatch):
    monkeypatch.setattr(time, "strftime", lambda form: "20260101-000000")
    older = make(tmp_path)
    monkeypatch.setattr(time, "strftime", lambda form: "20260101-000001")
    newer = make(tmp_path)
    store.seal(older, "finished")
    assert store.newest(tmp_path) == newer


def test_no_run_yet(tmp_path):
    with pytest.raises(UsageError, match="stepprobe run -- CMD"):
        store.newest(tmp_path / "absent")
