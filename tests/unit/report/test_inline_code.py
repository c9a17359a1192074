"""What in a sentence is code, and what is left a word."""

import pytest

from stepprobe.report.inline_code import pieces


@pytest.mark.parametrize(
    ("sentence", "code"),
    [
        ("DataLoader(num_workers=2): load the next batches", ["DataLoader(num_workers=2)"]),
        ("pad to a few sizes (pad_to_multiple_of), once", ["pad_to_multiple_of"]),
        ("lower GradScaler(init_scale=…) or call model.train()", ["GradScaler(init_scale=…)", "model.train()"]),
        ("foreach=True, or fused=True.", ["foreach=True", "fused=True"]),
        ("bucket or pack: stepprobe bucket DATA says which", ["stepprobe bucket DATA"]),
        ("stepprobe padding DATA --measure-loss runs it", ["stepprobe padding DATA --measure-loss"]),
        ("name it with --max-length.", ["--max-length"]),
        ("item() at src/train.py:30: 2 calls", ["item()", "src/train.py:30"]),
        ("resize(len(tokenizer)) or m.resize(len(tokenizer))", ["m.resize(len(tokenizer))"]),
        ("causal+right_pad(143) of layers (softmax), file(s), e.g. t = a + b·rows -- all", []),
        ("stepprobe has transformers 5, torch 2.13", []),
        ("", []),
    ],
)
def test_what_is_surely_code(sentence, code):
    found = list(pieces(sentence))
    assert [part for part, marked in found if marked] == code
    assert "".join(part for part, _ in found) == sentence
