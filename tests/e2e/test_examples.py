"""The example scripts run alone, offline, and the same way each time."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.conftest import STEPS

pytestmark = pytest.mark.e2e

EXAMPLES = Path(__file__).parents[2] / "examples"
SCRIPTS = [
    ("sft_trainer.py", 0, 1),
    ("trl_lora.py", 0, 1),
    ("lightning_module.py", 0, 2 * STEPS),
    ("plain_loop.py", 0, STEPS),
    ("ddp_gloo.py", 2, 2 * STEPS),
]
"""Script, ranks, lines with a loss that it prints."""


@pytest.mark.parametrize(("script", "ranks", "lines"), SCRIPTS)
def test_script_trains_alone_and_repeatably(bare, environment, script, ranks, lines):
    first = bare(script, "--steps", f"{STEPS}", ranks=ranks)
    assert first.returncode == 0, first.stderr
    assert len(first.losses) == lines
    assert all(math.isfinite(float(line.split()[-1])) for line in first.losses)

    again = subprocess.run(first.command, env=environment, capture_output=True, text=True, timeout=300, check=True)
    assert all(line in again.stdout for line in first.losses)


@pytest.fixture(scope="module")
def made(tmp_path_factory, environment):
    """Two builds of the dataset, in two folders."""
    folders = [tmp_path_factory.mktemp("dataset") for _ in range(2)]
    for folder in folders:
        build_dataset(folder, environment)
    return folders


def build_dataset(folder, environment):
    command = [sys.executable, EXAMPLES / "make_dataset.py", "--out", folder]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=True)


def contents(folder):
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def test_dataset_and_tokenizer_are_the_same_bytes_each_time(made):
    first, second = made
    assert contents(first) == contents(second)
    assert "tokenizer/tokenizer.json" in contents(first)


def test_a_finished_dataset_is_kept_and_an_unfinished_one_made_again(made, environment):
    _, folder = made
    before = (folder / "data" / "train.jsonl").stat().st_mtime_ns
    assert "are there" in build_dataset(folder, environment).stderr
    assert (folder / "data" / "train.jsonl").stat().st_mtime_ns == before
    (folder / "made.json").unlink()
    build_dataset(folder, environment)
    assert (folder / "data" / "train.jsonl").stat().st_mtime_ns > before


def test_dataset_rows_are_chats_from_several_sources(made):
    rows = [json.loads(line) for line in (made[0] / "data" / "train.jsonl").read_text("utf-8").splitlines()]
    assert len(rows) > 1000
    assert len({row["source"] for row in rows}) >= 5
    assert all([m["role"] for m in row["messages"]] == ["user", "assistant"] for row in rows)


def test_tokenizer_gives_every_text_back(made):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(made[0] / "tokenizer")
    text = "def f(x): …\n\tπ ≈ 3.14159 🙂"
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    chat = tokenizer.apply_chat_template([{"role": "user", "content": text}], tokenize=False)
    ids = tokenizer(chat)["input_ids"]
    assert ids[0] == tokenizer.convert_tokens_to_ids("<|im_start|>")
    assert tokenizer.eos_token_id in ids
    assert len(ids) < len(chat.encode())


def test_example_trains_on_the_dataset(bare, made):
    job = bare(
        *("sft_trainer.py", "--steps", "2", "--batch-size", "2"),
        *("--data", str(made[0] / "data"), "--tokenizer", str(made[0] / "tokenizer")),
    )
    assert job.returncode == 0, job.stderr
    assert len(job.losses) == 1


def test_an_empty_data_folder_is_said(bare, tmp_path):
    job = bare("plain_loop.py", "--data", str(tmp_path))
    assert job.returncode == 1
    assert "make_dataset.py" in job.stderr
