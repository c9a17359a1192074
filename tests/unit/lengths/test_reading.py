"""Every format gives the same counts; every broken one says where and what to do."""

import csv
import gzip
import hashlib
import json
import os
import threading

import msgspec
import numpy as np
import pytest

from stepprobe.errors import EvidenceError, NotObserved, UsageError
from stepprobe.instruments.dataset import records
from stepprobe.instruments.dataset.sampling import Sampler
from stepprobe.instruments.dataset.tally import Tally
from stepprobe.model.lengths import ABOUT, ARRAYS, About, build, decode, encode
from tests.fakes.lengths import cells_of, chat_mix
from tests.unit.lengths.conftest import make_tokenizer, observe, refused, write_jsonl

ROWS = 5000
NAMES = ("code", "docs", "notes", "short")


@pytest.fixture(scope="module")
def rows():
    lengths, kinds = chat_mix(ROWS, seed=9)
    return [{"length": int(length), "source": NAMES[kind]} for length, kind in zip(lengths, kinds, strict=True)]


@pytest.fixture(scope="module")
def expected(rows):
    return cells_of([row["length"] for row in rows], [NAMES.index(row["source"]) for row in rows])


def write_csv(path, rows):
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    return path


def write_parquet(path, rows, **how):
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pa.Table.from_pylist(rows), path, **how)
    return path


def same(lengths, expected):
    assert lengths.about.sources == NAMES
    assert lengths.about.rows == ROWS
    assert (lengths.cells == expected).all()


@pytest.mark.parametrize("block_rows", [1, 7, 1000, 100_000])
def test_every_format_and_block_size_gives_the_same(tmp_path, rows, expected, block_rows, monkeypatch):
    monkeypatch.setattr(records, "ARROW_ROWS", block_rows)
    made = [
        write_jsonl(tmp_path / "a.jsonl", rows),
        write_jsonl(tmp_path / "b.jsonl.gz", rows, gzip.open),
        write_csv(tmp_path / "c.csv", rows),
        write_parquet(tmp_path / "d.parquet", rows),
        write_parquet(tmp_path / "e.parquet", rows, row_group_size=999, use_dictionary=False),
    ]
    (tmp_path / "f.json").write_text(json.dumps(rows))
    for path in [*made, tmp_path / "f.json"]:
        same(observe(path, block_rows=block_rows), expected)


def test_a_saved_dataset_and_the_object_give_the_same(tmp_path, rows, expected):
    datasets = pytest.importorskip("datasets")
    made = datasets.Dataset.from_list(rows)
    datasets.disable_progress_bars()
    made.save_to_disk(str(tmp_path / "saved"))
    same(observe(tmp_path / "saved"), expected)
    same(observe(made), expected)
    same(observe(rows), expected)


def test_zstd(tmp_path, rows, expected):
    pa = pytest.importorskip("pyarrow")
    with pa.CompressedOutputStream(str(tmp_path / "a.jsonl.zst"), "zstd") as file:
        file.write("".join(json.dumps(row) + "\n" for row in rows).encode())
    same(observe(tmp_path / "a.jsonl.zst"), expected)


@pytest.mark.parametrize("workers", [1, 2])
def test_several_files_in_one_or_two_processes(tmp_path, rows, expected, workers):
    write_jsonl(tmp_path / "a.jsonl", rows[:1234])
    write_parquet(tmp_path / "b.parquet", rows[1234:])
    same(observe(tmp_path, workers=workers), expected)


def test_files_without_a_source_are_sources(tmp_path):
    write_jsonl(tmp_path / "a.jsonl", [{"length": 3}] * 2)
    write_jsonl(tmp_path / "b.jsonl", [{"length": 5}])
    found = observe(tmp_path)
    assert found.about.sources == ("a", "b")
    assert found.cells.tolist() == [[0, 3, 2], [1, 5, 1]]


def test_tallies_merge_by_adding(rows):
    lengths = np.array([row["length"] for row in rows])
    kinds = np.array([NAMES.index(row["source"]) for row in rows])
    whole, left, right = Tally(), Tally(), Tally()
    for tally, part in ((whole, slice(None)), (left, slice(0, 1111)), (right, slice(1111, None))):
        order = NAMES if tally is not right else NAMES[::-1]
        numbers = np.array([{name: tally.number(name) for name in order}[name] for name in NAMES])
        tally.add(numbers[kinds[part]], lengths[part])
    left.merge(right)
    assert (left.cells() == whole.cells()).all()


def test_one_row_of_ten_million_tokens(tmp_path):
    write_jsonl(tmp_path / "a.jsonl", [{"length": 10_000_000}, {"length": 3}, {"length": 10_000_000}])
    assert observe(tmp_path / "a.jsonl").cells.tolist() == [[0, 3, 1], [0, 10_000_000, 2]]


def test_lengths_of_zero_are_counted(tmp_path):
    write_jsonl(tmp_path / "a.jsonl", [{"length": 0}, {"length": 4}])
    assert observe(tmp_path / "a.jsonl").cells.tolist() == [[0, 0, 1], [0, 4, 1]]


def test_a_csv_of_bare_numbers(tmp_path):
    (tmp_path / "a.csv").write_text("12\n7\n12\n")
    assert observe(tmp_path / "a.csv").cells.tolist() == [[0, 7, 1], [0, 12, 2]]


# -- input_ids ---------------------------------------------------------------------------------------------------------

PADDED = [
    {"input_ids": [5, 6, 7, 1, 1], "attention_mask": [1, 1, 1, 0, 0], "labels": [-100, 6, 7, -100, -100]},
    {"input_ids": [5, 6], "attention_mask": [1, 1], "labels": [5, 6]},
]


@pytest.mark.parametrize("write", [write_jsonl, write_parquet])
def test_padding_inside_rows_is_seen_by_its_mask(tmp_path, write):
    found = observe(write(tmp_path / ("a.jsonl" if write is write_jsonl else "a.parquet"), PADDED))
    assert found.cells.tolist() == [[0, 2, 1], [0, 3, 1]]
    assert found.labelled.tolist() == [[2, 2, 1], [3, 2, 1]]
    assert found.about.padded_rows == 1


@pytest.mark.parametrize("write", [write_jsonl, write_parquet])
def test_padding_inside_rows_is_seen_as_a_run(tmp_path, write, tokenizer):
    ids = [{"input_ids": ids} for ids in ([5, 6, 1, 1, 1], [5, 6, 1], [1, 1, 1], [5], [])]
    found = observe(write(tmp_path / ("a.jsonl" if write is write_jsonl else "a.parquet"), ids), tokenizer=tokenizer)
    assert found.cells.tolist() == [[0, 0, 1], [0, 1, 2], [0, 3, 2]]
    assert found.about.padded_rows == 2


# -- text and chats ----------------------------------------------------------------------------------------------------

CHATS = [{"messages": [{"role": "user", "content": "a b c"}, {"role": "assistant", "content": "d e"}]}] * 3


def test_chats_go_through_the_template(tmp_path, tokenizer):
    found = observe(write_jsonl(tmp_path / "a.jsonl", CHATS), tokenizer=tokenizer)
    assert found.sample.tolist() + found.longest.tolist() == [[0, 8, 9, 9]] * 3
    full = observe(write_jsonl(tmp_path / "a.jsonl", CHATS), tokenizer=tokenizer, full=True)
    assert full.cells.tolist() == [[0, 9, 3]]
    assert full.about.tokenised == 3


def test_sharegpt_is_read_too(tmp_path, tokenizer):
    chats = [{"conversations": [{"from": "human", "value": "a b c"}, {"from": "gpt", "value": "d e"}]}]
    assert observe(write_jsonl(tmp_path / "a.jsonl", chats), tokenizer=tokenizer, full=True).cells.tolist() == [
        [0, 9, 1]
    ]


def test_the_assistants_tokens_are_counted(tmp_path, tokenizer):
    found = observe(write_jsonl(tmp_path / "a.jsonl", CHATS), tokenizer=tokenizer, full=True, loss_mask="assistant")
    assert found.labelled.tolist() == [[9, 2, 3]]
    assert found.about.unmasked_rows == 0


def test_a_template_that_marks_nothing_is_told(tmp_path):
    plain = make_tokenizer(tmp_path / "plain", marks=False)
    found = observe(write_jsonl(tmp_path / "a.jsonl", CHATS), tokenizer=plain, full=True, loss_mask="assistant")
    assert found.about.unmasked_rows == 3
    assert any("all zeros" in note for note in found.about.notes)


def test_completions_bear_the_loss(tmp_path, tokenizer):
    rows = [{"prompt": "a b c ", "completion": "d e"}]
    found = observe(write_jsonl(tmp_path / "a.jsonl", rows), tokenizer=tokenizer, full=True)
    assert found.labelled.tolist() == [[5, 2, 1]]
    whole = observe(write_jsonl(tmp_path / "a.jsonl", rows), tokenizer=tokenizer, full=True, loss_mask="all")
    assert whole.labelled.tolist() == [[5, 5, 1]]


def test_text_lines(tmp_path, tokenizer):
    (tmp_path / "a.txt").write_text("a b c\n\nd\n")
    assert observe(tmp_path / "a.txt", tokenizer=tokenizer, full=True).cells.tolist() == [[0, 1, 1], [0, 3, 1]]


def test_templates_agree_with_transformers(tmp_path, shared):
    transformers = pytest.importorskip("transformers")
    from stepprobe.instruments.dataset import tokenizer as loading

    for name in ("qwen3", "qwen3.5"):
        folder = str(shared / "tokenizers" / name)
        ours, theirs = loading.load(folder), transformers.AutoTokenizer.from_pretrained(folder)
        chats = [CHATS[0]["messages"], [*CHATS[0]["messages"], {"role": "user", "content": "f <|im_end|> ü"}]]
        for chat in chats:
            assert ours.render(chat) == theirs.apply_chat_template(chat, tokenize=False)
            ids = theirs.apply_chat_template(chat, tokenize=True, return_dict=True)["input_ids"]
            assert ours.count([ours.render(chat)], special=False) == [len(ids)]


def test_the_cache_gives_the_same_and_a_full_disk_is_told(tmp_path, tokenizer):
    path = write_jsonl(tmp_path / "a.jsonl", CHATS)
    first = observe(path, tokenizer=tokenizer, full=True, cache=tmp_path / "cache")
    again = observe(path, tokenizer=tokenizer, full=True, cache=tmp_path / "cache")
    assert (first.cells == again.cells).all()
    assert len(list((tmp_path / "cache").iterdir())) == 2
    (tmp_path / "cache" / next(one.name for one in (tmp_path / "cache").iterdir() if one.suffix == ".npz")).write_bytes(
        b"x"
    )
    assert (observe(path, tokenizer=tokenizer, full=True, cache=tmp_path / "cache").cells == first.cells).all()
    if os.path.exists("/dev/full"):
        told = observe(path, tokenizer=tokenizer, full=True, cache=tmp_path / "a.jsonl")
        assert any("could not be cached" in note for note in told.about.notes)


def test_a_sample_is_drawn_in_one_pass_without_bias():
    taken = np.zeros(300)
    for seed in range(400):
        sampler = Sampler(30, 10, seed)
        for number in range(300):
            sampler.offer(0, number % 100, number)
        drawn, longest = sampler.drawn()
        assert sorted(one.chars for one in longest) == [96] + [97] * 3 + [98] * 3 + [99] * 3
        assert len(drawn) == 30
        assert not {one.number for one in drawn} & {one.number for one in longest}
        taken[[one.number for one in drawn]] += 1
    others = taken[np.arange(300) % 100 < 96]
    assert abs(others.mean() - 400 * 30 / 290) < 0.5
    assert others.min() > 15


# -- bad input ---------------------------------------------------------------------------------------------------------


def test_an_empty_file(tmp_path):
    for name in ("a.jsonl", "a.csv", "a.parquet"):
        (tmp_path / name).touch()
        refused(NotObserved, ["is empty"], tmp_path / name)
    (tmp_path / "b.jsonl").write_text("\n\n")
    refused(NotObserved, ["no row"], tmp_path / "b.jsonl")


def test_a_broken_line_is_named_and_skipped_only_if_asked(tmp_path):
    rows = ['{"length": 5}\n'] * 40_000
    (tmp_path / "a.jsonl").write_text("".join([*rows, '{"length": 5\n', *rows[:10], "[3]\n"]))
    refused(NotObserved, ["a.jsonl:40001", "--skip-broken"], tmp_path / "a.jsonl")
    found = observe(tmp_path / "a.jsonl", skip_broken=True)
    assert found.about.rows == 40_010
    assert found.about.skipped_rows == 2
    assert "a.jsonl:40001" in found.about.skipped[0]
    assert "a JSON list where an object is due" in found.about.skipped[1]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.jsonl", '{"length": 5}\n'.encode("utf-16"), ["UTF-16", "iconv"]),
        ("a.jsonl", b'{"text": "\xff\xfe"}\n', ["a.jsonl:1", "UTF-8"]),
        ("a.jsonl.gz", gzip.compress(b'{"length": 5}\n' * 9999)[:-20], ["cut short or damaged"]),
        ("a.jsonl.zst", b"\x28\xb5\x2f\xfd\x00\x00\x00", ["cut short or damaged"]),
        ("a.parquet", b"PAR1" + b"\0" * 100, ["cut short or damaged"]),
        ("a.bin", b"\x7fELF\0\0\0\0", ["convert it"]),
        ("a.jsonl", b'{"length": -5}\n', ["a.jsonl:1", "-5 is not a whole number"]),
        ("a.jsonl", b'{"length": 5.5}\n', ["5.5 is not a whole number"]),
        ("a.jsonl", b'{"length": null}\n', ["the row has no length"]),
        ("a.csv", b"length\n5\nmany\n", ["a.csv:3", "is no number"]),
        ("a.csv", b"length,source\n5,a\n5\n", ["a.csv:3", "1 cells where the header has 2"]),
        ("a.csv", b"5,6\n7,8\n", ["no header"]),
        ("a.json", b'[{"length": 5}, 3]', ["entry 2"]),
        ("a.json", b'[{"length": 5}', ["not a JSON list"]),
    ],
)
def test_what_cannot_be_read_is_told(tmp_path, name, content, words):
    (tmp_path / name).write_bytes(content)
    refused(NotObserved, words, tmp_path / name)


def test_a_parquet_file_cut_short(tmp_path, rows):
    path = write_parquet(tmp_path / "a.parquet", rows)
    path.write_bytes(path.read_bytes()[:-100])
    refused(NotObserved, ["a.parquet is cut short or damaged"], path)


@pytest.mark.parametrize("value", [-3, 2.5, None])
def test_bad_lengths_in_parquet_are_named_by_row(tmp_path, value):
    path = write_parquet(tmp_path / "a.parquet", [{"length": 4}, {"length": value}, {"length": 6}])
    refused(NotObserved, ["row 2", "whole number"], path)
    assert observe(path, skip_broken=True).about.rows == 2


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"text": ["a", "b"]}, ["text is a list, not a string"]),
        ({"text": None}, ["text is null"]),
        ({"messages": "hello"}, ["messages is a str, not a list"]),
        ({"messages": [{"role": "user", "content": None}]}, ["messages[0] has no content"]),
        ({"messages": ["hello"]}, ["messages[0] is a str"]),
        ({"input_ids": "hello"}, ["input_ids is a str"]),
    ],
)
def test_values_of_the_wrong_kind(tmp_path, tokenizer, row, words):
    path = write_jsonl(tmp_path / "a.jsonl", [row])
    refused(NotObserved, ["a.jsonl:1", *words], path, tokenizer=tokenizer)


def test_columns_that_are_not_there(tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", [{"length": 3, "origin": "x"}])
    refused(UsageError, ["no column 'lenght'", "did you mean length?"], path, column="lenght")
    refused(UsageError, ["no column 'orgin'", "did you mean origin?"], path, source="orgin")
    refused(UsageError, ["there are: x", "--column"], write_jsonl(tmp_path / "b.jsonl", [{"x": 1}]))


def test_tokenizers_that_lack_something(tmp_path):
    chats = write_jsonl(tmp_path / "a.jsonl", CHATS)
    refused(UsageError, ["--tokenizer"], chats)
    bare = make_tokenizer(tmp_path / "bare", template=False, pad=False)
    refused(UsageError, ["no chat template", "--template"], chats, tokenizer=bare)
    texts = write_jsonl(tmp_path / "b.jsonl", [{"text": "a b"}])
    found = observe(texts, tokenizer=bare)
    assert any("no pad token" in note for note in found.about.notes)
    refused(UsageError, ["--loss-mask assistant needs chat messages"], texts, tokenizer=bare, loss_mask="assistant")
    refused(UsageError, ["--loss-mask completion needs"], texts, tokenizer=bare, loss_mask="completion")


def test_folders(tmp_path):
    (tmp_path / "empty").mkdir()
    refused(UsageError, ["folder without rows"], tmp_path / "empty")
    refused(UsageError, ["cannot read"], tmp_path / "absent.jsonl")


def test_a_pipe_that_ends_early(tmp_path):
    pipe = tmp_path / "pipe.jsonl"
    os.mkfifo(pipe)

    def feed():
        with open(pipe, "wb") as file:
            file.write(b'{"length": 5}\n{"len')

    feeder = threading.Thread(target=feed)
    feeder.start()
    refused(NotObserved, ["pipe.jsonl:2"], pipe)
    feeder.join()


def test_evidence_from_before_the_ids_were_kept_is_read():
    files = encode(build(About(sources=("all",), rows=3), {"cells": cells_of([5, 6, 7])}))
    about = json.loads(files[ABOUT])
    for name in ("largest_id", "smallest_id", "largest_label", "smallest_label", "tokenizer_top", "digest"):
        about.pop(name)
    old = {**about, "digest": ""}
    digest = hashlib.sha256(files[ARRAYS] + msgspec.json.encode(old)).hexdigest()  # as it was reckoned before
    kept = decode({ARRAYS: files[ARRAYS], ABOUT: json.dumps({**old, "digest": digest}).encode()})
    assert (kept.about.rows, kept.about.largest_id, kept.about.tokenizer_top) == (3, -1, -1)
    forged = json.dumps({**old, "digest": digest, "largest_id": 7}).encode()
    with pytest.raises(EvidenceError):
        decode({ARRAYS: files[ARRAYS], ABOUT: forged})


@pytest.mark.parametrize("shape", ["records", "columns"])
def test_extreme_ids_are_kept_padding_included_and_labels_without_those_that_bear_no_loss(tmp_path, shape):
    rows = [
        {"input_ids": [3, -9, 4], "attention_mask": [1, 1, 1], "labels": [-100, 60, 4]},
        {"input_ids": [2, 50], "attention_mask": [1, 0], "labels": [-1, -100]},
        {"input_ids": [-100], "attention_mask": [0], "labels": [-100]},
    ]
    if shape == "columns":
        pyarrow = pytest.importorskip("pyarrow")
        from pyarrow import parquet

        parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "ids", row_group_size=1)
    else:
        write_jsonl(tmp_path / "ids", rows)
    about = observe(tmp_path / "ids", block_rows=1).about
    assert (about.smallest_id, about.largest_id) == (-100, 50)
    assert (about.smallest_label, about.largest_label) == (-1, 60)


@pytest.mark.parametrize("ids", ["[1, null]", "[0, true]", "[1, 2.5]"])
def test_ids_that_are_none_are_refused(tmp_path, ids):
    (tmp_path / "a.jsonl").write_text(f'{{"input_ids": {ids}}}\n')
    refused(NotObserved, ["a.jsonl:1", "something else among its token ids"], tmp_path / "a.jsonl")
