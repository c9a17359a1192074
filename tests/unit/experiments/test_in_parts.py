"""Taking over a script that calls the parts of its model one by one, and never the model."""

import weakref
from pathlib import Path

import pytest

from stepprobe.instruments.attach.batches import Batches
from stepprobe.instruments.attach.modules import ModuleHooks
from stepprobe.instruments.attach.observer import Observer
from stepprobe.instruments.attach.pieces import Pieces
from stepprobe.instruments.attach.roots import RootFinder
from stepprobe.instruments.experiments.sources import RootSource
from stepprobe.instruments.experiments.takeover import Settings, TakeOver
from stepprobe.model.records import decode_process

torch = pytest.importorskip("torch")

TOKENS = torch.ones(4, 8, dtype=torch.int64)


@pytest.fixture
def observer(tmp_path):
    return Observer(str(tmp_path), None)


def train(observer, steps):
    batches = Batches(observer, torch)
    hooks = ModuleHooks(observer, batches, torch)
    finder = RootFinder(observer, hooks, Pieces(observer, hooks, batches, torch), torch)
    observer.optimizer_stepped = finder._look_below
    backward = hooks.backward(torch.autograd.backward)
    model = torch.nn.Sequential(torch.nn.Embedding(8, 4), torch.nn.Linear(4, 8))
    finder._asked[id(model)] = weakref.ref(model)
    finder._arm(torch.optim.SGD(model.parameters(), lr=0.0))
    for _ in range(steps):
        backward(model[1](model[0](TOKENS)).sum())
        observer.optimizer_begins()
        observer.optimizer_ended()


def notes_of(observer):
    observer.close()
    (path,) = Path(observer.journal.folder).glob("steps-*.jsonl")
    return " ".join(decode_process(path.name, path.read_bytes()).notes)


def test_that_no_call_can_be_made_again_is_said_and_what_to_do(observer, tmp_path):
    RootSource(TakeOver(observer, str(tmp_path), Settings(steps=2, warmup=1, keep_training=True)), torch)
    train(observer, 12)
    said = notes_of(observer)
    assert "no experiments: the script calls the parts of its model one by one" in said
    assert "--harness module:factory" in said


def test_a_named_harness_is_driven_where_the_batch_goes_in(observer, tmp_path, monkeypatch):
    settings = Settings(steps=2, warmup=1, keep_training=True, harness="own:make")
    take_over = TakeOver(observer, str(tmp_path), settings)
    driven = []

    def run_named(_):
        driven.append((take_over.batches(torch).counted()[0][-1], observer.counters.get("backwards", 0)))
        take_over.give_up("they are over")

    monkeypatch.setattr(take_over, "run_named", run_named)
    RootSource(take_over, torch)
    train(observer, 12)
    assert driven == [([8, 8, 8, 8], 0)]
    assert "no experiments: they are over" in notes_of(observer)
