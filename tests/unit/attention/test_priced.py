"""What a mask costs in a run: at most what attention takes without its projections, where a trace tells them apart."""

import pytest

from stepprobe.analysis.attention.findings import BELOW_WINDOW, _layers
from stepprobe.analysis.attention.in_run import priced
from stepprobe.analysis.findings.view import most_of
from stepprobe.analysis.ledger.job import read_job
from stepprobe.model.estimate import Estimate, exact
from stepprobe.model.finding import Finding, Remedy
from tests.fakes.records import clean_process, evidence

ATTENDED = Estimate(value=15.0, unit="ms", n=2, method="traced")
ATTENTION_MS = 36.0
"""Of a clean step, forward and backward."""


def found(kind="mask.lost", attended=ATTENDED, layers=4, **facts):
    remedies = tuple(
        Remedy(name=name, action=name, predicted=exact(layers, "layers", layers)) for name in ("", BELOW_WINDOW)
    )
    finding = Finding(
        kind=kind,
        title="",
        where="layers 0–3 (Qwen3Attention)",
        cost=exact(layers, "layers", layers),
        share=layers / 4,
        remedies=remedies,
    )
    return priced(finding, read_job(evidence(clean_process(**facts))).main, attended)


@pytest.mark.parametrize("kind", ["mask.lost", "mask.lost_for_nothing"])
def test_a_mask_costs_at_most_what_attention_takes_without_its_projections(kind):
    told = found(kind)
    assert told.cost.bound
    assert (told.cost.low, told.cost.high) == (0.0, 15.0)
    mask, shorter = told.remedies
    assert mask.predicted == told.cost
    assert mask.fixed.value == pytest.approx(ATTENTION_MS - 15.0, rel=0.01)
    assert shorter.predicted.high == pytest.approx(ATTENTION_MS, rel=0.01), "shorter rows have less to project, too"
    assert shorter.fixed is None


@pytest.mark.parametrize(
    ("kind", "attended"), [("mask.lost", None), ("kernel.eager", ATTENDED), ("mask.lost", exact(400.0, "ms", 2))]
)
def test_without_a_trace_that_tells_the_whole_attention_is_the_ceiling(kind, attended):
    told = found(kind, attended)
    assert told.cost.high == pytest.approx(ATTENTION_MS, rel=0.01)
    assert "the part of the mask is not known" in told.cost.method
    assert [one.predicted for one in told.remedies] == [told.cost] * 2


def test_masks_of_few_layers_cost_no_more_than_those_layers():
    assert most_of(found(layers=1).cost) == pytest.approx(ATTENTION_MS / 4, rel=0.01)


def test_on_a_card_and_where_an_answer_is_wrong_there_is_no_price_in_time():
    assert found(device="cuda:0").cost.unit == "layers"
    assert found("mask.wrong").cost.unit == "layers"


@pytest.mark.parametrize(
    ("layers", "said", "words"),
    [(1, "lose the fast path", "1 layer loses the fast path"), (1, "are", "1 layer is"), (2, "fall", "2 layers fall")],
)
def test_one_layer_is_no_plural(layers, said, words):
    assert _layers([object()] * layers, said) == words
