"""``stepprobe check RUN``: what the run recorded of its batches stands in for options that were not given."""

import json

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from stepprobe import cli, store
from stepprobe.analysis.ledger.encoding import encode_process
from stepprobe.analysis.ledger.known import known_run
from stepprobe.analysis.ledger.recorded import recorded
from stepprobe.model.attention import read_capture
from stepprobe.model.evidence import Evidence
from stepprobe.model.first_calls import Argument, CallLine, ModelLine
from stepprobe.model.records import Facts
from tests.fakes import attention as fake


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def ones(size, length):
    return Argument(kind="int64", shape=(size, length), rows=((1, 0, length - 1),) * size)


def model_line(dtype="bfloat16", **given):
    config = fake.config("qwen3").to_dict() | {"model_type": "qwen3", "max_position_embeddings": 4096}
    config.pop("transformers_version", None)
    return ModelLine(
        **{"number": 1, "name": "Qwen3ForCausalLM", "known": True, "config": json.dumps(config)},
        **{"attention": "sdpa", "dtype": dtype, "compiled": False, "checkpointing": False, "card": "", **given},
    )


def call(attended=None, autocast=None, **arguments):
    return CallLine(model=1, training=True, arguments=arguments, attended=attended, autocast=autocast)


def ids(size, length):
    return Argument(kind="int64", shape=(size, length))


RIGHT = Argument(kind="int64", shape=(3, 40), rows=((1, 0, 39), (1, 0, 29, -1, 1, 0, 9), (1, 0, 39)))
LEFT = Argument(kind="int64", shape=(1, 40), rows=((0, 0, 9, 1, 1, 0, 29),))
PACKED = Argument(kind="int64", shape=(1, 40), rows=((0, 1, 19, -19, 1, 1, 19),))


def evidence(facts, *calls, model=None):
    files = {"batches-rank0-pid1.jsonl": encode_process([model or model_line(), *calls])}
    if facts is not None:
        (steps,) = (content for name, content in known_run().files.items() if name.startswith("steps-"))
        files["steps-rank0-pid1.jsonl"] = steps + encode_process([Facts(facts=facts)])
    return Evidence(probe="ledger", command="run", subject="python train.py", environment={}, files=files)


def value(told):
    return told.value if told else None


def test_what_the_trainer_said_goes_before_what_was_seen():
    seen = recorded(
        evidence(
            {"per_device_train_batch_size": 6, "loader_batch_size": 3, "max_length": 64},
            call(input_ids=ids(3, 40), attention_mask=RIGHT),
        )
    )
    assert (value(seen.batch_size), value(seen.max_length)) == ("6", "64")
    assert seen.batch_size.source == "per_device_train_batch_size of the run"
    assert value(seen.padding) == "right"


def test_a_run_without_facts_still_has_batches():
    seen = recorded(evidence(None, call(input_ids=ids(3, 40), attention_mask=RIGHT), call(input_ids=ids(3, 52))))
    assert (value(seen.batch_size), value(seen.length), value(seen.max_length)) == ("3", "52", None)


@pytest.mark.parametrize(
    ("arguments", "padding"),
    [
        ({}, "none"),
        ({"attention_mask": ones(3, 40)}, "ones"),
        ({"attention_mask": RIGHT}, "right"),
        ({"attention_mask": LEFT}, "left"),
        ({"position_ids": PACKED}, "packed"),
        ({"position_ids": PACKED, "attention_mask": ones(1, 40)}, "packed-ones"),
        ({"position_ids": PACKED, "cu_seq_lens_k": Argument(kind="int32", shape=(3,))}, "padding-free"),
        # a batch of 4-D masks tells nothing about padding
        ({"attention_mask": Argument(kind="bool", shape=(3, 1, 40, 40))}, "none"),
    ],
)
def test_the_padding_of_the_kept_batches(arguments, padding):
    assert value(recorded(evidence(None, call(input_ids=ids(3, 40), **arguments))).padding) == padding


def test_a_run_that_kept_nothing_says_nothing():
    seen = recorded(Evidence(probe="ledger", command="run", subject="", environment={}, files={}))
    assert (seen.batch_size, seen.length, seen.max_length, seen.padding) == (None, None, None, None)


SEEN = {"float32 none 1 40x40": 2}


@pytest.mark.parametrize(
    ("facts", "told", "dtype", "source"),
    [
        ({"fp16": True}, {"attended": SEEN, "autocast": "bfloat16"}, "float32", "the attention that the run was seen"),
        ({"fp16": True}, {"attended": {}, "autocast": "bfloat16"}, "bfloat16", "autocast of the run"),
        ({"fp16": True, "bf16": False}, {"autocast": ""}, "float16", "fp16 of the run"),
        ({"bf16": False}, {"autocast": ""}, "float64", "the parameters of the run"),
        ({}, {}, "float64", "the parameters of the run, were there no autocast: that was not recorded"),
    ],
)
def test_the_element_type_is_what_was_seen_then_what_was_asked_for_then_the_parameters(facts, told, dtype, source):
    held = evidence(facts, call(input_ids=ids(3, 40)), call(input_ids=ids(3, 40), **told), model=model_line("float64"))
    seen = recorded(held).dtype
    assert seen.value == dtype
    assert seen.source.startswith(source)


def sealed(place, held):
    folder = store.create(place / "runs", "train", held, ("python", "train.py"))
    store.keep(folder, held.files)
    store.seal(folder, "finished")
    return folder


@pytest.fixture
def run(tmp_path):
    return sealed(
        tmp_path,
        evidence(
            {"per_device_train_batch_size": 3, "max_length": 64}, call(input_ids=ids(3, 40), attention_mask=RIGHT)
        ),
    )


@pytest.mark.parametrize("made", [(), ("--batch-size", 3, "--length", 40)])
def test_a_run_in_float32_is_asked_in_float32_with_its_own_attention(tmp_path, capfd, made):
    model = model_line("float32", attention="eager")
    run = sealed(tmp_path, evidence({}, call(input_ids=ids(3, 40), autocast=""), model=model))
    figures, note, _ = asked(capfd, "check", run, *made)
    assert note.endswith("float32 (the parameters of the run).")
    assert figures["ce.bytes_peak"]["value"] == pytest.approx(3 * 40 * 97 * 16.4)
    (captured,) = sorted((tmp_path / "stepprobe-runs").glob("*"))
    calls = read_capture((captured / "attention.json").read_bytes()).calls
    assert {(one.api, one.dtype) for one in calls} == {("eager", "float32")}
    assert cli.main(["mask", str(run), *map(str, made), "--json"]) == 0
    notes = json.loads(capfd.readouterr()[0])["notes"]
    assert any(one.startswith("Kernels: a100, float32 (the parameters of the run), training") for one in notes)


def notes_of(capfd, *words):
    assert cli.main([*map(str, words), "--json"]) in (0, 1)
    return json.loads(capfd.readouterr()[0])["notes"]


def asked(capfd, *words):
    code = cli.main([*map(str, words), "--json"])
    out, err = capfd.readouterr()
    assert code in (0, 1), err
    told = json.loads(out)
    (note,) = [note for note in told["notes"] if note.startswith("Asked with")]
    (caption,) = [table["caption"] for table in told["tables"] if table["name"] == "layers"]
    return told["figures"], note, caption


def test_the_batch_of_the_run_is_asked_about(run, capfd):
    figures, note, caption = asked(capfd, "check", run)
    longest = recorded(store.load(run)).length.value
    assert "3 x 40 tokens, padding kept" in caption
    assert figures["ce.rows"]["value"] == 3 * int(longest)
    assert "batch size 3 (per_device_train_batch_size of the run)" in note
    assert "padding right (the batch that the run kept)" in note


def test_the_batch_that_the_masks_were_asked_of_is_named_where_the_run_made_longer_ones(run, capfd):
    said = "The masks were asked of one batch that the run kept: 3 x 40 tokens."
    assert said in notes_of(capfd, "check", run)
    assert not any("that the run kept:" in note for note in notes_of(capfd, "check", run, "--length", 24))


def test_the_dataset_is_cut_and_batched_as_the_run_does(run, capfd, tmp_path):
    (tmp_path / "lengths.csv").write_text("length\n" + "50\n" * 9 + "100\n")
    figures, note, _ = asked(capfd, "check", run, "--data", "lengths.csv")
    assert figures["padding.truncated_rows"]["value"] == 1
    assert figures["padding.worst_batch"]["value"] == 3 * 64
    assert "rows cut to 64 tokens (max_length of the run)" in note


def test_an_option_goes_before_the_run(run, capfd):
    figures, note, caption = asked(capfd, "check", run, "--batch-size", 2, "--length", 24, "--padding", "left")
    assert "2 x 24 tokens, padding left" in caption
    assert figures["ce.rows"]["value"] == 2 * 24
    assert note.startswith(
        "Asked with batch size 2 (--batch-size), rows of 24 tokens (--length), padding left (--padding), bfloat16 ("
    )


def test_without_a_run_the_defaults_are_named(capfd, tmp_path):
    fields = fake.config("qwen3").to_dict() | {"model_type": "qwen3", "max_position_embeddings": 4096}
    (tmp_path / "config.json").write_text(json.dumps(fields))
    _, note, _ = asked(capfd, "check", "config.json", "--length", 16)
    assert "batch size 8 (the default, set it: --batch-size)" in note
    assert note.endswith("bfloat16 (assumed).")
    (tmp_path / "lengths.csv").write_text("length\n" + "50\n60\n" * 12)
    figures, note, _ = asked(capfd, "check", "config.json", "--data", "lengths.csv")
    assert cli.main(["padding", "lengths.csv", "--json"]) == 0
    alone = json.loads(capfd.readouterr()[0])["figures"]
    shared = alone.keys() & figures.keys()
    assert "padding.worst_batch" in shared
    assert {name: figures[name] for name in shared} == {name: alone[name] for name in shared}
    assert "rows as long as they are" in note
    assert "padding right (from the lengths of the rows)" in note
