"""What is kept of the first calls: exact values in few numbers, no text, few calls, nothing from a busy device."""

import json

import pytest

from stepprobe.errors import EvidenceError
from stepprobe.instruments.attach import first_calls
from stepprobe.instruments.attach.batches import Batches
from stepprobe.instruments.attach.first_calls import FirstCalls
from stepprobe.instruments.attach.observer import Observer
from stepprobe.model.first_calls import read_first_calls, values

torch = pytest.importorskip("torch")


class Config:
    model_type = "fake"
    _attn_implementation = "sdpa"

    def to_json_string(self, use_diff):
        assert not use_diff
        return json.dumps({"model_type": "fake", "_name_or_path": "/home/me", "sub": {"id2label": {"0": "me"}, "n": 1}})


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1, dtype=torch.bfloat16))
        self.config = Config()

    def forward(self, input_ids, attention_mask=None, **kwargs):
        return input_ids


@pytest.fixture
def observer(tmp_path):
    return Observer(str(tmp_path), None)


@pytest.fixture
def calls(observer):
    return FirstCalls(observer, Batches(observer, torch), torch)


def written(folder):
    return read_first_calls({path.name: path.read_bytes() for path in folder.glob("*.jsonl")})


def call(calls, *args, model=None, **kwargs):
    calls.begins(model or MODEL, args, kwargs)
    calls.ended()


MODEL = Model()
IDS = torch.full((2, 9), 4242)


def test_values_come_back_exactly(calls, tmp_path):
    for seed in range(3):
        torch.manual_seed(seed)
        mask = torch.randint(0, 2, (3, 7 + seed))
        positions = torch.randint(-3, 9, (2, 3, 7 + seed), dtype=torch.int32)
        call(calls, input_ids=torch.ones(3, 7 + seed, dtype=torch.long), attention_mask=mask, position_ids=positions)
        told = written(tmp_path)[-1].call.arguments
        assert [values(row) for row in told["attention_mask"].rows] == mask.tolist()
        assert [values(row) for row in told["position_ids"].rows] == positions.reshape(6, -1).tolist()


def test_one_token_and_booleans(calls, tmp_path):
    call(calls, input_ids=torch.ones(2, 1, dtype=torch.long), attention_mask=torch.tensor([[True], [False]]))
    told = written(tmp_path)[0].call.arguments["attention_mask"]
    assert (told.kind, told.rows) == ("bool", ((1,), (0,)))


def test_a_plain_batch_takes_few_numbers(calls, tmp_path):
    length = 100_000
    call(calls, input_ids=torch.ones(1, length, dtype=torch.long), position_ids=torch.arange(length)[None])
    assert written(tmp_path)[0].call.arguments["position_ids"].rows == ((0, 1, length - 1),)


def test_no_text_no_paths(calls, tmp_path):
    call(calls, input_ids=IDS, labels=IDS, prompts="4242", decoder_input_ids=IDS)
    text = "".join(path.read_text() for path in tmp_path.glob("*.jsonl"))
    assert "4242" not in text
    assert "/home/me" not in text
    assert "id2label" not in text
    (one,) = written(tmp_path)
    assert json.loads(one.model.config) == {"model_type": "fake", "sub": {"n": 1}}
    assert one.call.arguments["labels"].shape == (2, 9)


def test_what_is_passed_by_position_has_its_name(calls, tmp_path):
    call(calls, IDS, torch.ones(2, 9, dtype=torch.long), use_cache=False)
    told = written(tmp_path)[0].call.arguments
    assert set(told) == {"input_ids", "attention_mask", "use_cache"}
    assert (told["use_cache"].kind, told["use_cache"].value) == ("bool", 0)


def test_what_is_too_irregular_is_cut_and_said(calls, tmp_path, monkeypatch):
    monkeypatch.setattr(first_calls, "MOST_CHANGES", 10)
    call(calls, input_ids=torch.ones(1, 64, dtype=torch.long), attention_mask=torch.tensor([[0, 1] * 32]))
    told = written(tmp_path)[0].call.arguments["attention_mask"]
    assert told.rows is None
    assert "changes of slope" in told.cut


def test_a_square_mask_is_cut_and_said(calls, tmp_path):
    call(calls, input_ids=IDS, attention_mask=torch.ones(2, 1, 9, 9, dtype=torch.bool))
    assert written(tmp_path)[0].call.arguments["attention_mask"].cut == "bool, 4 dimensions"


def test_the_first_call_the_first_in_detail_and_new_shapes_are_kept(calls, observer, tmp_path):
    call(calls, input_ids=IDS)
    call(calls, input_ids=IDS)
    observer.detail = True
    call(calls, input_ids=IDS)
    call(calls, input_ids=IDS)
    assert [one.call.attended for one in written(tmp_path)] == [None, {}]
    for length in (5, 6, 7, 8):
        call(calls, input_ids=torch.ones(2, length, dtype=torch.long))
    kept = written(tmp_path)
    assert [one.call.arguments["input_ids"].shape for one in kept] == [(2, 9), (2, 9), (2, 5), (2, 6)]
    assert [one.number for one in kept] == [1, 2, 3, 4]
    assert calls.left == 0


def test_calls_of_attention_are_counted_by_what_decides_about_the_kernel(calls, observer, tmp_path):
    observer.detail = True
    calls.begins(MODEL, (), {"input_ids": IDS})
    q = torch.ones(1, 2, 9, 4)
    calls.attended((q, q, q), {"is_causal": True})
    calls.attended((q, q, q, torch.ones(9, 9, dtype=torch.bool)), {})
    calls.attended((), {"query": q, "key": q, "value": q, "attn_mask": torch.ones(9, 9, dtype=torch.bool)})
    observer.backward_depth = 1
    calls.attended((q, q, q), {"is_causal": True})  # recomputed: not again
    calls.ended()
    calls.attended((q, q, q), {})  # outside of a kept call
    assert written(tmp_path)[0].call.attended == {"float32 none 1 9x9": 1, "float32 bool 0 9x9": 2}


def test_on_a_device_only_the_early_calls_are_read(calls, observer, tmp_path):
    observer.detail = True
    call(calls, input_ids=IDS.to("meta"))
    call(calls, input_ids=torch.ones(2, 5, dtype=torch.long, device="meta"))
    assert len(written(tmp_path)) == 1


def test_other_ranks_and_other_models_leave_nothing(observer, tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    call(FirstCalls(observer, Batches(observer, torch), torch), input_ids=IDS)
    monkeypatch.setenv("RANK", "0")
    plain = FirstCalls(observer, Batches(observer, torch), torch)
    call(plain, IDS, model=torch.nn.Identity())
    assert list(tmp_path.iterdir()) == []
    assert plain.left == 0


def test_a_fault_of_ours_is_a_note_and_the_job_goes_on(calls, observer, tmp_path, monkeypatch):
    monkeypatch.setattr(Config, "to_json_string", lambda *_, **__: 1 / 0)
    notes = []
    monkeypatch.setattr(observer.journal, "note", notes.append)
    call(calls, input_ids=IDS)
    assert notes
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_line_is_an_error(calls, tmp_path):
    call(calls, input_ids=IDS)
    (path,) = tmp_path.glob("*.jsonl")
    path.write_bytes(path.read_bytes().replace(b"9", b"8"))
    with pytest.raises(EvidenceError, match="damaged"):
        written(tmp_path)


def test_the_autocast_around_the_call_is_kept_unless_a_forward_of_its_own_may_begin_one(calls, tmp_path):
    call(calls, input_ids=torch.ones(1, 3, dtype=torch.long))
    with torch.autocast("cpu", torch.float16):
        call(calls, input_ids=torch.ones(1, 4, dtype=torch.long))
    wrapped = Model()
    wrapped.forward = torch.autocast("cpu", torch.bfloat16)(wrapped.forward)
    call(calls, model=wrapped, input_ids=torch.ones(1, 5, dtype=torch.long))
    assert [one.call.autocast for one in written(tmp_path)] == ["", "float16", None]
