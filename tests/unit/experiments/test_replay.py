"""A script's own loss path, written down once and played again at other shapes."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from stepprobe.instruments.experiments.captured import Shape
from stepprobe.instruments.experiments.recording import Recording
from stepprobe.instruments.experiments.replay import ReplayHarness, RootCall
from stepprobe.instruments.experiments.sizes import Size, computed
from stepprobe.instruments.experiments.tape import Tape

ROWS, LENGTH, VOCABULARY, WIDTH = 3, 7, 11, 8


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.drop = nn.Dropout(0.3)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids, attention_mask=None):
        hidden = self.drop(self.embedding(ids).cumsum(dim=1))
        return {"logits": self.head(hidden), "hidden": hidden}


class Doubled(torch.autograd.Function):
    """An autograd function, as fused losses are."""

    @staticmethod
    def forward(ctx, x):
        return x.mul(2)

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


def by_index(model, batch):
    logits = model(batch["ids"])["logits"]
    return functional.cross_entropy(logits[:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten()) / 2


def by_sizes(model, batch):
    logits = model(batch["ids"])["logits"]
    rows, length, vocabulary = logits.shape
    shifted = logits[:, : length - 1].reshape(rows * (length - 1), vocabulary)
    return functional.cross_entropy(shifted, batch["labels"][:, 1:].reshape(-1))


def by_modules(model, batch):
    loss = nn.CrossEntropyLoss(reduction="none")(model(batch["ids"])["logits"].transpose(1, 2), batch["labels"])
    kept = (batch["labels"] != -100).float()
    print(f"loss {loss.detach().mean().item():.0f}", end="")
    return (loss * kept).sum() / kept.sum().clamp(min=1)


def by_function(model, batch):
    output = model(batch["ids"])
    penalty = output["hidden"].pow(2).mean() + torch.rand(()) * 0.1
    return Doubled.apply(output["logits"]).logsumexp(-1).mean() + penalty


def by_own_labels(model, batch):
    ids = batch["ids"]
    total = torch.zeros(())
    loss = functional.cross_entropy(model(ids)["logits"][:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    total += loss.detach()
    return loss + 0 * total


def by_autocast(model, batch):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(batch["ids"])["logits"]
        scores = logits @ torch.ones(VOCABULARY, VOCABULARY)
    return functional.cross_entropy(scores.float().flatten(0, 1), batch["labels"].flatten())


PATHS = [by_index, by_sizes, by_modules, by_function, by_own_labels, by_autocast]


def batch_of(rows, length, seed=0):
    drawn = torch.Generator().manual_seed(seed)
    ids = torch.randint(1, VOCABULARY, (rows, length), generator=drawn)
    labels = ids.clone()
    labels[0, :2] = -100
    return {"ids": ids, "labels": labels}


def gradients(model):
    found = [one.grad.clone() for one in model.parameters()]
    model.zero_grad()
    return found


def record(model, path, batch):
    """Run one micro-step and return its harness, its loss and its gradients."""
    caught, ended = {}, []

    def begins(module, args, kwargs):
        caught["call"] = RootCall(torch, module, args, kwargs)

    def returned(module, args, output):
        caught["tape"] = Tape(torch, Shape(*batch["ids"].shape), output)
        caught["recording"] = Recording(torch, caught["tape"], caught["tape"].end, lambda: ended.append(True))
        caught["recording"].start()

    hooks = [model.register_forward_pre_hook(begins, with_kwargs=True), model.register_forward_hook(returned)]
    try:
        torch.manual_seed(1)
        loss = path(model, batch)
        loss.backward()
    finally:
        for hook in hooks:
            hook.remove()
        if "recording" in caught:
            caught["recording"].stop()
    assert ended == [True]
    return ReplayHarness(torch, model, caught["call"], caught["tape"]), loss.detach(), gradients(model)


@pytest.mark.parametrize("path", PATHS)
def test_the_captured_micro_step_comes_out_bit_for_bit(path):
    torch.manual_seed(0)
    model = Model()
    harness, loss, expected = record(model, path, batch_of(ROWS, LENGTH))
    assert harness.refusal() == ""
    torch.manual_seed(1)
    assert harness.step(harness.captured).equal(loss)
    assert all(map(torch.equal, gradients(model), expected))


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("shape", [(1, 4), (5, 19), (2, 2)])
def test_another_shape_is_the_scripts_own_step_at_that_shape(path, shape):
    torch.manual_seed(0)
    model = Model()
    harness, _, _ = record(model, path, batch_of(ROWS, LENGTH))
    batch = harness.batch(*shape)
    assert batch["ids"].shape == shape
    torch.manual_seed(2)
    found = harness.step(batch)
    own = gradients(model)
    outside = [value for name, value in batch["outside"].items() if name.startswith("labels")]
    torch.manual_seed(2)
    loss = path(model, {"ids": batch["ids"], "labels": outside[0] if outside else None})
    loss.backward()
    assert found.equal(loss.detach())
    assert all(map(torch.equal, own, gradients(model)))


def test_nothing_of_the_recording_stays_behind():
    apply, backward = torch.autograd.Function.__dict__["apply"], torch.autograd.backward
    record(Model(), by_function, batch_of(ROWS, LENGTH))
    assert torch.autograd.Function.__dict__["apply"] is apply
    assert torch.autograd.backward is backward
    assert torch._C._len_torch_function_stack() == 0


def test_a_tensor_changed_in_place_is_as_it_was_on_every_replay():
    weight = torch.ones(VOCABULARY)

    def path(model, batch):
        weight.mul_(2)
        return weighted(model, batch)

    def weighted(model, batch):
        logits = model(batch["ids"])["logits"]
        weight.mul_(2)
        return (logits * weight).mean()

    harness, loss, _ = record(Model(), path, batch_of(ROWS, LENGTH))
    for _ in range(2):
        torch.manual_seed(1)
        assert harness.step(harness.captured).equal(loss)
    assert weight.eq(4).all(), "the script's own tensor was touched"


def a_plain_number(model, batch):
    logits = model(batch["ids"])["logits"]
    return functional.cross_entropy(logits.view(ROWS * LENGTH, VOCABULARY), batch["labels"].view(ROWS * LENGTH))


def a_plain_slice(model, batch):
    logits = model(batch["ids"])["logits"]
    return functional.cross_entropy(logits[:, : LENGTH - 1].flatten(0, 1), batch["labels"][:, 1:].flatten())


def a_hidden_tensor(model, batch):
    model(batch["ids"])
    return model.aside.mean()


def no_path(model, batch):
    model(batch["ids"])
    return model.head.weight.sum() * 1


class Hiding(Model):
    def forward(self, ids, attention_mask=None):
        output = super().forward(ids)
        self.aside = output["logits"] * 2
        return output["hidden"]


@pytest.mark.parametrize(
    ("model", "path", "reason"),
    [
        (Model, a_plain_number, "plain number"),
        (Model, a_plain_slice, "plain number"),
        (Hiding, a_hidden_tensor, "neither the root"),
    ],
)
def test_what_cannot_be_played_again_is_refused(model, path, reason):
    harness, *_ = record(model(), path, batch_of(ROWS, LENGTH))
    assert reason in harness.refusal()


def test_sizes_remember_where_they_came_from():
    rows, length = Size.of(3, ("size", 0, 0)), Size.of(7, ("size", 0, 1))
    value = 2 * (rows * (length - 1)) // 4 + rows % 2
    assert value == 2 * (3 * 6) // 4 + 1
    assert isinstance(value, Size)
    assert computed(value.rule, {0: (5, 11)}) == 2 * (5 * 10) // 4 + 1
    assert type(rows / 2) is float
    assert rows * 1.5 == 4.5
