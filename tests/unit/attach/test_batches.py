"""What a micro-batch holds, from the model's own arguments or from the loader's batch."""

from collections import UserDict

import pytest

from stepprobe.adapters import plain, transformers
from stepprobe.instruments.attach.batches import Batches
from stepprobe.instruments.attach.observer import Observer

torch = pytest.importorskip("torch")


@pytest.fixture
def observer():
    return Observer("", None)


@pytest.fixture
def batches(observer):
    return Batches(observer, torch)


def batch(rows=2, length=8, real=5, labelled=3):
    mask = torch.zeros(rows, length, dtype=torch.int64)
    mask[:, :real] = 1
    labels = torch.full((rows, length), -100)
    labels[:, 1 : 1 + labelled] = 7
    return {"input_ids": torch.ones(rows, length, dtype=torch.int64), "attention_mask": mask, "labels": labels}


def test_everything_as_keywords(batches, observer):
    batches.forward((), batch())
    lengths = {"rows": 2, "longest_slots": 10, "row_squares": 50, "mixed_squares": 0}
    assert observer.counters == {"slots": 16, "real": 10, "labelled": 6, "new_shapes": 1, **lengths}


def test_how_alike_the_rows_of_a_batch_are(batches, observer):
    """Rows of 2, 4 and 9 tokens: their squares sum to 101, those of their distances from the mean of 5 to 26."""
    given = batch(rows=3, length=16)
    given["attention_mask"] = (torch.arange(16)[None] < torch.tensor([[2], [4], [9]])).long()
    batches.forward((), given)
    assert {name: observer.counters[name] for name in ("real", "rows", "longest_slots", "row_squares")} == {
        "real": 15,
        "rows": 3,
        "longest_slots": 27,
        "row_squares": 101,
    }
    assert observer.counters["mixed_squares"] == 26


def test_tokens_without_rows_are_no_rows(batches, observer):
    batches.forward((), {"input_ids": torch.ones(40, dtype=torch.int64)})
    assert observer.counters["slots"] == 40
    assert "rows" not in observer.counters


def test_a_loss_is_counted_with_the_targets_that_it_gets(batches, observer):
    targets = torch.tensor([3, -100, 5])
    batches.loss(targets, -100)
    batches.loss(targets[:1], -100)
    batches.loss(torch.ones(2, 3), -100)  # probabilities, not classes
    assert observer.counters == {"losses": 2, "loss_rows": 4}


def test_a_mask_that_is_passed_by_position_is_the_loader_s(batches, observer):
    given = batch()
    batches.loaded(given)
    batches.forward((given["input_ids"], given["attention_mask"]), {})
    assert (observer.counters["real"], observer.counters["labelled"]) == (10, 6)
    assert observer.facts["counts.real"] == "attention mask"


def test_a_prefetched_batch_is_not_taken_for_the_one_in_use(batches, observer):
    first, second = batch(real=5), batch(real=2)
    batches.loaded(first)
    batches.loaded(second)
    batches.forward((first["input_ids"],), {})
    batches.forward((second["input_ids"],), {})
    assert observer.counters["real"] == 10 + 4


def test_one_batch_for_two_calls(batches, observer):
    given = batch()
    batches.loaded(given)
    batches.forward((given["input_ids"],), {})
    batches.forward((given["input_ids"],), {})
    assert observer.counters["real"] == 20


def test_on_a_device_the_loader_s_batch_is_counted_when_it_is_given(batches, observer):
    observer.facts["device"] = "meta"
    given = batch()
    batches.loaded(given)
    moved = {name: value.to("meta") for name, value in given.items()}
    batches.forward((), moved)
    assert (observer.counters["real"], observer.counters["labelled"]) == (10, 6)


def test_a_mask_on_the_device_that_no_loader_gave_is_not_observed_and_not_zero(batches, observer):
    moved = {name: value.to("meta") for name, value in batch().items()}
    batches.forward((), moved)
    assert "real" not in observer.counters
    assert observer.facts["counts.real"].startswith("not observed")


def test_without_any_mask_every_slot_is_counted_and_said(batches, observer):
    batches.forward((torch.ones(2, 8, dtype=torch.int64),), {})
    assert observer.counters["real"] == 16
    assert observer.facts["counts.real"].startswith("no attention mask")


def test_a_batch_is_not_kept_alive(batches):
    import weakref

    given = batch()
    alive = weakref.ref(given["attention_mask"])
    batches.loaded(given)
    del given
    assert alive() is None


def test_targets_of_the_loss_count_only_where_nobody_gave_labels(batches, observer):
    ids = torch.ones(2, 8, dtype=torch.int64)
    batches.forward((ids,), {})
    batches.loss(torch.tensor([1, -100, 3]), -100)
    assert observer.counters["labelled"] == 2
    batches.forward((), batch())
    batches.loss(torch.tensor([1, -100, 3]), -100)
    assert observer.counters["labelled"] == 2 + 6


def test_a_model_without_ids_is_said(batches, observer):
    batches.forward((torch.ones(2, 8),), {})
    assert observer.counters == {}
    assert observer.facts["counts.slots"].startswith("not observed")


class Unreadable(UserDict):
    """Raises where it is asked for what it lacks, as records that are read when they are needed do."""

    def get(self, key, default=None):
        raise KeyError(key)


def test_a_batch_that_raises_when_it_is_asked_is_left_alone(batches, observer):
    batches.loaded(Unreadable())
    assert "a batch was not counted: KeyError" in observer.journal._notes


def test_a_mask_that_numbers_the_examples_of_a_packed_row(batches, observer):
    batches.forward((), batch() | {"attention_mask": torch.tensor([[1, 1, 2, 2, 2, 3, 0, 0]] * 2)})
    assert observer.counters["real"] == 12


def test_a_mask_of_more_tokens_than_the_batch_is_none_of_its_own(batches, observer):
    """Behind a cache or a prefix the mask is longer than the ids."""
    batches.forward((), batch() | {"attention_mask": torch.ones(2, 20, dtype=torch.int64)})
    assert "real" not in observer.counters
    assert observer.facts["counts.real"].startswith("not observed")


def test_a_loader_without_the_settings_of_pytorch_s_own_is_noted(observer):
    plain._loader_facts(observer, object())
    assert "the settings of a loader were not read: AttributeError" in observer.journal._notes


def test_rates_are_found_under_names_of_any_type():
    logs = {3: 1.0, ("a", 1): 2, "tokens_per_second": 4, "loss": 5.0, "train_tokens": "6"}
    assert transformers._rates(logs) == {"tokens_per_second": 4.0}
