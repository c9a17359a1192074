"""Rows that are no rows: refused by place, in columns as in records, and never with a traceback."""

import json

import pytest

from stepprobe.errors import NotObserved, UsageError
from stepprobe.instruments.dataset.columns import BadValue, messages_of
from tests.unit.lengths.conftest import observe, refused, write_jsonl


def columns_and_records(folder, rows):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pyarrow.Table.from_pylist(rows), folder / "columns")
    write_jsonl(folder / "records", rows)
    return folder / "columns", folder / "records"


PLAIN = {"input_ids": [1, 2, 3], "attention_mask": [1, 1, 0], "labels": [-100, 2, 3]}


@pytest.mark.parametrize(
    ("odd", "said"),
    [
        ({"input_ids": None}, "the row has no input_ids"),
        ({"input_ids": [1, None, 3]}, "something else among its token ids"),
        ({"labels": [1, None, 3]}, "labels holds null"),
    ],
)
def test_a_hole_is_refused_in_columns_as_in_records(tmp_path, odd, said):
    for path in columns_and_records(tmp_path, [PLAIN, PLAIN | odd]):
        refused(NotObserved, [said, "columns, row 2" if path.name == "columns" else "records:2"], path)


@pytest.mark.parametrize(
    "rows",
    [
        [{"input_ids": [[1, 2], [3]]}],
        [{"input_ids": ["a", "b"]}],
        [{"input_ids": [1.0, 2.5, 3.0]}],
    ],
)
def test_lists_of_something_else_than_ids_are_refused_in_columns_as_in_records(tmp_path, rows):
    for path in columns_and_records(tmp_path, rows):
        refused(NotObserved, ["token ids"], path)


@pytest.mark.parametrize(
    ("odd", "labelled"),
    [
        ({"attention_mask": None}, 2),
        ({"attention_mask": [1, 1]}, 2),  # of another length, so it is none of these ids'
        ({"labels": None}, 2),
    ],
)
def test_a_mask_or_labels_that_a_row_lacks_are_read_alike(tmp_path, odd, labelled):
    columns, records = (observe(path) for path in columns_and_records(tmp_path, [PLAIN, PLAIN | odd]))
    assert columns.cells.tolist() == records.cells.tolist()
    assert columns.labelled.tolist() == records.labelled.tolist()
    assert columns.labelled[:, 1].min() == labelled


@pytest.mark.parametrize("labels", [[0.5, 1.0, 0.0], ["a", "b", "c"], 5])
def test_the_labels_of_a_classifier_are_no_ids(tmp_path, labels):
    for path in columns_and_records(tmp_path, [{"input_ids": [1, 2, 3], "labels": labels}]):
        seen = observe(path)
        assert seen.labelled.tolist() == [[3, 3, 1]]
        assert seen.about.largest_label == -1


def test_sources_of_any_type_are_read_alike(tmp_path):
    for sources in ([[1], [2]], [None, "none"]):
        rows = [{"input_ids": [1], "source": source} for source in sources]
        columns, records = (observe(path) for path in columns_and_records(tmp_path, rows))
        assert columns.about.sources == records.about.sources


def test_a_number_of_more_than_63_bits_is_no_token_id(tmp_path):
    write_jsonl(tmp_path / "ids", [{"input_ids": [1, 1 << 63]}])
    refused(NotObserved, ["ids:1", "token ids"], tmp_path / "ids")


def test_a_line_that_is_nested_too_deeply_is_a_broken_row(tmp_path):
    (tmp_path / "deep").write_text('{"text": ' + "[" * 100_000 + "]" * 100_000 + "}\n")
    refused(NotObserved, ["deep:1", "recursion"], tmp_path / "deep")


@pytest.mark.parametrize(
    ("header", "said"),
    [(b"length,length", "several columns 'length'"), (b"l\xe9ngth", "not a line of CSV in UTF-8")],
)
def test_a_header_that_names_no_columns_is_refused(tmp_path, header, said):
    (tmp_path / "rows.csv").write_bytes(header + b"\n3,4\n")
    refused(NotObserved, [said], tmp_path / "rows.csv")


def test_a_file_that_is_named_twice_is_said_to_be_counted_twice(tmp_path):
    write_jsonl(tmp_path / "a.jsonl", [{"length": 3}])
    about = observe(tmp_path / "a.jsonl", tmp_path / "." / "a.jsonl").about
    assert about.rows == 2
    assert about.notes == ("a.jsonl is named more than once: its rows are counted each time.",)


@pytest.mark.parametrize("message", [{"role": 3}, {"from": ["human"], "value": "a"}, {}])
def test_a_message_of_nobody_is_refused(message):
    with pytest.raises(BadValue, match=r"messages\[0\] has no (role|from) that is a string"):
        messages_of([{"content": "a"} | message], "messages")


def test_columns_are_named_without_what_cannot_be_seen(tmp_path):
    write_jsonl(tmp_path / "a", [{"\u202e": 1}])
    refused(UsageError, [r"there are: '\u202e'."], tmp_path / "a")
    write_jsonl(tmp_path / "b", [{}])
    refused(UsageError, ["there are: none."], tmp_path / "b")


def test_half_a_character_is_no_text(tmp_path, tokenizer):
    (tmp_path / "rows.json").write_text(json.dumps([{"text": "a"}, {"text": "\ud800"}]))
    refused(NotObserved, ["rows.json, entry 2", "UTF-8"], tmp_path / "rows.json", tokenizer=tokenizer)
