"""The calibration log: appended once, read in spite of damage, and what it says of the predictions."""

import hashlib
import json
import multiprocessing

import msgspec
import pytest

from stepprobe import session, store
from stepprobe.analysis.outcome.log import calibration
from stepprobe.cli import main
from stepprobe.errors import EvidenceError, NotObserved, UsageError
from stepprobe.model.calibration import CALIBRATION, CALIBRATION_SCHEMA, Pair, Range, decode_pairs, encode_pair
from tests.fakes.records import CLEAN, COUNTS, METHODS, FakeProcess, evidence
from tests.unit.outcome.test_outcome import run


def pair(number=0, held="held", kind="recompute", predicted=(10, 8, 12), measured=(10, 9, 11), **more):
    return Pair(
        kind=kind,
        remedy="checkpointing.off",
        predicted=Range(value=predicted[0], low=predicted[1], high=predicted[2], bound=more.pop("bound", False)),
        measured=Range(value=measured[0], low=measured[1], high=measured[2]),
        held=held,
        before=f"before-{number}",
        after="after",
        before_started="2026-01-02T00:00:00Z",
        after_started="2026-01-03T00:00:00Z",
        machine="a",
        **more,
    )


def kept(out, name, fake, **options):
    """A sealed run folder of fake evidence."""
    seen = evidence(fake, **options)
    folder = store.create(out, name, seen, ("python", "train.py"))
    store.keep(folder, seen.files)
    store.seal(folder, "finished")
    session.report(folder)
    return folder


def hashes(folder):
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


@pytest.fixture
def folders(tmp_path):
    return kept(tmp_path, "before", run(1, {"recompute": 30})), kept(tmp_path, "after", run(2))


def test_a_comparison_is_logged_once_and_changes_no_run_folder(tmp_path, folders):
    sealed = [hashes(folder) for folder in folders]
    first = session.compare(*folders)
    once = (tmp_path / CALIBRATION).read_bytes()
    assert once.count(b"\n") == 1
    assert any(note.startswith("1 prediction with their outcome written to ") for note in first.notes)
    again = session.compare(*folders)
    assert (tmp_path / CALIBRATION).read_bytes() == once
    assert any(note.startswith("nothing new") for note in again.notes)
    assert [hashes(folder) for folder in folders] == sealed
    assert all(session.verify(folder).verdict == "ok" for folder in folders)
    (found,), problems = decode_pairs(once)
    assert problems == []
    assert (found.kind, found.remedy, found.held) == ("recompute", "checkpointing.off", "held")
    assert (found.before, found.after) == tuple(folder.name for folder in folders)
    assert found.predicted.low < 30.4 < found.predicted.high


def test_a_run_beside_itself_is_refused_with_the_next_step(folders):
    with pytest.raises(UsageError, match="is named twice; name the run before a change and the run after it"):
        session.compare(folders[0], folders[0])


def test_a_folder_that_cannot_be_written_costs_the_log_alone(tmp_path, folders):
    (tmp_path / CALIBRATION).mkdir()
    report = session.compare(*folders)
    assert report.findings[0].remedies[0].outcome is not None
    assert any("the comparison is whole" in note for note in report.notes)


def test_a_run_of_a_newer_schema_is_refused(tmp_path, folders):
    manifest = json.loads((folders[1] / store.MANIFEST).read_bytes())
    (folders[1] / store.MANIFEST).write_text(json.dumps({**manifest, "schema": 99}))
    with pytest.raises(EvidenceError, match="newer stepprobe \\(schema 99"):
        session.compare(*folders)
    assert not (tmp_path / CALIBRATION).exists()


def test_a_line_that_was_never_finished_is_closed_and_the_next_pair_kept(tmp_path):
    whole = encode_pair(pair(0))
    (tmp_path / CALIBRATION).write_bytes(whole + encode_pair(pair(1))[:40])
    assert store.append_pairs(tmp_path, [pair(0), pair(2)]) == 1
    found, problems = decode_pairs((tmp_path / CALIBRATION).read_bytes())
    assert [one.before for one in found] == ["before-0", "before-2"]
    assert len(problems) == 1
    assert "line 2 of calibration.jsonl is damaged" in problems[0]


def append(out, first):
    for number in range(first, first + 40):
        store.append_pairs(out, [pair(number % 50)])


def test_comparisons_at_the_same_time_lose_and_double_nothing(tmp_path):
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=append, args=(tmp_path, first)) for first in (0, 10, 20)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    lines = (tmp_path / CALIBRATION).read_bytes().splitlines()
    assert len(lines) == len(set(lines)) == 50
    assert decode_pairs((tmp_path / CALIBRATION).read_bytes())[1] == []


def test_a_changed_number_is_seen():
    line = encode_pair(pair()).replace(b'"value":10', b'"value":11', 1)
    assert decode_pairs(line)[0] == []
    assert "checksum does not match" in decode_pairs(line)[1][0]


def test_a_newer_line_is_said_and_the_others_count():
    newer = encode_pair(msgspec.structs.replace(pair(1), schema=CALIBRATION_SCHEMA + 1))
    found, problems = decode_pairs(newer + encode_pair(pair(0)))
    assert len(found) == 1
    assert "newer stepprobe" in problems[0]


def test_shares_and_bias_are_those_that_can_be_counted_by_hand():
    log = [pair(number) for number in range(6)]
    log += [pair(6, "missed (gained more)", measured=(20, 19, 21)), pair(7, "missed (gained less)", measured=(5, 4, 6))]
    log += [pair(8, "undecided", measured=(12, 11, 13)), pair(9, kind="data.slow", predicted=(20, 0, 40), bound=True)]
    report = calibration(b"".join(map(encode_pair, log)), "here")
    figures = report.figures
    assert figures["calibration.pairs"].value == 10
    share = figures["calibration.held_share"]
    assert (share.value, share.n) == (7 / 9, 9)
    assert share.low == pytest.approx(0.4526, abs=1e-3)  # Wilson's interval of 7 of 9, from its formula
    assert share.high == pytest.approx(0.9368, abs=1e-3)
    assert figures["calibration.inside_share"].value == 8 / 10
    assert (figures["calibration.bias"].value, figures["calibration.bias"].n) == (1.0, 9)
    kinds = {row[0]: row[1:] for row in report.tables[0].rows}
    assert kinds == {"data.slow": (1, 1, 0, 0, 1, ""), "recompute": (9, 6, 2, 1, 0, "1.00")}
    assert [row[3] for row in report.tables[1].rows] == ["missed (gained more)", "missed (gained less)"]
    assert "7 of 9 decided ones held (78%, 95 %: 45% to 94%)" in report.headline


def test_a_damaged_line_makes_the_report_warn():
    report = calibration(b"broken\n" + encode_pair(pair()), "here")
    assert report.verdict == "warn"
    assert "line 1 of calibration.jsonl is damaged" in report.reason
    assert report.figures["calibration.pairs"].value == 1


def test_an_empty_log_names_the_next_step(tmp_path, capsys):
    with pytest.raises(NotObserved, match="then: stepprobe compare BEFORE AFTER"):
        session.calibration(tmp_path)
    assert main(["report", "--calibration", str(tmp_path)]) == 3
    assert "stepprobe compare BEFORE AFTER" in capsys.readouterr().err
    assert main(["report", "--calibration", str(tmp_path / "absent")]) == 2
    assert main(["report", str(tmp_path), "--calibration", str(tmp_path)]) == 2


def test_the_command_draws_the_log_in_every_form(tmp_path, folders, capsys):
    session.compare(*folders)
    capsys.readouterr()
    assert main(["report", "--calibration", str(tmp_path)]) == 0
    assert "1 of 1 decided ones held" in capsys.readouterr().out
    assert main(["report", "--calibration", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["figures"]["calibration.held_share"]["value"] == 1
    assert main(["report", "--calibration", str(tmp_path), "--format", "html"]) == 0
    assert "calibration" in capsys.readouterr().out


def test_a_killed_run_is_compared_with_what_it_left(tmp_path):
    """Few steps, no interval: nothing is decided, and the log says so."""
    before = kept(tmp_path, "before", run(1, {"recompute": 30}))
    few = FakeProcess(**METHODS, model="Tiny", parameters=1000).steps(3, CLEAN, COUNTS)
    report = session.compare(before, kept(tmp_path, "after", few))
    assert report.figures["outcome.measured"].low is None
    (found,), _ = decode_pairs((tmp_path / CALIBRATION).read_bytes())
    assert (found.held, found.measured.low) == ("undecided", None)
