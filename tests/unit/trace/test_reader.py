"""Every layout, number format and kind of damage gives the same columns, or says what it could not use."""

import gzip
import hashlib
import json

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepprobe.analysis.trace.known import kineto_text, known_trace, row
from stepprobe.errors import EvidenceError, NotObserved, UsageError
from stepprobe.instruments.trace.reader import read, read_bytes
from stepprobe.model.trace import ARRAYS, OP, decode_columns, encode_columns
from tests.fakes.traces import training


def same(one, other):
    assert one.header.names == other.header.names
    assert one.header.threads == other.header.threads
    assert one.header.origin_ns == other.header.origin_ns
    for name in ARRAYS:
        assert np.array_equal(getattr(one, name), getattr(other, name)), name


def test_a_streamed_trace_and_a_whole_one_give_the_same_columns():
    built = training(ns=7)
    streamed, whole = read_bytes("a.json", built.text()), read_bytes("a.json", built.compact())
    assert (streamed.header.layout, whole.header.layout) == ("streamed", "whole")
    assert streamed.header.rows == len(built.events)
    same(streamed, whole)


@pytest.mark.parametrize("indent", [1, 2, 4, "\t"])
def test_any_indented_export_is_streamed(indent):
    built = training()
    text = json.dumps({"traceEvents": json.loads(built.text())["traceEvents"], "after": 1}, indent=indent).encode()
    found = read_bytes("a.json", text, chunk_bytes=999)
    assert found.header.layout == "streamed"
    same(found, read_bytes("a.json", built.text()))


def test_a_byte_order_mark_is_no_obstacle():
    text = training().text()
    same(read_bytes("a.json", b"\xef\xbb\xbf" + text), read_bytes("a.json", text))


def test_a_bare_list_is_a_trace():
    built = training()
    events = json.loads(built.text())["traceEvents"]
    same(read_bytes("a.json", json.dumps(events).encode()), read_bytes("a.json", built.text()))
    same(read_bytes("a.json", json.dumps(events, indent=1).encode(), 500), read_bytes("a.json", built.text()))


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 3000))
def test_how_a_file_is_split_is_irrelevant(size):
    text = training(2, ns=3).text()
    same(read_bytes("a.json", text, size), read_bytes("a.json", text))


@settings(max_examples=40, deadline=None)
@given(st.randoms(use_true_random=False))
def test_the_order_of_events_is_irrelevant(random):
    built = training(2)
    order = list(range(len(built.events)))
    random.shuffle(order)
    same(read_bytes("a.json", built.text(order)), read_bytes("a.json", built.text()))


def test_compressed_traces_are_read_by_their_content(tmp_path):
    text = training().text()
    path = tmp_path / "trace.json"  # no .gz in the name
    path.write_bytes(gzip.compress(text))
    found = read(path)
    same(found, read_bytes("a.json", text))
    assert found.header.source_bytes == path.stat().st_size
    assert found.header.text_bytes == len(text)


def test_zstd_is_read_or_the_missing_package_is_named():
    text = training().text()
    arrow = pytest.importorskip("pyarrow")
    packed = arrow.compress(text, codec="zstd", asbytes=True)
    same(read_bytes("a.json.zst", packed), read_bytes("a.json", text))


def test_no_package_for_zstd_is_wrong_use(monkeypatch):
    import importlib

    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(UsageError, match="zstandard"):
        read_bytes("a.json.zst", b"\x28\xb5\x2f\xfd1234")


def test_large_float_time_stamps_keep_their_nanoseconds():
    events = [
        '{"ph": "X", "cat": "cpu_op", "name": "a", "pid": 1, "tid": 1, "ts": 1712195495519689.047, "dur": 63.813}',
        '{"ph": "X", "cat": "cpu_op", "name": "b", "pid": 1, "tid": 1, "ts": 1712195495519695.812, "dur": 0.001}',
    ]
    for separator in (",\n  ", ","):
        found = read_bytes("a.json", ('{"traceEvents": [\n  ' + separator.join(events) + "\n]}").encode())
        assert found.header.origin_ns == 1_712_195_495_519_689_047
        assert found.start.tolist() == [0, 6765]
        assert found.duration.tolist() == [63813, 1]
        assert found.header.resolution_ns == 1


def test_nanosecond_integers_are_told_from_microseconds():
    rows = [{"ph": "X", "cat": "cpu_op", "name": "a", "ts": 1_712_195_495_519_689_047 + k, "dur": 5} for k in range(3)]
    found = read_bytes("a.json", json.dumps({"traceEvents": rows}).encode())
    assert found.header.unit == "ns"
    assert found.start.tolist() == [0, 1, 2]
    assert found.duration.tolist() == [5, 5, 5]


def test_numbers_as_text_and_odd_types_are_read():
    rows = [
        {"ph": "X", "cat": "cpu_op", "name": 12, "pid": "1", "tid": "x", "ts": "5.25", "dur": "1"},
        {"ph": "X", "cat": "cpu_op", "name": None, "pid": 1, "tid": None, "ts": 6, "dur": 1.0, "args": []},
        {"ph": "X", "cat": "kernel", "name": "k", "ts": 7, "dur": 1, "args": {"correlation": "33"}},
        {"ph": "X", "cat": 7, "name": "no category", "ts": 7, "dur": 1},
    ]
    found = read_bytes("a.json", kineto_text(rows))
    assert found.start.tolist() == [0, 750, 1750]
    assert found.correlation.tolist() == [-1, -1, 33]
    assert sorted(found.header.names) == ["", "12", "k"]
    assert [loss.what[:12] for loss in found.header.losses] == ["events that "]


def test_rows_without_time_are_counted_not_zero():
    rows = [row("cpu_op", "a", 0, 1), {"ph": "X", "cat": "kernel", "name": "k", "ts": None, "dur": 4}]
    rows.append({"ph": "X", "cat": "kernel", "name": "k", "ts": 4})
    rows.append({"ph": "X", "cat": "kernel", "name": "k", "ts": "later", "dur": 1})
    found = read_bytes("a.json", kineto_text(rows))
    assert found.kind.tolist() == [OP]
    assert [(loss.count, loss.what) for loss in found.header.losses] == [(3, "rows without a usable time or duration")]


@pytest.mark.parametrize("cut", [0.2, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("compact", [False, True])
def test_a_file_that_was_cut_gives_its_whole_events(cut, compact):
    built = training()
    text = built.compact() if compact else built.text()
    found = read_bytes("a.json", text[: int(len(text) * cut)], chunk_bytes=700)
    assert 0 < found.header.rows <= len(built.events)
    whole = read_bytes("a.json", text)
    starts = (found.start + found.header.origin_ns).tolist()
    assert set(starts) <= set((whole.start + whole.header.origin_ns).tolist())
    assert found.header.losses[0].what.startswith("bytes at the end") or found.header.rows == len(built.events)


def test_a_cut_gzip_says_so():
    packed = training(20).packed()
    found = read_bytes("a.json.gz", packed[: len(packed) // 2])
    assert found.header.rows > 0
    assert "breaks off" in found.header.losses[0].what


@pytest.mark.parametrize("character", [b"\x01", b"\n", b"\t", b"\xff", b"\\q"])
def test_one_bad_character_costs_at_most_its_event(character):
    built = training()
    text = built.text().replace(b"aten::addmm", b"aten::" + character + b"mm", 1)
    found = read_bytes("a.json", text)
    assert found.header.rows >= len(built.events) - 1
    assert found.header.losses, "what was mended or lost must be told"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b"  \n", "is empty"),
        (b"not json", "not JSON"),
        (b'{"a": 1}', "traceEvents"),
        (b'{"traceEvents": []}', "not one whole event"),
        (b"[]", "not one whole event"),
        (b'{"traceEvents": [{"ph": "X", "cat"', "not one whole event"),
        (gzip.compress(b"", mtime=0), "is empty"),
        (b"\x1f\x8bnonsense", "empty"),
    ],
)
def test_what_is_no_trace_is_refused_with_a_next_step(content, said):
    with pytest.raises(NotObserved, match=said):
        read_bytes("a.json", content)


def test_rank_from_the_file_or_its_name():
    bare = kineto_text([row("cpu_op", "a", 0, 1)])
    assert read_bytes("worker_rank-7.json", bare).header.rank == 7
    assert read_bytes("a.json", bare).header.rank is None
    assert read_bytes("rank7.json", training().text()).header.rank == 0


def test_columns_survive_the_file_and_notice_damage():
    columns = read_bytes("a.json", known_trace())
    content = b"".join(encode_columns(columns))
    same(decode_columns("a.columns", content), columns)
    for place in (0, 9, len(content) // 2, len(content) - 80, len(content) - 1):
        damaged = content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]
        with pytest.raises(EvidenceError):
            decode_columns("a.columns", damaged)


@pytest.mark.parametrize(
    ("number", "kind"), [(7, "<i1"), (127, "<i1"), (128, "<i2"), (2**15, "<i4"), (2**31 - 1, "<i4"), (2**31, "<i8")]
)
def test_a_column_is_as_wide_as_its_values_need(number, kind):
    rows = [row("cpu_op", "a", 0, 1), row("kernel", "k", 5, 1, correlation=number), row("cpu_op", "b", 9, 1)]
    for chunk in (1, 1 << 20):
        found = read_bytes("a.json", kineto_text(rows), chunk)
        assert found.correlation.tolist() == [-1, number, -1]
        assert found.correlation.dtype == np.dtype(kind)
        again = decode_columns("a", b"".join(encode_columns(found)))
        same(again, found)
        assert all(getattr(again, name).dtype == getattr(found, name).dtype for name in ARRAYS)
        assert all(getattr(again, name).flags.aligned for name in ARRAYS)


@pytest.mark.parametrize("length", [2**31 // 1000, 2**31 // 1000 + 1, 10**9, -(10**9)])
def test_long_durations_are_kept(length):
    rows = [row("cpu_op", "a", 0, length), row("cpu_op", "b", 1, 6)]
    assert read_bytes("a.json", kineto_text(rows)).duration.tolist() == [length * 1000, 5000]


def test_columns_of_the_first_schema_are_read_still():
    columns = read_bytes("a.json", known_trace())
    wide = dict.fromkeys(ARRAYS, "<i8") | {"name": "<i4", "thread": "<i4", "kind": "<i1"}
    header = json.loads(msgspec.json.encode(columns.header))
    header = json.dumps({name: value for name, value in header.items() if name != "types"} | {"schema": 1}).encode()
    arrays = b"".join(getattr(columns, name).astype(kind).tobytes() for name, kind in wide.items())
    content = b"steptrc1" + arrays + header + b"%08x" % len(header)
    same(decode_columns("a", content + hashlib.sha256(content).hexdigest().encode()), columns)


def test_a_missing_file_is_wrong_use(tmp_path):
    with pytest.raises(UsageError, match="name a trace file"):
        read(tmp_path / "absent.json")
