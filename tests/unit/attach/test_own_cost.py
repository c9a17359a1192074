"""What wrappers cost that make no event of the clock is counted, too."""

import pytest

from stepprobe.adapters.plain import _scripts_own
from stepprobe.instruments.attach.batches import Batches
from stepprobe.instruments.attach.budget import Budget
from stepprobe.instruments.attach.clock import INDEX, UNATTRIBUTED
from stepprobe.instruments.attach.modules import ModuleHooks
from stepprobe.instruments.attach.observer import FORWARD, OPTIMIZER, Observer
from stepprobe.instruments.attach.tensors import counted
from stepprobe.instruments.attach.unit_costs import unit_costs_ns

torch = pytest.importorskip("torch")


@pytest.fixture
def observer():
    observer = Observer("", None)
    observer.gate.open = True
    return observer


@pytest.mark.parametrize(
    ("counts", "ns"),
    [
        ((10, 0, 0, 0, 0), 10),
        ((4, 1, 0, 0, 0), 1000),
        ((2, 0, 1, 0, 0), 100),
        ((0, 0, 0, 3, 0), 15),
        ((0, 0, 0, 0, 4), 8),
    ],
)
def test_each_kind_of_call_has_its_cost(counts, ns):
    budget = Budget()
    budget.unit_cost_ns.update({"event": 1, "part": 1000, "sync": 100, "pass": 5, "read": 2})
    assert budget.cost_of(*counts) == ns


def test_what_an_optimizer_reads_is_counted_as_that(observer):
    item = counted(observer, torch.compiler, "item", INDEX["sync"])(torch._C.TensorBase.item)
    one = torch.ones(1)
    observer.clock.stack = [OPTIMIZER]
    assert (item(one), observer.reads, observer.counters) == (1.0, 1, {})
    observer.clock.stack = [FORWARD]
    assert (item(one), observer.reads, observer.counters) == (1.0, 1, {"syncs": 1})


def test_a_part_that_is_let_through_is_counted(observer):
    double = ModuleHooks(observer, Batches(observer, torch), torch).part("attention")(lambda x: 2 * x)
    observer.clock.stack = [FORWARD]
    assert (double(3), observer.passes, observer.clock.events) == (6, 1, 0)
    observer.detail = True
    assert (double(3), observer.passes, observer.clock.events) == (6, 1, 2)


def test_all_unit_costs_are_measured():
    units = unit_costs_ns(torch)
    assert set(units) == set(Budget().unit_cost_ns)
    assert all(ns > 0 for ns in units.values())


def test_a_step_s_cost_holds_them(tmp_path, observer):
    observer.journal.step = lambda record, *_: costs.append(record["self_ns"])
    costs = []
    observer.budget.unit_cost_ns.update({"pass": 5e9, "read": 7e9})
    observer.passes, observer.reads = 2, 1
    observer._write_step(observer.clock.cut(), "boundary")
    assert costs == [17_000_000_000]


def test_a_closure_is_the_scripts_own_code(observer):
    """The optimizer's account ends where it calls a closure, and goes on behind it; what waits in there is counted."""
    item = counted(observer, torch.compiler, "item", INDEX["sync"])(torch._C.TensorBase.item)
    optimizer, one, booked = object(), torch.ones(1), []
    observer.optimizer_begins()

    def closure():
        booked.append(observer.clock.stack[-1])
        return item(one)

    (same, first), named = _scripts_own(observer)((optimizer, closure), {"closure": closure, "scaler": None})
    assert same is optimizer
    assert (first(), named["closure"](), named["scaler"]) == (1.0, 1.0, None)
    assert booked == [UNATTRIBUTED, UNATTRIBUTED]
    assert (observer.clock.stack[-1], observer.reads, observer.counters) == (OPTIMIZER, 0, {"syncs": 2})
    assert _scripts_own(observer)((optimizer, None), {}) is None


def test_measuring_is_heard_by_no_hook_of_the_script_s():
    """Hooks on all modules, and on all tensors that are saved for the backward."""
    heard = []
    on_modules = torch.nn.modules.module
    handles = [
        on_modules.register_module_forward_pre_hook(lambda *_: heard.append("before")),
        on_modules.register_module_full_backward_hook(lambda *_: heard.append("behind")),
    ]
    try:
        with torch.autograd.graph.saved_tensors_hooks(lambda tensor: heard.append("saved") or tensor, lambda one: one):
            units = unit_costs_ns(torch)
    finally:
        for handle in handles:
            handle.remove()
    assert heard == []
    assert units["part"] > 0
