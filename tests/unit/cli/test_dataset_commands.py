"""``padding`` and ``bucket`` from the command line: figures, exit codes, run folders, messages."""

import io
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from stepprobe.analysis.ledger.encoding import encode_process
from stepprobe.cli import main
from stepprobe.cli._dataset import config_file
from stepprobe.errors import UsageError
from stepprobe.model.first_calls import CallLine, ModelLine
from tests.fakes.lengths import chat_mix

PADDING = {
    "padding.waste_share",
    "padding.tokens_total",
    "padding.truncated_share",
    "lengths.rows",
    "lengths.rows_tokenised",
}
BUCKET = {
    *("bucket.best_k", "bucket.waste_share.k1", "bucket.waste_share.k50", "bucket.effective_batch.k8"),
    *("packing.bins", "packing.bins_bound", "packing.waste_share"),
}
CE = {"ce.bytes_peak", "ce.chunk_rows"}


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    lengths, kinds = chat_mix(8000)
    rows = (json.dumps({"length": int(a), "source": f"s{b}"}) + "\n" for a, b in zip(lengths, kinds, strict=True))
    (tmp_path / "a.jsonl").write_text("".join(rows))
    config = {"hidden_size": 1024, "num_attention_heads": 16, "num_hidden_layers": 28, "vocab_size": 151936}
    (tmp_path / "config.json").write_text(json.dumps(config))
    return tmp_path


def asked(capsys, *words, code=0):
    assert main([*words, "--json"]) == code
    return json.loads(capsys.readouterr().out)


def test_the_figures_have_their_names(place, capsys):
    found = asked(capsys, "padding", "a.jsonl", "--max-length", "2048", "--model", "config.json")
    assert set(found["figures"]) >= PADDING | CE
    assert found["command"] == "padding"
    assert found["verdict"] == "ok"
    assert found["figures"]["padding.truncated_share"]["value"] > 0.05
    assert found["figures"]["ce.bytes_peak"]["value"] == 8 * 2048 * 151936 * 14.4
    caption = next(one["caption"] for one in found["tables"] if one["name"] == "loss")
    assert "16,384 rows × 151,936 logits; unfused, the peak takes 14.4 bytes a logit (14 to 14.6)" in caption
    found = asked(capsys, "bucket", "a.jsonl", "--max-length", "2048", "--model", "config.json")
    assert set(found["figures"]) >= BUCKET
    assert "FLOPs" in found["tables"][0]["caption"]
    assert found["figures"]["packing.bins"]["value"] >= found["figures"]["packing.bins_bound"]["value"]


@pytest.mark.parametrize("command", ["padding", "bucket"])
def test_the_run_folder_verifies_and_reports_again(place, capsys, command):
    first = asked(capsys, command, "a.jsonl")
    folder = Path(first["run"])
    assert {"lengths.npz", "lengths.json", "manifest.json", "report.json", "report.html"} <= {
        one.name for one in folder.iterdir()
    }
    assert main(["verify", str(folder)]) == 0
    capsys.readouterr()
    again = asked(capsys, "report", str(folder))
    assert again["figures"] == first["figures"]
    page = (folder / "report.html").read_text()
    assert "<svg" in page
    (folder / "lengths.npz").write_bytes(b"x" + (folder / "lengths.npz").read_bytes()[1:])
    assert main(["verify", str(folder)]) == 4


def test_text_says_what_matters(place, capsys):
    assert main(["padding", "a.jsonl", "--batch-size", "4"]) == 0
    shown = capsys.readouterr()
    assert "of each batch is padding in random order (batch size 4)" in shown.out
    assert "kept, with report.html, in stepprobe-runs/" in shown.err
    assert main(["bucket", "a.jsonl", "--world-size", "8"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    for words in (
        "Ways of batching, fastest first",
        "The line to set",
        "group by length (as shipped",
        "such a bucket cannot gain",
    ):
        assert words in shown


def test_standard_input(place, capsys, monkeypatch):
    content = (place / "a.jsonl").read_bytes()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(content))))
    piped = asked(capsys, "padding", "-")
    assert piped["figures"] == asked(capsys, "padding", "a.jsonl")["figures"]


def test_a_message_of_an_allocation_needs_no_data(place, capsys):
    found = asked(capsys, "padding", "--oom", "Tried to allocate 6.54 GiB", "--model", "config.json")
    assert found["figures"]["ce.oom_rows_fp32"]["value"] == pytest.approx(6.54 * 2**30 / 151936 / 4)
    assert "11,555 rows of fp32 logits" in found["headline"]
    assert main(["padding", "--oom", "Tried to allocate 6.54 GiB"]) == 2
    assert "--model" in capsys.readouterr().err


def test_a_fit_is_used_and_checked(place, capsys):
    (place / "fit.json").write_text('{"a": 30, "b": 0.02, "c": 1e-6}')
    assert "a measured fit" in asked(capsys, "bucket", "a.jsonl", "--fit", "fit.json")["tables"][0]["caption"]


@pytest.mark.parametrize("command", ["bucket", "padding"])
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"a": 30}', "must hold a, b and c"),
        ('{"a": NaN, "b": 1, "c": 0}', "no finite number"),
        ('{"length": 3}\n{"length": 4}\n', "is no JSON"),
    ],
)
def test_a_file_that_is_no_fit_is_refused_before_anything_is_read(place, capsys, command, text, said):
    (place / "fit.json").write_text(text)
    assert main([command, "a.jsonl", "--fit", "fit.json"]) == 2
    told = capsys.readouterr().err
    assert said in told
    assert "--fit fit.json" in told
    assert "run folder of a profile" in told
    assert not (place / "stepprobe-runs").exists()


def test_a_recipe_is_written(place, capsys):
    found = asked(capsys, "bucket", "a.jsonl", "--recipe", "recipe.npy")
    moves = np.load(place / "recipe.npy", allow_pickle=False)
    assert (moves[:, 2] * moves[:, 3]).sum() == 8000
    assert moves[:, 1].max() < found["figures"]["packing.bins"]["value"]


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["padding"], 2, "name a dataset"),
        (["padding", "absent.jsonl"], 2, "cannot read absent.jsonl"),
        (["padding", "empty.jsonl"], 3, "is empty"),
        (["padding", "zero.jsonl"], 3, "no row holds a token"),
        (["padding", "broken.jsonl"], 3, "broken.jsonl:2"),
        (["padding", "text.jsonl"], 2, "--tokenizer"),
        (["padding", "a.jsonl", "--tokenizer", "nowhere"], 2, "no tokenizer at 'nowhere'"),
        (["padding", "a.jsonl", "--model", "nowhere"], 2, "no model at 'nowhere'"),
        (["padding", "a.jsonl", "--source", "sorce"], 2, "did you mean source?"),
        (["padding", "a.jsonl", "--batch-size", "0"], 2, "not a whole number"),
        (["bucket", "a.jsonl", "--batchsize", "4"], 2, "did you mean --batch-size?"),
    ],
)
def test_what_goes_wrong_is_told_with_the_next_step(place, capsys, words, code, told):
    (place / "empty.jsonl").touch()
    (place / "zero.jsonl").write_text('{"length": 0}\n')
    (place / "broken.jsonl").write_text('{"length": 3}\n{"leng\n')
    (place / "text.jsonl").write_text('{"text": "a b"}\n')
    assert main(words) == code
    shown = capsys.readouterr()
    assert told in shown.err
    assert shown.out == ""


def test_broken_rows_are_left_out_when_asked_and_told(place, capsys):
    (place / "broken.jsonl").write_text('{"length": 3}\n{"leng\n{"length": 4}\n')
    found = asked(capsys, "padding", "broken.jsonl", "--skip-broken")
    assert found["verdict"] == "warn"
    assert any("1 broken rows were left out" in note and "broken.jsonl:2" in note for note in found["notes"])


def test_options_may_stand_in_the_config(place, capsys):
    (place / "stepprobe.toml").write_text('[padding]\nbatch-size = 2\nmodel = "config.json"\n')
    found = asked(capsys, "padding", "a.jsonl")
    assert found["figures"]["ce.rows"]["value"] == 2 * found["figures"]["lengths.max"]["value"]


def test_the_config_of_a_run_folder_is_that_of_its_model(tmp_path):
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(UsageError, match=r"kept no config of its model; name a folder with a config\.json"):
        config_file(str(tmp_path))
    usual = {"known": True, "attention": "sdpa", "dtype": "float32", "compiled": False, "checkpointing": False}
    model = ModelLine(number=0, name="Model", config='{"vocab_size": 7}', card="cpu", **usual)
    call = CallLine(model=0, training=True, arguments={}, attended=None)
    (tmp_path / "batches-rank0-pid1.jsonl").write_bytes(encode_process([model, call]))
    assert json.loads(config_file(str(tmp_path))) == {"vocab_size": 7}


def own_rows(found, name):
    (table,) = [table for table in found["tables"] if table["name"] == name]
    return [row for row in table["rows"] if row[-1]], table


def test_the_tables_hold_the_users_own_batch_marked(place, capsys):
    words = ("padding", "a.jsonl", "--batch-size", "6", "--max-length", "3000", "--model", "config.json")
    found = asked(capsys, *words)
    figures = {name: held["value"] for name, held in found["figures"].items()}
    ((limit, lost, cut, waste, worst, loss, mark),), _ = own_rows(found, "limits")
    assert (limit, worst, mark) == (3000, 6 * 3000, "← yours")
    assert (lost, waste) == pytest.approx((figures["padding.truncated_share"], figures["padding.waste_share"]))
    assert cut == pytest.approx(figures["padding.truncated_rows"] / 8000)
    assert loss == pytest.approx(figures["ce.bytes_peak"])
    ((size, *rest),), table = own_rows(found, "batch_sizes")
    assert (size, rest) == (6, [waste, worst, loss, "← yours"])
    assert "rows cut to 3,000 tokens" in table["title"]
    assert 6 in [row[0] for row in table["rows"]]


def test_a_batch_that_was_not_asked_for_is_marked_as_the_default(place, capsys):
    found = asked(capsys, "padding", "a.jsonl")
    ((size, waste, _, mark),), _ = own_rows(found, "batch_sizes")  # nobody knows the loss: no column for it
    assert (size, mark) == (8, "← default")
    assert waste == pytest.approx(found["figures"]["padding.waste_share"]["value"])
    ((limit, *_, mark),), _ = own_rows(found, "limits")
    assert (limit, mark) == (found["figures"]["lengths.max"]["value"], "← uncut")


@pytest.mark.parametrize("command", ["padding", "bucket", "check"])
@pytest.mark.parametrize(
    ("content", "words", "code", "message"),
    [
        ('{"length": 12}\n{"other": 1}\n', (), 3, "rows:2: the row has no length"),
        ('{"length": 99999999999999}\n', (), 3, "is no length of a row: it is 1,099,511,627,776 tokens or more"),
        (
            '{\n  "length": 12\n}\n',
            (),
            3,
            "a JSON object that goes over several lines; a dataset has one object",
        ),
        ("only a header\n", (), 3, "the first line of a CSV is its header"),
        (b'{"text": "caf\xe9"}\n', (), 3, "iconv -f LATIN1 -t UTF-8 rows"),
        (b"length\n12\ncaf\xe9\n", (), 3, "iconv -f LATIN1 -t UTF-8 rows"),
        ('{"length": 20}\n{"length": "x"}\n', ("--skip-broken",), 0, ""),
        ('{"text": "a"}\n', ("--tokenizer", "folder"), 2, "folder is a folder without tokenizer.json; name"),
        ('{"length": 12}\n', ("--batch-size", "0"), 2, "not a whole number of at least 1"),
    ],
)
def test_a_bad_dataset_is_told_with_the_next_step(place, capsys, command, content, words, code, message):
    (place / "folder").mkdir()
    (place / "rows").write_bytes(content if isinstance(content, bytes) else content.encode())
    if command == "check":
        pytest.importorskip("transformers")
        gpt2 = {"model_type": "gpt2", "vocab_size": 1000, "n_layer": 1, "n_embd": 8, "n_head": 1, "n_positions": 64}
        (place / "config.json").write_text(json.dumps(gpt2))
    named = ("check", "config.json", "--data", "rows") if command == "check" else (command, "rows")
    assert main([*named, *words]) == code
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("files", "words", "message"),
    [
        ((), ("--model", "folder"), "folder is a folder without config.json; name a model's folder"),
        (("adapter_config.json",), ("--model", "folder"), "without config.json but an adapter; name its base model"),
        (("config.json",), ("--model", "folder"), "'hidden_size' is missing or no number; name the config.json of a"),
        ((), ("--model", "owner/nowhere"), "hf download owner/nowhere config.json"),
        ((), ("--tokenizer", "tok", "--template", "nope"), "name another file with --template"),
    ],
)
def test_a_bad_model_or_template_is_told_with_the_next_step(place, capsys, files, words, message):
    tokenizers = pytest.importorskip("tokenizers")
    tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0}, unk_token="a")).save(str(place / "tokenizer.json"))
    (place / "tok").mkdir()
    (place / "tokenizer.json").rename(place / "tok" / "tokenizer.json")
    (place / "folder").mkdir()
    for name in files:
        (place / "folder" / name).write_text("{}")
    assert main(["padding", "a.jsonl", *words]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("terminal", [False, True])
def test_nothing_on_standard_input(place, capsys, monkeypatch, terminal):
    class Nothing(io.TextIOWrapper):
        def isatty(self):
            return terminal

    monkeypatch.setattr(sys, "stdin", Nothing(io.BufferedReader(io.BytesIO())))
    assert main(["padding", "-"]) == (2 if terminal else 3)
    assert "send rows to it (… < rows.jsonl), or name a file" in capsys.readouterr().err


def test_a_batch_holds_no_more_rows_than_there_are(place, capsys):
    (place / "one.jsonl").write_text('{"length": 12}\n')
    found = asked(capsys, "padding", "one.jsonl", "--batch-size", "64", "--model", "config.json")
    assert found["figures"]["padding.worst_batch"]["value"] == 12
    assert found["figures"]["ce.rows"]["value"] == 12
    for name in ("limits", "batch_sizes"):
        ((*_, worst, _, _),), _ = own_rows(found, name)
        assert worst == 12
    assert "1 row, 12 tokens" in found["headline"]
    found = asked(capsys, "bucket", "one.jsonl", "--batch-size", "64")
    (ways,) = [table for table in found["tables"] if table["name"] == "strategies"]
    place_of = [column["title"] for column in ways["columns"]].index("worst batch")
    assert {row[0]: row[place_of] for row in ways["rows"]}["random order"] == 12


def test_a_bucket_without_a_token_says_what_it_left_out(place, capsys):
    (place / "none.jsonl").write_text('{"length": 0}\n{"length": "x"}\n')
    assert main(["bucket", "none.jsonl", "--skip-broken", "--json"]) == 3
    found = json.loads(capsys.readouterr().out)
    assert "no row holds a token" in found["headline"]
    assert any("1 broken rows were left out" in note for note in found["notes"])


def test_standard_error_that_is_closed_costs_nothing(place, monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)
    assert main(["padding", "a.jsonl"]) == 0
