"""Loss and remedies on a real tiny model: the same loss and gradient each way, and nothing left behind."""

import copy
import dataclasses
import math
import warnings

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from stepprobe.instruments.experiments import loss, remedies  # noqa: E402
from stepprobe.instruments.experiments.bench import Bench  # noqa: E402
from stepprobe.instruments.experiments.driver import FINISHED, run_experiments  # noqa: E402
from stepprobe.instruments.experiments.machine import Machine  # noqa: E402
from stepprobe.instruments.experiments.plan import Plan  # noqa: E402
from stepprobe.model.experiments import decode_experiments  # noqa: E402
from tests.fakes.harness import HEADER, ListJournal, sealed  # noqa: E402

VOCABULARY = 97
SHAPE = (3, 24)


def tiny():
    torch.manual_seed(0)
    config = transformers.Qwen3Config(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16, max_position_embeddings=256,
    )  # fmt: skip
    return transformers.Qwen3ForCausalLM(config).train()


class Harness:
    """A plain loop's micro-step: half of each row is a prompt without labels."""

    def __init__(self, model, prompt=0.5, call=None):
        self.model, self.prompt = model, prompt
        self.call = call or (lambda batch: model(**batch).loss)

    def batch(self, rows, length, real=None):
        ids = torch.randint(0, VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(rows * length))
        labels, mask = ids.clone(), torch.ones_like(ids)
        labels[:, : int(length * self.prompt)] = -100
        for row, count in enumerate(real or ()):
            labels[row, count:], mask[row, count:] = -100, 0
        return {"input_ids": ids, "labels": labels, "attention_mask": mask}

    def step(self, batch):
        found = self.call(batch)
        found.backward()
        return found.detach()

    def root(self):
        return self.model

    def trainable_modules(self):
        return [self.model]


def bench(harness, **plan):
    plan = Plan(**{"seconds": 60, "batches": ((24, 10, 20),), "longest": 256, "vocabulary": VOCABULARY, **plan})
    return Bench(harness, ListJournal(), plan, torch, Machine(torch, harness.root()))


def ran(case):
    case.enter()
    try:
        given = case.prepare()
        found = case.run(given)
        return None if found is None else float(found), case.gradient and case.gradient(given)
    finally:
        case.leave()


def state(model):
    """Return what a remedy could leave behind: attributes, hooks, settings."""
    hooks = [len(m._forward_hooks) + len(m._forward_pre_hooks) + len(m._backward_hooks) for m in model.modules()]
    attributes = [{k: v for k, v in vars(m).items() if not k.startswith("_") or "grad" in k} for m in model.modules()]
    return hooks, [{k: repr(v)[:80] for k, v in one.items()} for one in attributes], copy.deepcopy(vars(model.config))


@pytest.mark.parametrize("function", [True, False])
def test_loss_and_gradient_are_equal_in_chunks_and_in_one_piece(function):
    asked = bench(Harness(tiny()))
    head = loss.caught(asked, SHAPE)
    head.function = head.function if function else None
    found = {}
    for case in loss.cases(asked, head, SHAPE):
        asked._without_gradients()
        if case.experiment != "loss_metric":
            found[case.variant] = ran(case)
    assert set(found) == {loss.MODELS if function else loss.OURS, "69", "35", "18", "9", "5"}
    whole = found.pop(loss.MODELS if function else loss.OURS)
    assert whole[1] > 0
    for value in found.values():
        assert value == pytest.approx(whole, rel=1e-5)


def test_the_loss_alone_is_the_loss_of_the_step():
    asked = bench(Harness(tiny()))
    head = loss.caught(asked, SHAPE)
    step = asked.step("remedy", *SHAPE)
    assert float(head.whole(head.fresh_states())) == pytest.approx(float(step.run(step.prepare())), rel=1e-6)


def test_a_chunk_that_forgets_rows_would_be_seen():
    asked = bench(Harness(tiny()))
    head = loss.caught(asked, SHAPE)
    whole = float(head.whole(head.fresh_states()))
    head.labels = head.labels.clone()
    head.labels[:, -1] = -100
    assert float(head.in_chunks(head.fresh_states(), 9)) != pytest.approx(whole, rel=1e-5)


def test_autocast_of_the_step_is_that_of_the_loss():
    model = tiny()

    def casting(batch):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return model(**batch).loss

    head = loss.caught(bench(Harness(model, call=casting)), SHAPE)
    assert head.autocast is torch.bfloat16
    assert head.fresh_logits().dtype is torch.bfloat16
    given = []
    head.layer.register_forward_hook(lambda _, __, logits: given.append(logits.dtype))
    for run in (head.whole, lambda states: head.in_chunks(states, 30)):
        run(head.fresh_states())
    assert set(given) == {torch.bfloat16}
    plain = loss.caught(bench(Harness(tiny())), SHAPE)
    assert plain.autocast is None
    assert plain.fresh_logits().dtype is torch.float32


def test_a_fused_loss_that_passes_the_layer_by_is_caught_at_the_decoder():
    model = tiny()

    def fused(batch):
        states = model.model(batch["input_ids"]).last_hidden_state[:, :-1]
        logits = torch.nn.functional.linear(states, model.lm_head.weight)
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch["labels"][:, 1:].flatten())

    head = loss.caught(bench(Harness(model, call=fused)), SHAPE)
    assert tuple(head.states.shape) == (*SHAPE, 32)


class Own(torch.nn.Module):
    """A model that is nobody's: the layer is found by the width of the vocabulary."""

    def __init__(self, width=VOCABULARY):
        super().__init__()
        self.embed, self.out = torch.nn.Embedding(VOCABULARY, 8), torch.nn.Linear(8, width)

    def forward(self, ids):
        return self.out(self.embed(ids))


def own_loss(model):
    return lambda batch: model(batch["input_ids"]).logsumexp(-1).mean()


def test_the_layer_of_any_model_is_found_by_its_width_and_its_loss_is_ours():
    model = Own()
    head = loss.caught(bench(Harness(model, call=own_loss(model))), SHAPE)
    assert head.layer is model.out
    assert head.function is None
    assert loss.cases(bench(Harness(model)), head, SHAPE)[0].variant == loss.OURS


@pytest.mark.parametrize(
    ("model", "batch", "why"),
    [
        (Own(width=5), None, "output layer was not found"),
        (Own(), {"input_ids": torch.zeros(SHAPE, dtype=torch.long)}, "no labels"),
    ],
)
def test_what_cannot_be_told_apart_is_said(model, batch, why):
    harness = Harness(model, call=own_loss(model))
    if batch:
        harness.batch = lambda *_: batch
    assert why in loss.caught(bench(harness), SHAPE)


def test_a_layer_that_is_not_called_is_said():
    model = Own()
    harness = Harness(model, call=lambda batch: model.embed(batch["input_ids"]).mean())
    assert "so its hidden states are unknown" in loss.caught(bench(harness), SHAPE)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_remedies_give_the_same_loss_and_leave_nothing_behind(checkpointing):
    model = tiny()
    if checkpointing:
        with warnings.catch_warnings():  # newer versions have another name for it
            warnings.simplefilter("ignore")
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    asked = bench(Harness(model))
    before = state(model)
    found = {}
    for case in remedies.cases(asked, SHAPE):
        asked._without_gradients()
        found[case.variant] = ran(case)
        assert state(model) == before
    other = remedies.CHECKPOINTING_OFF if checkpointing else remedies.CHECKPOINTING_ON
    assert set(found) == {remedies.NONE, other, remedies.LABELLED_ROWS}
    for value in found.values():
        assert value == pytest.approx(found[remedies.NONE], rel=1e-5)


def test_checkpointing_really_runs_the_layers_twice_and_labelled_rows_really_computes_fewer():
    model = tiny()
    asked = bench(Harness(model))
    seen = {"rows": [], "layers": 0}
    model.lm_head.register_forward_hook(lambda _, given, __: seen["rows"].append(given[0][..., 0].numel()))

    def counting(*_):
        seen["layers"] += 1

    model.model.layers[0].mlp.register_forward_pre_hook(counting)
    runs = {}
    for case in remedies.cases(asked, SHAPE):
        seen["layers"] = 0
        ran(case)
        runs[case.variant] = (seen["layers"], seen["rows"][-1])
    assert runs[remedies.NONE] == (1, 3 * 24)
    assert runs[remedies.CHECKPOINTING_ON] == (2, 3 * 24)
    assert runs[remedies.LABELLED_ROWS] == (1, 3 * 12)


def test_where_every_row_has_a_label_there_are_no_others_to_leave_out():
    variants = [case.variant for case in remedies.cases(bench(Harness(tiny(), prompt=0)), SHAPE)]
    assert remedies.LABELLED_ROWS not in variants


def test_a_switch_is_turned_back_when_the_step_fails():
    model = tiny()

    def failing(batch):
        if model.model.layers[0].gradient_checkpointing:
            raise RuntimeError("not with me")
        return model(**batch).loss

    asked, before = bench(Harness(model, call=failing)), state(model)
    cases = {case.variant: case for case in remedies.cases(asked, SHAPE)}
    assert asked.pilot(cases[remedies.CHECKPOINTING_ON]) is None
    (dropped,) = asked.journal.of("dropped", variant=remedies.CHECKPOINTING_ON)
    assert dropped["text"] == "RuntimeError: not with me"
    assert state(model) == before


@pytest.fixture
def few_blocks(monkeypatch):
    for name in ("BLOCKS", "MOST"):
        monkeypatch.setattr(f"stepprobe.instruments.experiments.bench.{name}", 5)


def test_a_whole_run_on_a_real_model(few_blocks):
    model = tiny()
    journal, before = ListJournal(), state(model)
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    plan = Plan(seconds=120, anyway=True, batches=((24, 10, 20), (24, 24, 24)), longest=256, vocabulary=VOCABULARY)
    assert run_experiments(Harness(model), journal, plan, torch) == FINISHED
    decode_experiments("experiments", sealed([("harness", HEADER), *journal.lines]))
    asked = {(line["experiment"], line["variant"]) for line in journal.of("measured")}
    assert {name for name, _ in asked} >= {"scaling", "heldout", "padded", "unpadded", "loss", "loss_chunk", "remedy"}
    kinds = [kind for kind, _ in journal.lines]
    assert kinds.index("quiet") < kinds.index("limit") < kinds.index("structure") < kinds.index("measured")
    assert len({line["length"] for line in journal.of("counted")}) >= 2
    assert all(line["flops"] and not line.get("failure") for line in journal.of("counted"))
    assert {line.get("block") for line in journal.of("limit")} > {None, 0, 1}
    assert state(model) == before
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_remedy_that_changes_the_loss_is_dropped(monkeypatch, few_blocks):
    plain = remedies.LabelledRows._loss
    monkeypatch.setattr(remedies.LabelledRows, "_loss", lambda self, *args, **more: 2 * plain(self, *args, **more))
    journal = ListJournal()
    plan = Plan(seconds=120, anyway=True, batches=((24, 24, 24),), longest=256, vocabulary=VOCABULARY)
    run_experiments(Harness(tiny()), journal, plan, torch)
    (dropped,) = journal.of("dropped", variant=remedies.LABELLED_ROWS)
    assert "it is another step" in dropped["text"]
    assert not journal.of("measured", variant=remedies.LABELLED_ROWS)


def windowed(window):
    torch.manual_seed(0)
    config = transformers.Gemma3TextConfig(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16, max_position_embeddings=256, sliding_window=window,
        layer_types=["sliding_attention", "full_attention"],
    )  # fmt: skip
    return transformers.Gemma3ForCausalLM(config).train()


@pytest.mark.parametrize(("window", "length"), [(24, 23), (10, 9), (25, None), (1, None)])
def test_below_a_window_that_rows_reach_the_step_is_asked(window, length):
    asked = remedies.cases(bench(Harness(windowed(window))), SHAPE)
    assert [case.length for case in asked if case.variant == remedies.BELOW_WINDOW] == [length] * (length is not None)


def test_a_window_of_no_layer_is_none():
    model = windowed(16)
    model.config.layer_types = ["full_attention"] * 2
    assert remedies.BELOW_WINDOW not in [case.variant for case in remedies.cases(bench(Harness(model)), SHAPE)]


def test_the_loss_below_a_window_is_another_one_and_yet_measured(monkeypatch, few_blocks):
    monkeypatch.setattr("stepprobe.instruments.experiments.driver.SAME_LOSS", 1e-7)
    journal = ListJournal()
    plan = Plan(seconds=120, anyway=True, batches=((24, 24, 24),), longest=256, vocabulary=VOCABULARY)
    run_experiments(Harness(windowed(6)), journal, plan, torch)
    lines = journal.of("measured", variant=remedies.BELOW_WINDOW)
    beside = journal.of("measured", variant=remedies.NONE)
    assert {line["length"] for line in lines} == {5}
    assert {line["block"] for line in lines} == {line["block"] for line in beside}
    assert lines[0]["loss"] != pytest.approx(beside[0]["loss"], rel=1e-4)


def test_a_gradient_that_is_no_number_is_not_written_as_one():
    """JSON has no infinity: a line with it could not be read, and with it the whole run."""
    asked = bench(Harness(tiny()))
    case = loss.cases(asked, loss.caught(asked, SHAPE), SHAPE)[0]
    assert asked._attempt(dataclasses.replace(case, gradient=lambda _: math.inf)) is None
    (dropped,) = asked.journal.of("dropped", reason="loss")
    assert "the norm of the gradient is inf" in dropped["text"]


def test_the_output_layer_is_the_one_of_the_vocabulary_or_where_that_is_not_known_the_one_of_its_name():
    class Plain(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = torch.nn.Embedding(30, 8)
            self.head = torch.nn.Linear(8, 30)
            self.late = torch.nn.Linear(8, 8)

    model = Plain()
    assert loss.output_layer(model, 30) is model.head
    assert loss.output_layer(model, None) is model.head
    assert loss.output_layer(model, 31) is None, "a head of another width makes no logits of this vocabulary"
    del model.head
    assert loss.output_layer(model, None) is None
