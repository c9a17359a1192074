"""A hook in which the thread was put aside says nothing about what hooks cost."""

from stepprobe.instruments.attach.budget import Budget
from stepprobe.instruments.attach.observer import HOOKS_OF_A_PART, PUT_ASIDE_NS, Observer


def coldness_after(*hooks_ns: int) -> float:
    """Return what a budget learns from the hooks of one step, at a unit cost of 20 µs for both hooks of a part."""
    observer = Observer("", None)
    for ns in hooks_ns:
        observer.hook_took(ns)
    budget = Budget()
    budget.unit_cost_ns["inside"] = 20_000.0
    budget.feel(len(hooks_ns) / HOOKS_OF_A_PART - observer.put_aside / HOOKS_OF_A_PART, observer.inside_ns)
    return budget.coldness


def test_a_hook_that_was_interrupted_does_not_make_all_hooks_dear() -> None:
    quiet = [10_000] * 100
    assert coldness_after(*quiet) == 1.0
    assert coldness_after(*quiet, *[4 * PUT_ASIDE_NS] * 20) == 1.0


def test_hooks_that_are_dear_by_themselves_are_believed() -> None:
    assert coldness_after(*[20_000] * 100) > 1.2


def test_nothing_is_learnt_where_every_hook_was_interrupted() -> None:
    assert coldness_after(*[2 * PUT_ASIDE_NS] * 10) == 1.0
