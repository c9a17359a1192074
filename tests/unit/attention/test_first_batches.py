"""Of several batches of a run, the one whose attention was counted is told of: ``stepprobe check RUN`` asks it, too."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from stepprobe.analysis.attention import in_run  # noqa: E402
from stepprobe.analysis.ledger.job import read_job  # noqa: E402
from stepprobe.model.attention import CAPTURE  # noqa: E402
from stepprobe.model.first_calls import FORETOLD, CallLine, KeptCall, ModelLine  # noqa: E402
from tests.fakes import attention as fake  # noqa: E402
from tests.fakes.records import clean_process, evidence  # noqa: E402

MODEL = ModelLine(
    number=1, name="Qwen3ForCausalLM", known=True, config="", attention="sdpa", dtype="float32", compiled=False,
    checkpointing=False, card="cpu",
)  # fmt: skip


def foretold(short):
    """The capture of four rows, as many of them short."""
    mask = torch.ones(4, 24, dtype=torch.long)
    mask[:short, 20:] = 0
    return fake.evidence(fake.config("qwen3"), "ones", size=4, attention_mask=mask).files[CAPTURE]


@pytest.mark.parametrize(("counted", "short"), [(1, 2), (2, 3)])
def test_the_batch_whose_attention_was_counted_is_told_of(monkeypatch, counted, short):
    seen = {counted: {"float32 bool 0 24x24": 2}}
    calls = {one: CallLine(model=1, training=True, arguments={}, attended=seen.get(one)) for one in (1, 2)}
    kept = tuple(KeptCall(number=one, model=MODEL, call=call) for one, call in calls.items())
    monkeypatch.setattr(in_run, "read_first_calls", lambda _: kept)
    files = {FORETOLD.format(number=one): foretold(one + 1) for one in (1, 2)}
    found = in_run.run_masks(files, read_job(evidence(clean_process())).main)
    assert found.notes[0].endswith("in 1 of them its calls of attention were counted, and were those"), found.notes
    (lost,) = found.slow
    assert lost.remedies[0].action.startswith(f"{short} short rows of 4 cost all the fast path")
