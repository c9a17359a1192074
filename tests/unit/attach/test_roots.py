"""The hooks of a root beside ``torch.compile``."""

import json

import pytest

from stepprobe.adapters import plain
from stepprobe.instruments.attach.batches import Batches
from stepprobe.instruments.attach.modules import ModuleHooks
from stepprobe.instruments.attach.observer import Observer
from stepprobe.instruments.attach.pieces import Pieces
from stepprobe.instruments.attach.roots import RootFinder

torch = pytest.importorskip("torch")


def test_a_model_that_is_compiled_when_it_has_its_hooks_is_all_that_is_compiled(tmp_path):
    """The optimizer is made first: the hooks lie on the model inside, where dynamo meets all that they call."""
    observer = Observer(str(tmp_path), None)
    batches = Batches(observer, torch)
    hooks = ModuleHooks(observer, batches, torch)
    finder = RootFinder(observer, hooks, Pieces(observer, hooks, batches, torch), torch)
    observer.on.begin.append(lambda: json.dumps({"of": ["the", "library"]}))

    class Model(torch.nn.Sequential):
        def forward(self, ids):
            return super().forward(ids)

    model = Model(torch.nn.Embedding(8, 4), torch.nn.Linear(4, 8))
    finder._remembering(torch.nn.Module.named_parameters)(model)
    finder._arm(torch.optim.SGD(model.parameters(), lr=0.0))
    compiled = finder._noticing(torch.compile)(model, backend="eager")
    plain.attach_rules(observer, torch._dynamo.trace_rules)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    for _ in range(3):
        compiled(torch.ones(2, 3, dtype=torch.int64))
        observer.optimizer_ended()
    assert observer.counters["forwards"] == 1
    assert torch._dynamo.utils.counters["frames"]["total"] == 1


def test_a_model_whose_optimizer_is_made_in_a_step_is_found(tmp_path):
    observer = Observer(str(tmp_path), None)
    batches = Batches(observer, torch)
    hooks = ModuleHooks(observer, batches, torch)
    finder = RootFinder(observer, hooks, Pieces(observer, hooks, batches, torch), torch)
    observer.running = True
    model = torch.nn.Linear(4, 8)
    finder._remembering(torch.nn.Module.named_parameters)(model)
    finder._arm(torch.optim.SGD(model.parameters(), lr=0.0))
    model(torch.ones(2, 4))
    assert hooks.is_root(model)


@pytest.mark.parametrize("ids_first", [True, False])
def test_of_several_roots_the_one_that_gets_ids_says_that_slots_are_counted(tmp_path, ids_first):
    observer = Observer(str(tmp_path), None)
    batches = Batches(observer, torch)
    calls = [(torch.ones(2, 3, dtype=torch.int64),), (torch.ones(2, 4),)]
    for call in calls if ids_first else reversed(calls):
        batches.forward(call, {})
    assert not str(observer.facts.get("counts.slots", "counted")).startswith("not observed")


def test_another_optimizer_of_a_root_opens_its_forward_once(tmp_path):
    """Else what the script does behind its forward would be booked to it, up to the optimizer step."""
    observer = Observer(str(tmp_path), None)
    batches = Batches(observer, torch)
    hooks = ModuleHooks(observer, batches, torch)
    finder = RootFinder(observer, hooks, Pieces(observer, hooks, batches, torch), torch)
    model = torch.nn.Linear(4, 8)
    finder._remembering(torch.nn.Module.named_parameters)(model)
    for _ in range(2):
        finder._arm(torch.optim.SGD(model.parameters(), lr=0.0))
        model(torch.ones(2, 4))
        assert observer.gate.open
        assert observer.forward_depth == 0
