"""Batches of other shapes, made of the run's own tokens."""

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stepprobe.instruments.experiments.captured import CapturedBatches, Shape, reshaped


def padded(lengths, slots, first=1):
    ids = torch.zeros(len(lengths), slots, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, length in enumerate(lengths):
        ids[row, :length] = torch.arange(first, first + length)
        mask[row, :length] = 1
        first += length
    labels = ids.masked_fill(mask == 0, -100)
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def captured(*batches):
    found = CapturedBatches(torch)
    for batch in batches:
        found.add(batch)
    return found


@settings(deadline=None, max_examples=60)
@given(
    rows=st.integers(1, 6),
    length=st.integers(1, 40),
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    data=st.data(),
)
def test_real_tokens_are_the_runs_own_and_padding_is_told(rows, length, lengths, data):
    real = data.draw(st.none() | st.lists(st.integers(1, length), min_size=rows, max_size=rows))
    batch = captured(padded(lengths, 10)).batch(rows, length, real)
    counts = real or [length] * rows
    assert batch["attention_mask"].sum(dim=1).tolist() == counts
    for row, count in enumerate(counts):
        assert batch["attention_mask"][row, :count].all()
        assert torch.equal(batch["labels"][row, :count], batch["input_ids"][row, :count])
        assert (batch["input_ids"][row, :count] > 0).all(), "a token that was padding"
        assert (batch["labels"][row, count:] == -100).all()
    tokens = torch.cat([batch["input_ids"][row, :count] for row, count in enumerate(counts)])
    first = int(tokens[0]) - 1
    assert torch.equal(tokens, (first + torch.arange(len(tokens))) % sum(lengths) + 1)


def test_the_same_tokens_lie_in_a_padded_and_an_unpadded_batch():
    held = captured(padded([3, 7], 10), padded([10, 2], 10, first=50))
    real = [4, 2, 6]
    padded_, unpadded = held.batch(3, 8, real), held.batch(1, 12)
    assert torch.equal(padded_["input_ids"][padded_["attention_mask"] == 1], unpadded["input_ids"].flatten())


def test_a_short_batch_of_a_long_prompt_has_labels():
    batch = padded([40], 40)
    batch["labels"][:, :30] = -100
    for length in (2, 5, 17):
        new = captured(batch).batch(1, length)
        assert 0 < (new["labels"] != -100).sum() <= 0.5 * length + 1


def test_what_was_captured_is_described():
    held = captured(padded([3, 7], 10), padded([10], 10))
    assert held.counted() == ([[3, 7], [10]], (2 + 6 + 9) / 20)


def test_position_ids_start_again_in_each_row():
    flat = {
        "input_ids": torch.arange(1, 13)[None],
        "position_ids": torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 6, 7]]),
        "labels": torch.arange(1, 13)[None],
    }
    batch = captured(flat).batch(2, 5, [5, 3])
    assert batch["position_ids"].tolist() == [[0, 1, 2, 3, 4], [0, 1, 2, 0, 0]]


def test_other_entries_are_kept_and_rows_are_repeated():
    batch = {
        **padded([3, 4], 6),
        "weights": torch.tensor([0.25, 0.75]),
        "texts": ["a", "b"],
        "scale": torch.tensor(2.0),
        "flag": None,
    }
    new = captured(batch).batch(3, 5)
    assert new["weights"].tolist() == [0.25, 0.75, 0.25]
    assert new["texts"] == ["a", "b"]
    assert new["scale"] is batch["scale"]
    assert new["flag"] is None


def test_features_of_each_token_follow():
    batch = ((torch.arange(24.0).reshape(2, 4, 3),), {"target": torch.arange(8)})
    (x,), named = reshaped(torch, [batch], Shape(3, 5), None)
    assert x.shape == (3, 5, 3)
    assert named["target"].shape == (15,)
    assert torch.equal(x[0, :4], batch[0][0][0])


def test_labels_that_were_shifted_before_stay_shorter():
    batch = {"input_ids": torch.arange(10).reshape(2, 5), "targets": torch.arange(8).reshape(2, 4)}
    new = reshaped(torch, [batch], Shape(3, 7), None)
    assert new["targets"].shape == (3, 6)


@pytest.mark.parametrize(
    "extra",
    [torch.zeros(2, 1, 6, 6), torch.zeros(6, 6), torch.zeros(2, 6, 6), torch.zeros(1, 6), torch.ones(6)],
    ids=["4-D mask", "square", "3-D mask", "one row of no positions", "weights of slots"],
)
def test_what_cannot_be_told_is_refused(extra):
    with pytest.raises(ValueError, match=r"bias has the shape .*cannot be told"):
        captured({**padded([3, 4], 6), "bias": extra}).batch(2, 8)


def test_bad_shapes_are_refused():
    held = captured(padded([3, 4], 6))
    for rows, length, real in [(0, 4, None), (2, 0, None), (2, 4, [4]), (2, 4, [4, 5]), (2, 4, [0, 4])]:
        with pytest.raises(ValueError, match=r"shape|do not fit"):
            held.batch(rows, length, real)
    with pytest.raises(ValueError, match="no micro-batch"):
        captured().batch(1, 1)


@dataclasses.dataclass(frozen=True)
class Batch:
    """A batch as some loops have it."""

    ids: object
    weight: float = 0.5


def test_a_batch_may_be_a_dataclass():
    old = Batch(torch.arange(1, 13).reshape(3, 4))
    new = captured(old).batch(2, 6)
    assert type(new) is Batch
    assert (new.ids.flatten().tolist(), new.weight) == (list(range(1, 13)), 0.5)
    assert tuple(old.ids.shape) == (3, 4)
