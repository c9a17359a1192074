"""A training that calls the parts of its model one by one, and never the model itself."""

import weakref
from pathlib import Path

import pytest

from stepprobe.instruments.attach.batches import Batches
from stepprobe.instruments.attach.clock import StackClock
from stepprobe.instruments.attach.modules import ModuleHooks
from stepprobe.instruments.attach.observer import Observer
from stepprobe.instruments.attach.pieces import Pieces
from stepprobe.instruments.attach.roots import RootFinder
from stepprobe.model.records import decode_process

torch = pytest.importorskip("torch")

TOKENS = torch.ones(4, 8, dtype=torch.int64)


@pytest.fixture
def time():
    """Passes where a test says so."""
    return [0]


@pytest.fixture
def observer(tmp_path, monkeypatch, time):
    monkeypatch.setenv("STEPPROBE_DETAIL", "always")
    return Observer(str(tmp_path), None, StackClock(now=lambda: time[0]))


@pytest.fixture
def train(observer):
    batches = Batches(observer, torch)
    hooks = ModuleHooks(observer, batches, torch)
    finder = RootFinder(observer, hooks, Pieces(observer, hooks, batches, torch), torch)
    observer.optimizer_stepped = finder._look_below
    torch_backward = hooks.backward(torch.autograd.backward)

    def training(model, loss_of, steps, *, loader=True):
        finder._asked[id(model)] = weakref.ref(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        finder._arm(optimizer)
        for _ in range(steps):
            if loader:
                observer.data_asked()
            torch_backward(loss_of(model))
            observer.optimizer_begins()
            observer.optimizer_ended()

    training.finder, training.hooks = finder, hooks
    return training


def make():
    class Encoder(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.mlp = torch.nn.Embedding(8, 4), torch.nn.Linear(4, 4)

        def forward(self, ids):
            return self.mlp(self.embedding(ids))

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.positions, self.encoder = torch.nn.Embedding(8, 4), Encoder()
            self.head, self.metric = torch.nn.Linear(4, 8), torch.nn.Identity()

        def loss(self):
            hidden = self.positions(torch.arange(8)[None]) + self.encoder(TOKENS)
            return self.metric(self.head(hidden)).sum()

    return Model()


def taking(time, ns, forward):
    def slower(x):
        time[0] += ns
        return forward(x)

    return slower


def steps_of(observer):
    observer.close()
    (path,) = Path(observer.journal.folder).glob("steps-*.jsonl")
    return decode_process(path.name, path.read_bytes())


def hooks_of(model):
    return {name: len(one._forward_pre_hooks) for name, one in model.named_modules() if one._forward_pre_hooks}


def test_the_part_that_is_given_the_batch_counts_it(observer, train):
    """The first part that is called is given ids too: those of the positions, fewer than the batch."""
    train(make(), lambda model: model.loss(), 5)
    steps = steps_of(observer).steps
    assert [step.aside for step in steps] == ["parts", "parts", "", "", ""]
    assert [step.counters.get("slots", 0) for step in steps] == [0, 0, 32, 32, 32]
    assert [step.counters.get("forwards", 0) for step in steps] == [0, 0, 1, 1, 1]


def test_parts_are_booked_as_parts(observer, train, time):
    model = make()
    for number, part in enumerate((model.positions, model.encoder.embedding, model.encoder.mlp, model.head)):
        part.forward = taking(time, 10**number, part.forward)
    train(model, lambda model: model.loss(), 5)
    records = steps_of(observer)
    spent = {account: wall for account, (wall, _) in records.steps[3].accounts.items()}
    assert spent == {"forward.embed": 11, "forward.mlp": 100, "forward.lm_head": 1000}
    assert records.facts["model"] == "Model"


def test_the_backward_of_a_part_is_its_own(observer, train, time):
    class Slow(torch.autograd.Function):
        @staticmethod
        def forward(context, x):
            return x.clone()

        @staticmethod
        def backward(context, gradient):
            time[0] += 1000
            return gradient

    model = make()
    model.head.forward = lambda x: Slow.apply(torch.nn.Linear.forward(model.head, x))
    train(model, lambda model: model.loss(), 5)
    assert steps_of(observer).steps[3].accounts["backward.lm_head"][0] == 1000


def test_without_a_loader_a_step_begins_with_the_part_that_is_given_the_batch(observer, train):
    train(make(), lambda model: model.loss(), 6, loader=False)
    steps = steps_of(observer).steps
    assert [(step.aside, step.counters["forwards"]) for step in steps] == [("", 1)] * 4


@pytest.mark.parametrize("called", ["parts", "root"])
@pytest.mark.parametrize("steady", [1, 2, 3, 7, 33])
def test_without_a_loader_detail_may_change_with_any_step(observer, train, time, monkeypatch, called, steady):
    """It changes inside the call that begins the step: of the part that is given the batch, or of the root."""
    monkeypatch.setattr(observer.budget, "detail_next", lambda index: index // steady % 2 == 1)
    model = make()
    for number, part in enumerate((model.encoder.embedding, model.encoder.mlp, model.head)):
        part.forward = taking(time, 10**number, part.forward)
    type(model).forward = lambda model: model.head(model.encoder.mlp(model.encoder.embedding(TOKENS))).sum()
    train(model, type(model).forward if called == "parts" else type(model).__call__, 70, loader=False)
    steps = steps_of(observer).steps
    assert len(steps) == (68 if called == "parts" else 70)
    coarse, fine = {"forward": 111}, {"forward.embed": 1, "forward.mlp": 10, "forward.lm_head": 100}
    for step in steps:
        spent = {account: wall for account, (wall, _) in step.accounts.items()}
        assert spent == (fine if step.detail else coarse)
        assert step.counters["forwards"] == 1
        assert step.detail == (step.index // steady % 2 == 1)


def test_a_root_that_is_called_is_the_only_one(observer, train):
    model = make()
    type(model).forward = type(model).loss
    train(model, lambda model: model(), 5)
    assert [step.aside for step in steps_of(observer).steps] == [""] * 5
    assert [step.counters["forwards"] for step in steps_of(observer).steps] == [1] * 5


def test_a_root_that_is_called_without_gradients_alone_is_none(observer, train):
    model = make()
    type(model).forward = type(model).loss

    def validated_first(model):
        with torch.no_grad():
            model()
        return model.loss()

    train(model, validated_first, 4)
    steps = steps_of(observer).steps
    assert [step.counters["forwards"] - step.counters["no_grad_forwards"] for step in steps] == [0, 0, 1, 1]


def test_hooks_that_only_listen_are_taken_away(observer, train):
    model = make()
    observer.budget.forced = False
    train(model, lambda model: model.loss(), 3)
    assert set(hooks_of(model)) == {"", "positions", "encoder", "head"}  # "": waits for its first call


@pytest.mark.parametrize("how", ["in place", "wrapped"])
def test_nothing_listens_where_a_part_may_be_compiled_with_the_rest(observer, train, how):
    model = make()
    if how == "in place":
        model._compiled_call_impl = lambda *_: None
    else:
        train.finder._noticing(lambda model: model)(model)
    train(model, lambda model: model.loss(), 3)
    assert not hooks_of(model.encoder)
    assert [step.aside for step in steps_of(observer).steps] == [""] * 3


def test_a_table_of_relative_positions_is_no_batch(observer, train):
    model = make()
    model.relative = torch.nn.Embedding(16, 1)
    places = torch.arange(8)

    def loss(model):
        return model.relative(places[:, None] - places + 8).sum() + model.loss()

    train(model, loss, 3)
    assert steps_of(observer).steps[2].counters["slots"] == TOKENS.numel()


def test_each_of_several_models_counts_its_own_batches(observer, train):
    other = make()
    train.finder._asked[id(other)] = weakref.ref(other)
    train.finder._arm(torch.optim.SGD(other.parameters(), lr=0.0))
    train(make(), lambda model: model.loss() + other.loss() + other.loss(), 3)
    last = steps_of(observer).steps[2].counters
    assert (last["forwards"], last["slots"]) == (3, 3 * TOKENS.numel())


def test_a_model_that_comes_later_is_looked_into_too(observer, train):
    train(make(), lambda model: model.loss(), 3)
    train(make(), lambda model: model.loss(), 3)
    steps = steps_of(observer).steps
    assert [step.aside for step in steps] == ["parts", "parts", "", "parts", "parts", ""]
    assert [step.counters.get("slots", 0) for step in steps] == [0, 0, 32, 0, 0, 32]


def test_another_optimizer_of_the_same_model_changes_nothing(observer, train):
    model = make()
    train(model, lambda model: model.loss(), 3)

    def renewed(model):
        loss = model.loss()
        train.finder._arm(torch.optim.SGD(model.parameters(), lr=0.0))
        return loss

    train(model, renewed, 3)
    assert [step.aside for step in steps_of(observer).steps] == ["parts", "parts", "", "", "", ""]


def test_parameters_are_asked_for_by_nobody_s_own_method(observer, train):
    model = make()
    model.head.parameters = lambda: [model.head.weight]
    train(model, lambda model: model.loss(), 3)
    assert steps_of(observer).steps[2].counters["slots"] == TOKENS.numel()


def test_hooks_that_listen_are_no_part_of_a_graph(observer, train, monkeypatch):
    """With fullgraph=True, whatever of ours is traced ends the script."""
    compiling, heard = [], []
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: bool(compiling))
    model = make()
    train(model, lambda model: model.loss(), 1)
    monkeypatch.setattr(Batches, "quietly", lambda *call: heard.append(call))
    model.head(torch.ones(1, 4))
    assert len(heard) == 1
    compiling.append(True)
    model.head(torch.ones(1, 4))
    assert len(heard) == 1


@pytest.mark.parametrize("armed", ["before the step", "in the step"])
def test_a_part_that_becomes_a_root_in_its_own_call_leaves_nothing_open(observer, train, armed):
    """A second optimizer has it alone; the hooks that it had as a part were met already, or are still met."""
    model = make()
    type(model).forward = type(model).loss
    train(model, lambda model: model(), 3)
    train.finder._asked = {id(model.encoder.embedding): weakref.ref(model.encoder.embedding)}
    if armed == "in the step":
        observer.data_asked()
    train.finder._arm(torch.optim.SGD(model.encoder.embedding.parameters(), lr=0.0))
    if armed == "before the step":
        observer._set_detail(False)
        observer._set_detail(True)
    model.encoder.embedding(TOKENS)
    assert (observer.forward_depth, train.hooks._root_depths, train.hooks._depths) == (0, [], [])
    assert len(observer.clock.stack) == 1
