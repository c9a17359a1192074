"""Changes to what is computed and to what the host does: each is credited where it was made, and no other."""

import random

import pytest

from stepprobe.analysis.outcome.comparison import examine
from tests.fakes.records import CLEAN, METHODS, FakeProcess, evidence
from tests.unit.outcome.planted import asked, credited, steps
from tests.unit.outcome.test_outcome import MODEL, judged

HEADY = {"forward.lm_head": 20, "forward.loss": 10, "backward.lm_head": 20}


def test_a_loss_in_chunks_is_no_loss_over_labelled_rows():
    counts = {"labelled": 400, "losses": 1, "loss_rows": 2048}
    before = steps(1, HEADY, counts)
    assert credited(before, steps(2, None, {**counts, "loss_rows": 400})) == ["loss.labelled_rows"]
    assert credited(before, steps(2, None, {**counts, "losses": 8})) == []
    report, found, _ = judged(before, steps(2, None, {**counts, "losses": 0, "loss_rows": 0}))
    assert found.undecided
    assert any("a loss in chunks could have done it" in note for note in report.notes)


# -- what comes once a step, or once a micro-step --


@pytest.mark.parametrize(
    ("remedy", "cost", "counts"),
    [
        ("train.once", {"forward.other": 10}, {"train_walks": 4, "train_walk_ns": 9_000_000}),
        ("forward.reuse", {"forward.mlp": 40}, {"no_grad_forwards": 4, "forwards": 8}),
    ],
)
def test_fewer_micro_steps_are_no_change_to_what_each_of_them_does(remedy, cost, counts):
    four = {"slots": 8192, "real": 8192, "labelled": 8192, "rows": 16, "backwards": 4, "forwards": 4, **counts}
    before = steps(1, cost, four)
    assert remedy not in credited(before, steps(2, cost, {name: count // 4 for name, count in four.items()}))
    gone = dict.fromkeys(counts, 0) | ({"forwards": 4} if "forwards" in counts else {})
    assert remedy in credited(before, steps(2, None, {**four, **gone}))


def test_a_larger_batch_does_not_clip_faster():
    """Clipping comes once a step: half as much for each of twice the tokens, and as much for a step."""
    before = steps(1, {"clip": 12})
    twice = {"slots": 4096, "real": 4096, "labelled": 4096, "rows": 8}
    larger = {name: 2 * ms for name, ms in CLEAN.items()}
    assert credited(before, steps(2, {**larger, "clip": 12}, twice)) == []
    assert credited(before, steps(2, {**larger, "clip": 1}, twice)) == ["clip.less"]


def test_another_optimizer_is_no_faster_path_of_the_same():
    before = steps(1, {"optimizer": 30}, optimizer="AdamW", optimizer_foreach=False)
    assert credited(before, steps(2, optimizer="AdamW", optimizer_foreach=True)) == ["optimizer.foreach"]
    assert credited(before, steps(2, optimizer="SGD", optimizer_foreach=False)) == []


def test_the_garbage_of_checkpointing_goes_with_it():
    before = steps(1, {"recompute": 30, "gc": 8})
    report, _, by_name = judged(before, steps(2, {"gc": 1}))
    assert list(by_name) == ["checkpointing.off"]
    assert any("“turn gradient checkpointing off" in note for note in report.notes)
    assert credited(before, steps(2, {"recompute": 30, "gc": 1})) == ["gc.less"]


def test_single_precision_is_no_bfloat16():
    before = FakeProcess(**METHODS, **MODEL, fp16=True, bf16=False)
    for number in range(80):
        before.step(CLEAN, {"slots": 2048, "real": 2048, "backwards": 1, "amp_skipped": int(number % 5 == 0)})
    before.end()
    for facts, expected in (({"fp16": False, "bf16": True}, ["amp.bfloat16"]), ({"fp16": False, "bf16": False}, [])):
        assert credited(before, steps(2, **facts)) == expected


def evaluating(seed, every, ms):
    noise, fake = random.Random(seed), FakeProcess(**METHODS, **MODEL)
    for number in range(160):
        spent = {name: one * noise.gauss(1, 0.01) for name, one in CLEAN.items()}
        fake.step({**spent, **({"eval": ms} if number % every == 0 else {})}, {"slots": 2048, "real": 2048})
    return fake.end()


def test_an_evaluation_that_is_faster_is_not_rarer():
    before = evaluating(1, 4, 200)
    assert credited(before, evaluating(2, 8, 200)) == ["eval.less"]
    assert judged(before, evaluating(2, 4, 80))[1].undecided


def ranks(seed, slow_ms, faster=1.0):
    made = []
    for rank in range(2):
        noise = random.Random(seed + rank)
        fake = FakeProcess(rank, 100 + rank, 2, **METHODS, **MODEL)
        own = slow_ms if rank else 0.0
        for _ in range(80):
            spent = {name: ms * faster * noise.gauss(1, 0.01) for name, ms in CLEAN.items()}
            spent["forward.mlp"] += own * faster
            spent["backward.other"] += (slow_ms - own) * faster
            fake.step(spent, {"slots": 2048, "real": 2048})
        made.append(fake.end())
    return made


def test_a_backward_that_is_faster_everywhere_evens_no_rank():
    def names(after):
        return [one.remedy for one in examine(evidence(*ranks(1, 30)), evidence(*after))[1].judged]

    assert names(ranks(3, 25, 0.7)) == []
    assert names(ranks(3, 2)) == ["rank.evened"]


def test_chunks_are_seen_in_the_calls_of_the_loss_and_labelled_rows_in_its_targets():
    counts = {"labelled": 2048, "losses": 1, "loss_rows": 2048}
    before = steps(1, HEADY, counts)
    chunks, fewer = {**counts, "losses": 8}, {**counts, "loss_rows": 400}
    seen = {
        way: [
            bool(asked(f"forecast.{name}", before, steps(2, None, after))) for name in ("chunked_loss", "labelled_rows")
        ]
        for way, after in (("chunks", chunks), ("fewer", fewer), ("both", {**chunks, "loss_rows": 400}))
    }
    assert seen == {"chunks": [True, False], "fewer": [False, True], "both": [True, True]}


def test_a_site_of_each_micro_step_is_not_rarer_in_fewer_of_them():
    sites = [{"syncs": [("train.py:10 step", "item", calls, calls, calls * 100_000)]} for calls in (320 * 8, 80 * 8)]
    four, one = {"backwards": 4, "forwards": 4, "slots": 8192, "real": 8192, "rows": 16}, {}
    before = steps(1, {"sync": 8}, four, sites=sites[0])
    assert "sync.kept" not in credited(before, steps(2, {"sync": 2}, one, sites=sites[1]))
    assert "sync.kept" in credited(before, steps(2, {"sync": 2}, four, sites=sites[1]))


def test_a_line_that_few_samples_missed_is_not_gone():
    def sampled(hits, others):
        line = "train.py:30 wait"
        other = ("backward.mlp", "train.py:9 main", "torch/nn/x.py:1 f", others)
        return {"samples": [other, *([("unattributed", line, line, hits)] if hits else [])]}

    before = steps(1, {"unattributed": 30}, sites=sampled(20, 300))
    assert credited(before, steps(2, {"unattributed": 30}, sites=sampled(0, 20))) == []
    assert credited(before, steps(2, {"unattributed": 30}, sites=sampled(0, 200))) == ["line.removed"]
