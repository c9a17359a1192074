"""What is put back, and what is found when it cannot be."""

import random
import sys
from collections import defaultdict, deque
from dataclasses import dataclass, field

import numpy
import pytest
import torch

from stepprobe.instruments.experiments.attributes import Kept
from stepprobe.instruments.experiments.snapshot import Owners, Snapshot, checksum


class Counting(torch.nn.Module):
    """A layer that changes everything that a layer can change, except for its weights."""

    def __init__(self):
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(4)
        self.out = torch.nn.Linear(4, 1)
        self.calls = 0
        self.seen = []
        self.register_buffer("cache", torch.zeros(2))

    def forward(self, x):
        self.calls += 1
        self.seen.append(self.calls)
        self.late = "set in forward"
        self.cache = torch.ones(3)
        return self.out(torch.nn.functional.dropout(self.norm(x), 0.5)).sum()


@dataclass
class State:
    step: int = 0
    history: list = field(default_factory=list)


class Trainer:
    """As much of a trainer as counts."""

    def __init__(self):
        self.state = State()
        self._metrics = {"train": defaultdict(list)}
        self.tokens = torch.zeros(())
        self.recent = deque([1, 2], maxlen=2)
        self.train_dataset = object()


@pytest.fixture
def training():
    torch.manual_seed(0)
    module, trainer = Counting(), Trainer()
    optimizer = torch.optim.AdamW(module.parameters())
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    module(torch.randn(5, 4)).backward()
    optimizer.step()
    scheduler.step()
    return module, trainer, optimizer, scheduler


def snapshot_of(module, trainer, optimizer, scheduler):
    return Snapshot(torch, Owners([module], [optimizer], [scheduler], [trainer]))


def disturb(module, trainer):
    module(torch.randn(5, 4)).backward()
    module.eval()
    random.random()
    numpy.random.rand()
    trainer.state.step += 1
    trainer.state.history.append({"loss": 1.0})
    trainer._metrics["train"]["loss"].append(2.0)
    trainer._metrics["eval"] = {}
    trainer.tokens += 7
    trainer.recent.append(3)
    trainer.added = 1


def test_everything_that_a_step_may_change_is_put_back(training):
    module, trainer, *_ = training
    before = snapshot_of(*training)
    drawn = torch.rand(3)
    before.random.put_back()
    gradients = [one.grad for one in module.parameters()]
    values = [one.grad.clone() for one in module.parameters()]
    means = module.norm.running_mean.clone()
    late = module.late
    before.gradients.drop()
    disturb(module, trainer)
    unlike = before.unchanged()
    assert not any(unlike[kind] for kind in ("buffers", "gradients", "random", "counters"))
    assert all(before.put_back().values())
    assert module.training
    assert (module.calls, module.seen, module.late) == (1, [1], late)
    assert torch.equal(module.norm.running_mean, means)
    assert module.cache.shape == (3,)
    assert all(one.grad is grad for one, grad in zip(module.parameters(), gradients, strict=True))
    assert all(torch.equal(one.grad, value) for one, value in zip(module.parameters(), values, strict=True))
    assert torch.equal(torch.rand(3), drawn)
    assert trainer.state == State()
    assert trainer._metrics == {"train": {}}
    assert trainer.tokens == 0
    assert list(trainer.recent) == [1, 2]
    assert not hasattr(trainer, "added")


@pytest.mark.parametrize("fault", ["parameters", "optimizer", "scheduler"])
def test_what_nothing_may_change_is_found(training, fault):
    module, _, optimizer, scheduler = training
    before = snapshot_of(*training)
    if fault == "parameters":
        module.out.weight.data.add_(1e-7)  # .data hides a change from the version
    elif fault == "optimizer":
        optimizer.param_groups[0]["lr"] *= 2
    else:
        scheduler.last_epoch += 1
        scheduler._last_lr = [0.0]
    found = before.unchanged()
    assert not found.pop(fault)
    assert all(found.values())


def test_a_moment_of_the_optimizer_that_changed_is_found(training):
    before = snapshot_of(*training)
    next(iter(training[2].state.values()))["exp_avg"].data.mul_(2)
    assert not before.unchanged()["optimizer"]


def test_a_variable_of_the_script_that_changed_is_found(training, monkeypatch):
    main = sys.modules["__main__"]
    monkeypatch.setattr(main, "planted_counter", 1, raising=False)
    monkeypatch.setattr(main, "planted_list", [1], raising=False)
    before = snapshot_of(*training)
    assert before.unchanged()["counters"]
    main.planted_list.append(2)
    assert not before.put_back()["counters"]
    main.planted_list.pop()
    assert before.unchanged()["counters"]
    main.planted_counter = 2
    assert not before.put_back()["counters"]


def test_a_gradient_that_was_changed_in_place_is_found(training):
    before = snapshot_of(*training)
    training[0].out.weight.grad.data.mul_(2)
    assert not before.put_back()["gradients"]


def test_a_no_number_equals_itself():
    kept = Kept(torch.tensor([float("nan"), 1.0]), torch)
    assert not kept.differs()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.int64, torch.complex64])
def test_a_checksum_sees_one_bit(dtype):
    tensor = torch.zeros(7, 3).to(dtype)
    first = checksum(torch, tensor)
    tensor[3, 1] = 1
    assert checksum(torch, tensor) != first


def test_a_backward_that_is_yet_to_come_finds_its_buffers():
    norm = torch.nn.BatchNorm1d(4).eval()  # in eval mode its graph saves the running mean
    pending = norm(torch.randn(5, 4)).sum()
    before = Snapshot(torch, Owners(modules=(norm,)))
    norm.train()(torch.randn(5, 4))
    assert norm.running_mean._version > 0
    before.put_back()
    pending.backward()
    assert norm.weight.grad is not None
    kept = Kept(torch.ones(2), torch)
    saved = (kept.value * torch.ones(2, requires_grad=True)).sum()
    kept.value.add_(0)  # no value differs, but its version does
    kept.put_back()
    saved.backward()
