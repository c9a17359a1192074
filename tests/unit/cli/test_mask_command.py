"""``stepprobe mask`` and ``check`` from the command line: reports, run folders, exit codes, bad input."""

import json
import sys

import pytest

pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from stepprobe import cli  # noqa: E402
from stepprobe.instruments.attention import models  # noqa: E402
from tests.fakes import attention as fake  # noqa: E402


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def say(capfd):
    def say(*words):
        code = cli.main([str(word) for word in words])
        out, err = capfd.readouterr()
        return code, out, err

    return say


@pytest.fixture
def model(tmp_path):
    """A folder that holds a config."""

    def model(kind="qwen3", **changes):
        fields = fake.config(kind).to_dict() | {"model_type": kind} | changes
        folder = tmp_path / f"{kind}-tiny"
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(json.dumps(fields))
        return folder

    return model


def test_one_object_of_json_with_the_figures(say, model):
    code, out, _ = say("mask", model(), "--length", 32, "--json")
    assert code == 0
    told = json.loads(out)
    assert (told["command"], told["verdict"]) == ("mask", "ok")
    names = ("layers", "layers_fast", "layers_correct", "bytes", "flops_needed_share", "leak_pairs", "fallback_layers")
    assert {f"mask.{name}" for name in names} <= set(told["figures"])
    layers = told["figures"]["mask.layers"]
    assert (layers["value"], layers["unit"], layers["low"], layers["high"], layers["n"]) == (2, "layers", 2, 2, 2)
    assert all(control["ok"] for control in told["controls"])
    assert {"twin.forced_bidirectional", "twin.forced_causal"} <= {control["name"] for control in told["controls"]}


def test_a_wrong_mask_ends_with_one(say, model):
    code, out, _ = say("mask", model(), "--length", 32, "--padding", "packed", "--use-cache")
    assert code == 1
    assert "see other documents of the row" in out
    assert "pass use_cache=False" in out


def test_the_run_folder_verifies_and_is_drawn_again(say, model):
    first = say("mask", model("mistral"), "--length", 64)[1]
    assert "causal+window(6)" in first
    code, out, _ = say("verify")
    assert (code, "have the hash they were sealed with" in out) == (0, True)
    assert say("report")[1].strip() == first.strip()
    code, page, _ = say("report", "--format", "html")
    assert code == 0
    assert "<svg" in page


def test_a_run_that_was_not_measured_says_why_again(say, model):
    code, _, err = say("mask", model("qwen3_5_text"), "--length", 32, "--padding", "padding-free")
    assert code == 3
    assert "the twin was not run" in err
    code, _, again = say("report")
    assert code == 3
    assert "the twin was not run" in again


def test_check_is_the_same_verdict_under_its_own_name(say, model):
    code, out, _ = say("check", model(), "--length", 32, "--padding", "packed-ones", "--json")
    assert code == 1
    assert json.loads(out)["command"] == "check"


def test_the_card_decides_on_fast_layers(say, model):
    folder = model()
    fast = {
        card: json.loads(say("mask", folder, "--length", 32, "--card", card, "--json")[1])["figures"][
            "mask.layers_fast"
        ]["value"]
        for card in ("a100", "T4")
    }
    assert fast == {"a100": 2, "T4": 0}


def test_eager_and_compile_are_asked_for_with_words(say, model):
    folder = model()
    assert "attend eagerly" in say("mask", folder, "--length", 32, "--with", "eager")[1]
    assert "lost for nothing" in " ".join(say("mask", folder, "--length", 32, "--with", "compile")[1].split())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("nowhere/config.json",), "no model at nowhere/config.json: No such file"),
        (("somebody/something",), "the local hub cache does not hold it"),
        (("what is this?",), "it is no hub id"),
        (("config.json", "--card", "h10"), "did you mean h100?"),
        (("config.json", "--length", "0"), "not a whole number of at least 1"),
        (("config.json", "--padding", "both"), "invalid choice"),
    ],
)
def test_wrong_use_is_told_with_the_next_step(say, words, message):
    code, out, err = say("mask", *words)
    assert (code, out) == (2, "")
    assert message in err


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is no JSON"),
        ("[]", "has no model_type"),
        ('{"model_type": "qwen33"}', "did you mean qwen3?"),
        ('{"model_type": "mine", "auto_map": {"AutoConfig": "a.B"}}', "let it run with: --with remote-code"),
        ('{"model_type": "qwen3", "num_hidden_layers": "many"}', "refused by transformers"),
    ],
)
def test_a_config_that_cannot_be_used(say, tmp_path, content, message):
    (tmp_path / "config.json").write_text(content)
    code, _, err = say("mask", "config.json")
    assert code == 2
    assert message in err


def test_an_empty_folder_has_no_model(say, tmp_path):
    (tmp_path / "empty").mkdir()
    assert say("mask", "empty")[0] == 2


def test_fields_that_the_class_does_not_name_are_said(say, model):
    out = say("mask", model(colour="blue"), "--length", 32)[1]
    assert "Qwen3Config does not name: colour" in out


def test_code_that_comes_with_a_known_class_is_not_run(say, model):
    out = say("mask", model(auto_map={"AutoConfig": "evil.Config"}), "--length", 32)[1]
    assert "that code is not run" in " ".join(out.split())


def test_a_length_beyond_the_positions_is_clamped_and_said(say, model):
    out = say("mask", model(max_position_embeddings=64), "--length", 4096, "--json")[1]
    told = json.loads(out)
    assert any("64 was taken" in note for note in told["notes"])
    assert told["verdict"] == "ok"


def test_a_vision_language_config_is_asked_as_text(say, tmp_path):
    with models.quiet():
        text = fake.config("qwen3_vl_text").to_dict()
        config = transformers.Qwen3VLConfig(
            text_config=text, vision_config={"depth": 2, "deepstack_visual_indexes": [1]}
        )
    (tmp_path / "config.json").write_text(json.dumps(config.to_dict()))
    code, out, _ = say("mask", "config.json", "--length", 32, "--json")
    assert (code, json.loads(out)["figures"]["mask.layers"]["value"]) == (0, 2)


def test_an_attention_implementation_that_is_not_installed(say, model):
    code, _, err = say("mask", model(), "--length", 32, "--with", "flash_attention_2")
    assert code == 2
    assert "'flash_attention_2' cannot be used here" in err
    code, _, err = say("mask", model(), "--length", 32, "--with", "no_such_attention")
    assert code == 2
    assert "'no_such_attention' cannot be used here" in err


def test_no_transformers(say, model, monkeypatch):
    folder = model()
    monkeypatch.setitem(sys.modules, "transformers", None)
    code, _, err = say("mask", folder)
    assert code == 3
    assert "pip install torch transformers" in err


@pytest.mark.parametrize(("version", "code", "message"), [("4.40.1", 3, "upgrade it"), ("99.0.0", 0, "is newer than")])
def test_versions_of_transformers(say, model, monkeypatch, version, code, message):
    folder = model()
    monkeypatch.setattr("transformers.__version__", version)
    got, out, err = say("mask", folder, "--length", 32)
    assert got == code
    assert message in " ".join((out + err).split())
