"""Lines that the reader's side decodes."""

import pytest

from stepprobe.errors import EvidenceError
from stepprobe.instruments.experiments.journal import ExperimentJournal
from stepprobe.model.experiments import Done, Harness, decode_experiments

HARNESS = {
    "source": "replay",
    "root": "TinyGPT",
    "rank": 3,
    "device": "cpu",
    "dtype": "float32",
    "threads": 1,
    "micro_steps": 2,
    "batches": [[3, 4]],
    "labelled_share": 0.5,
    "captured_loss": 1.0,
    "replayed_loss": 1.0,
    "longest": None,
    "vocabulary": 7,
}


def test_what_is_written_is_read(tmp_path):
    journal = ExperimentJournal(str(tmp_path), 3)
    journal.write("harness", HARNESS)
    journal.write("done", {"reason": "finished"})
    (file,) = tmp_path.iterdir()
    assert file.name.startswith("experiments-rank3-pid")
    records, cut = decode_experiments(file.name, file.read_bytes())
    assert records == [Harness(schema=1, **HARNESS), Done(reason="finished")]
    assert cut == 0


def test_a_changed_line_is_found(tmp_path):
    journal = ExperimentJournal(str(tmp_path), 0)
    journal.write("harness", HARNESS)
    journal.close()
    (file,) = tmp_path.iterdir()
    with pytest.raises(EvidenceError):
        decode_experiments(file.name, file.read_bytes().replace(b'"rank":3', b'"rank":4'))


def test_nothing_is_written_after_a_fork(tmp_path):
    journal = ExperimentJournal(str(tmp_path), 0)
    journal.abandon()
    journal.write("harness", HARNESS)
    assert list(tmp_path.iterdir()) == []
