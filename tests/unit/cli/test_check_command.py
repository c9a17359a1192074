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
    assert any("40 tokens" in table["caption"] for table in told["tables"] if table["name"] == "layers")


def test_the_mask_is_asked_at_the_longest_row_and_without_padding_where_rows_are_even(say, model, data):
    told = json.loads(say("check", model(), "--data", data([24] * 4), "--json")[1])
    (caption,) = [table["caption"] for table in told["tables"] if table["name"] == "layers"]
    assert "2 x 24 tokens, padding none" in caption


def test_a_wrong_mask_ends_with_one_whatever_the_data_is_like(say, model, data):
    code, out, _ = say("check", model(), "--data", data([32] * 4), "--padding", "packed-ones", "--json")
    told = json.loads(out)
    assert (code, told["verdict"]) == (1, "fail")
    assert "mask.document_leak" in kinds(told)


def test_the_bytes_of_the_loss_of_the_largest_batch(say, model, data):
    told = json.loads(
        say("check", model(vocab_size=VOCABULARY), "--data", data([600] * 4), "--batch-size", 4, "--json")[1]
    )
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
    assert value(told, "ce.rows") == 64
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
