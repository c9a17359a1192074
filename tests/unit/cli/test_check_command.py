"""``stepprobe check`` from the command line: one verdict of masks, loss and batches, and its exit code."""

import json

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from stepprobe import cli
from tests.fakes import attention as fake

VOCABULARY = 151_936


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def say(capfd):
    def say(*words):
        code = cli.main([str(word) for word in words])
        out, err = capfd.readouterr()
        return code, out, err

    return say


@pytest.fixture
def model(tmp_path):
    def model(**changes):
        fields = fake.config("qwen3").to_dict() | {"model_type": "qwen3"} | changes
        (tmp_path / "config.json").write_text(json.dumps(fields))
        return "config.json"

    return model


@pytest.fixture
def data(tmp_path):
    def data(lengths):
        (tmp_path / "lengths.csv").write_text("length\n" + "\n".join(map(str, lengths)) + "\n")
        return "lengths.csv"

    return data


def kinds(told):
    return {finding["kind"] for finding in told["findings"]}


def value(told, name):
    return told["figures"][name]["value"]


def test_nothing_planted_nothing_found(say, model, data):
    code, out, _ = say("check", model(), "--data", data([32] * 20), "--json")
    told = json.loads(out)
    assert (code, told["command"], told["verdict"], kinds(told)) == (0, "check", "ok", set())
    assert all(control["ok"] for control in told["controls"])
    assert {"mask.layers", "padding.waste_share"} <= {control["name"] for control in told["controls"]}


def test_one_object_holds_what_each_probe_found(say, model, data):
    # one row in two is short and one in twenty is cut: by counting, 3 of 400 tokens are past 40
    lengths = [10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 30, 30, 30, 30, 30, 30, 30, 30, 20, 43]
    words = ("--data", data(lengths), "--length", 40, "--batch-size", 2, "--json")
    code, out, _ = say("check", model(), *words)
    told = json.loads(out)
    assert (code, told["verdict"]) == (0, "warn")
    assert kinds(told) == {"mask.lost", "padding.waste", "padding.truncated"}
    assert value(told, "padding.truncated_rows") == 1
    assert value(told, "padding.truncated_share") == pytest.approx(3 / sum(lengths))
    (waste,) = [finding["title"] for finding in told["findings"] if finding["kind"] == "padding.waste"]
    assert waste.startswith(f"{value(told, 'padding.waste_share'):.1%} of the slots"), "as many digits as its cost"
    (lost,) = [finding["remedies"][0]["action"] for finding in told["findings"] if finding["kind"] == "mask.lost"]
    assert lost.startswith("one short row costs the whole batch"), "how many are short in the data was not asked"
    assert any("40 tokens" in table["caption"] for table in told["tables"] if table["name"] == "layers")


def test_the_mask_is_asked_at_the_longest_row_and_without_padding_where_rows_are_even(say, model, data):
    told = json.loads(say("check", model(), "--data", data([24] * 4), "--json")[1])
    (caption,) = [table["caption"] for table in told["tables"] if table["name"] == "layers"]
    assert "8 x 24 tokens, padding none" in caption


def test_a_wrong_mask_ends_with_one_whatever_the_data_is_like(say, model, data):
    code, out, _ = say("check", model(), "--data", data([32] * 4), "--padding", "packed-ones", "--json")
    told = json.loads(out)
    assert (code, told["verdict"]) == (1, "fail")
    assert "mask.document_leak" in kinds(told)


def test_the_bytes_of_the_loss_of_the_largest_batch(say, model, data):
    large = model(vocab_size=VOCABULARY, max_position_embeddings=1024)
    told = json.loads(say("check", large, "--data", data([600] * 4), "--batch-size", 4, "--json")[1])
    assert value(told, "ce.rows") == 4 * 600
    assert kinds(told) == {"loss.bytes"}
    assert value(told, "ce.bytes_peak") >= 4 * 600 * VOCABULARY * 2
    alone = json.loads(say("check", model(vocab_size=VOCABULARY), "--length", 64, "--batch-size", 2, "--json")[1])
    assert value(alone, "ce.rows") == 2 * 64
    assert "loss.bytes" not in kinds(alone)
    assert any("name a dataset with --data" in note for note in alone["notes"])


def test_a_config_without_the_usual_names_still_has_a_vocabulary(say, tmp_path):
    config = {"model_type": "gpt2", "vocab_size": 1000, "n_layer": 2, "n_embd": 32, "n_head": 2, "n_positions": 64}
    (tmp_path / "config.json").write_text(json.dumps(config))
    told = json.loads(say("check", "config.json", "--length", 32, "--json")[1])
    assert value(told, "ce.rows") == 8 * 32
    assert value(told, "ce.bytes_peak") > 0


def test_the_run_folder_verifies_and_is_drawn_again(say, model, data):
    first = say("check", model(), "--data", data([8, 32, 32, 32]), "--length", 32)[1]
    assert say("verify")[0] == 0
    assert say("report")[1].strip() == first.strip()


@pytest.mark.parametrize(
    ("rows", "words", "code", "message"),
    [
        ("text\nhello\n", (), 2, "name a tokenizer with --tokenizer"),
        ("", (), 3, "is empty"),
        ("length\n0\n0\n", (), 3, "not measured"),
        ("length\n5\n", ("--tokenizer", "nowhere"), 2, "nowhere"),
        ("length\n5\n", ("--card", "h10"), 2, "did you mean h100?"),
        (None, (), 2, "cannot read lengths.csv"),
    ],
)
def test_wrong_data_is_told_with_the_next_step(say, model, tmp_path, rows, words, code, message):
    if rows is not None:
        (tmp_path / "lengths.csv").write_text(rows)
    got, out, err = say("check", model(), "--length", 32, "--data", "lengths.csv", *words)
    assert (got, out) == (code, "")
    assert message in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("nowhere/config.json",), "no model at"),
        (("config.json", "--tokenizer", "x"), "name it with --data"),
        (("config.json", "--length", "0"), "not a whole number of at least 1"),
    ],
)
def test_wrong_use_is_told_with_the_next_step(say, model, words, message):
    model()
    code, out, err = say("check", *words)
    assert (code, out) == (2, "")
    assert message in err


GPT2 = {"model_type": "gpt2", "vocab_size": 1000, "n_layer": 2, "n_embd": 32, "n_head": 2, "n_positions": 64}
MAMBA = {"model_type": "mamba", "vocab_size": 1000, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 8}
NESTED = {
    "model_type": "gemma3",
    "text_config": {
        **{"model_type": "gemma3_text", "vocab_size": 500, "hidden_size": 32, "intermediate_size": 64},
        **{"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16},
        **{"max_position_embeddings": 64, "sliding_window": 16},
    },
    "vision_config": {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32},
}


@pytest.fixture
def written(tmp_path):
    def written(config):
        (tmp_path / "config.json").write_text(json.dumps(config))
        return "config.json"

    return written


def found(told, kind):
    return next((finding for finding in told["findings"] if finding["kind"] == kind), None)


def test_rows_beyond_a_table_of_positions_fail(say, written, data):
    code, out, _ = say("check", written(GPT2), "--data", data([60] * 6 + [65] * 2), "--json")
    told = json.loads(out)
    assert (code, told["verdict"]) == (1, "fail")
    title = found(told, "data.beyond_positions")["title"]
    assert "2 rows are longer than the model's 64 positions" in title
    assert "index error" in title
    assert value(told, "positions.rows_beyond") == 2
    assert value(told, "positions.share_beyond") == pytest.approx(0.25)
    assert found(told, "data.beyond_positions")["share"] == pytest.approx(0.25)


@pytest.mark.parametrize("option", ["--length", "--max-length"])
def test_rows_that_are_cut_to_the_positions_are_not_beyond_them(say, written, data, option):
    code, out, _ = say("check", written(GPT2), "--data", data([60] * 6 + [65] * 2), option, 64, "--json")
    told = json.loads(out)
    assert (code, value(told, "positions.rows_beyond")) == (0, 0)
    assert "data.beyond_positions" not in kinds(told)
    assert value(told, "padding.truncated_rows") == 2


@pytest.mark.parametrize("scaling", [{}, {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}])
def test_rows_beyond_rotary_positions_are_a_warning_and_the_configs_number_rules(say, model, data, scaling):
    told = json.loads(
        say("check", model(max_position_embeddings=128, **scaling), "--data", data([129] + [128] * 9), "--json")[1]
    )
    assert told["verdict"] == "warn"
    assert "silently extrapolated" in found(told, "data.beyond_positions")["title"]
    assert value(told, "positions.model") == 128
    assert value(told, "positions.rows_beyond") == 1


def test_a_nested_config_has_the_positions_of_its_text(say, written, data):
    told = json.loads(say("check", written(NESTED), "--data", data([65, 64, 64, 64]), "--json")[1])
    assert (value(told, "positions.model"), value(told, "positions.rows_beyond")) == (64, 1)
    assert "silently extrapolated" in found(told, "data.beyond_positions")["title"]


def test_a_state_space_model_has_no_positions_to_be_beyond(say, written, data):
    told = json.loads(say("check", written(MAMBA), "--data", data([3000, 20]), "--json")[1])
    assert "positions.model" not in told["figures"]
    assert "data.beyond_positions" not in kinds(told)


def ids(tmp_path, *rows):
    (tmp_path / "ids.jsonl").write_text("".join(json.dumps({"input_ids": row}) + "\n" for row in rows))
    return "ids.jsonl"


@pytest.mark.parametrize(("largest", "code"), [(999, 0), (1000, 1)])
def test_ids_beyond_the_vocabulary_fail(say, written, tmp_path, largest, code):
    held = ids(tmp_path, [1, 2, 3], [4, largest, 6])
    got, out, _ = say("check", written(GPT2), "--data", held, "--json")
    told = json.loads(out)
    assert (got, value(told, "vocabulary.largest_id"), value(told, "vocabulary.model")) == (code, largest, 1000)
    assert ("tokenizer.beyond_vocabulary" in kinds(told)) is bool(code)


def test_ids_in_a_parquet_file_and_in_a_nested_config(say, written, tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({"input_ids": [[1, 2], [3, 500]]}), tmp_path / "ids.parquet")
    code, out, _ = say("check", written(NESTED), "--data", "ids.parquet", "--json")
    assert (code, value(json.loads(out), "vocabulary.largest_id")) == (1, 500)


def test_a_label_that_the_loss_refuses_fails_the_check_and_warns_of_the_padding(say, written, tmp_path):
    (tmp_path / "ids.jsonl").write_text(json.dumps({"input_ids": [1, 2, 3], "labels": [-100, -1, 3]}) + "\n")
    for words, expected in ((("check", written(GPT2), "--data"), (1, "fail")), (("padding",), (0, "warn"))):
        code, out, _ = say(*words, "ids.jsonl", "--json")
        told = json.loads(out)
        assert (code, told["verdict"]) == expected
        assert "data.label_beyond_vocabulary" in kinds(told)
        assert value(told, "vocabulary.smallest_label") == -1


def tokenizer(tmp_path, entries, pad=None):
    tokenizers = pytest.importorskip("tokenizers")
    words = {"a": 0, "b": 1, "[UNK]": 2} | {f"w{number}": number for number in range(3, entries)}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    made.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"pad_token": pad} if pad else {}))
    return "tokenizer"


@pytest.mark.parametrize(
    ("entries", "pad", "text", "verdict"),
    [
        (900, None, "a b", None),  # the vocabulary is padded beyond the tokenizer's
        (1000, None, "a w999", None),
        (1003, None, "a b", "warn"),
        (1003, "w1002", "a b", "fail"),
        (1003, None, "a w1001", "fail"),
    ],
)
def test_a_tokenizer_with_more_ids_than_the_model(say, written, tmp_path, entries, pad, text, verdict):
    (tmp_path / "rows.jsonl").write_text(json.dumps({"text": text}) + "\n")
    words = ("--data", "rows.jsonl", "--tokenizer", tokenizer(tmp_path, entries, pad), "--json")
    told = json.loads(say("check", written(GPT2), *words)[1])
    assert ("tokenizer.beyond_vocabulary" in kinds(told)) is (verdict is not None)
    if verdict:
        assert told["verdict"] == verdict
    assert value(told, "vocabulary.tokenizer_top") == entries - 1


def test_the_mask_of_text_is_asked_at_its_longest_row_and_text_is_cut(say, written, tmp_path):
    rows = [{"text": "a " * count} for count in (30, 50, 40)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ("--data", "rows.jsonl", "--tokenizer", tokenizer(tmp_path, 9), "--json")
    told = json.loads(say("check", written(GPT2), *words)[1])
    (caption,) = [table["caption"] for table in told["tables"] if table["name"] == "layers"]
    assert "8 x 50 tokens, padding right (made to ask: one row a quarter short)" in caption
    told = json.loads(say("check", written(GPT2), *words, "--length", 40)[1])
    assert value(told, "padding.truncated_rows") == 1


def test_a_dataset_without_its_option_is_told_where_it_goes(say, model, data):
    code, out, err = say("check", model(), data([5]))
    assert (code, out) == (2, "")
    assert "lengths.csv is one argument too many; a dataset goes behind --data" in err


def test_a_batch_that_no_memory_holds_is_said(say, model):
    code, _, err = say("check", model(), "--batch-size", 10**12)
    assert code == 2
    assert "a batch of 1,000,000,000,000 rows" in err
    assert "fewer rows" in err
