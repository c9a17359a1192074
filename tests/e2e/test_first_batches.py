"""The first real batches of a job: kept without text, their masks foretold, and what was planted in them found."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from stepprobe import session
from stepprobe.model.first_calls import read_first_calls, values

pytestmark = pytest.mark.e2e

SCRIPT = str(Path(__file__).parent / "scripts" / "masked.py")
SECRET = re.compile(r"(?<!\d)4242(?!\d)")
TWICE = re.compile(r"(?<!\d)4242\W{1,3}4242(?!\d)")
"""A duration may be 4242 ns; two neighbours are a row's text."""


def observe(folder, environment, *arguments, options=()):
    command = [sys.executable, "-m", "stepprobe", "run", "--json", "--out", str(folder), *options, "--"]
    done = subprocess.run(
        [*command, sys.executable, SCRIPT, *arguments], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    (kept,) = folder.glob("*")
    return json.loads(done.stdout), kept


def kinds(document):
    return {finding["kind"] for finding in document["findings"] if finding["kind"].startswith(("mask", "kernel"))}


def figure(document, name):
    return document["figures"][name]["value"]


def note(document, words):
    return any(words in line for line in document["notes"])


@pytest.mark.parametrize(
    ("kind", "expected", "right"),
    [
        ("none", set(), 2),
        ("right", {"mask.lost"}, 2),
        ("packed", {"mask.lost"}, 2),
        ("packed-ones", {"mask.document_leak"}, 0),
        ("window", {"mask.lost_for_nothing"}, 2),
    ],
)
def test_what_is_planted_in_the_batches_is_found_and_nothing_else(tmp_path, environment, kind, expected, right):
    document, kept = observe(tmp_path, environment, kind)
    assert kinds(document) == expected
    assert figure(document, "mask.layers_correct") == right
    assert note(document, "its calls of attention were counted, and were those")
    assert session.verify(kept).verdict == "ok"


def test_a_leak_comes_first_and_is_the_reason_of_the_verdict(tmp_path, environment):
    document, _ = observe(tmp_path, environment, "packed-ones")
    assert document["findings"][0]["kind"] == "mask.document_leak"
    assert "all-ones attention_mask" in document["findings"][0]["remedies"][0]["action"]
    assert document["verdict"] == "warn"
    # 2 rows, documents of 12 and 20 tokens: each of the 20 sees the 12 before it
    assert figure(document, "mask.leak_pairs") == 2 * 12 * 20


def test_the_evidence_holds_the_batch_and_not_its_text(tmp_path, environment):
    _, folder = observe(tmp_path, environment, "right", options=("--no-masks",))
    (file,) = folder.glob("batches-rank0-*.jsonl")
    assert not SECRET.search(file.read_text())
    assert not [path for path in folder.iterdir() if TWICE.search(path.read_text())]
    calls = read_first_calls({file.name: file.read_bytes()})
    told = calls[0].call.arguments
    assert told["input_ids"].shape == (2, 32)
    assert told["input_ids"].rows is None
    assert [values(row) for row in told["attention_mask"].rows] == [[1] * 32, [1] * 20 + [0] * 12]


def test_a_script_that_makes_its_own_masks_is_not_spoken_of(tmp_path, environment):
    document, _ = observe(tmp_path, environment, "patched")
    assert kinds(document) == set()
    assert note(document, "2 calls (2 with a mask, 0 with is_causal) foretold, 2 calls (0 with a mask, 2 with")


def test_a_mask_whose_values_are_not_kept_is_not_guessed(tmp_path, environment):
    document, _ = observe(tmp_path, environment, "square")
    assert kinds(document) == set()
    assert note(document, "attention_mask (bool, 4 dimensions)")


def test_eager_attention_is_named_though_its_calls_are_not_counted(tmp_path, environment):
    document, _ = observe(tmp_path, environment, "none", "eager")
    assert kinds(document) == {"kernel.eager"}
    assert note(document, "its own calls of attention were not counted")


def test_the_probe_asked_of_a_run_folder(tmp_path, environment):
    document, folder = observe(tmp_path / "run", environment, "packed-ones", options=("--no-masks",))
    assert "mask.layers" not in document["figures"]
    command = [sys.executable, "-m", "stepprobe", "mask", str(folder), "--json", "--out", str(tmp_path / "mask")]
    asked = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert asked.returncode == 1, asked.stderr
    answer = json.loads(asked.stdout)
    assert answer["findings"][0]["kind"] == "mask.document_leak"
    assert figure(answer, "mask.leak_pairs") == 480


def test_a_model_that_is_not_of_transformers_is_passed_by(attached):
    document = attached("plain_loop.py", "--steps", "6").document
    assert not kinds(document)
    assert not note(document, "attention masks")
