"""Arithmetic and counter agree to the last digit, and the counter leaves the user's model alone."""

import logging

import pytest

from stepprobe.analysis.limits.flops import total
from stepprobe.instruments.experiments.flop_counter import count_flops
from tests.unit.profile.models import CONFIGS, decoder_of, described, make, products

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::RuntimeWarning")
"""PEFT speaks to transformers in words of yesterday, and of experts that a rank pattern does not name."""


def counted(model, rows=2, length=24):
    line = count_flops(torch, model, rows, length)
    assert "failure" not in line, line
    return sum(line["flops"].values())


@pytest.mark.parametrize("name", CONFIGS)
def test_arithmetic_is_the_counter_to_the_last_digit(name):
    model = make(name)
    assert total(products(model, 2, 24)) == counted(model)
    assert total(products(model, 1, 7)) == counted(model, 1, 7)


@pytest.mark.parametrize("name", ["llama, shared keys", "qwen3-moe", "gemma2, every other window", "llama, tied head"])
@pytest.mark.parametrize(
    "frozen",
    [("embed",), ("embed", "layers.0."), ("mlp",), ("self_attn",), ("q_proj", "embed"), ("norm", "embed", "k_proj")],
)
def test_frozen_weights_cost_what_the_counter_says(name, frozen):
    model = make(name)
    for weight, parameter in model.named_parameters():
        parameter.requires_grad_(not any(part in weight for part in frozen))
    assert total(products(model, 2, 24)) == counted(model)


@pytest.mark.parametrize("name", ["qwen3, wide heads", "mistral, window", "qwen3-moe"])
@pytest.mark.parametrize("targets", [["q_proj", "v_proj"], ["o_proj"], "all-linear"])
@pytest.mark.parametrize("checkpointed", [False, True])
def test_adapters_cost_what_the_counter_says(name, targets, checkpointed):
    peft = pytest.importorskip("peft")
    model = peft.get_peft_model(make(name), peft.LoraConfig(r=4, target_modules=targets, task_type="CAUSAL_LM"))
    if name == "qwen3-moe" and targets == "all-linear":  # adapters of experts: their products are PEFT's own affair
        assert any("experts" in reason for reason in decoder_of(model).not_read)
        assert counted(model) > 0
        return
    if checkpointed:
        model.gradient_checkpointing_enable()
        model.enable_input_require_grads()
    assert total(products(model, 2, 24)) == counted(model)


def test_a_head_that_is_saved_beside_adapters():
    peft = pytest.importorskip("peft")
    settings = peft.LoraConfig(r=4, target_modules=["q_proj"], modules_to_save=["lm_head"], task_type="CAUSAL_LM")
    model = peft.get_peft_model(make("llama"), settings)
    assert total(products(model, 2, 24)) == counted(model)


def test_nothing_of_the_users_model_is_touched():
    model = make("mixtral").eval()
    calls = []
    model.model.layers[0].mlp.register_forward_hook(lambda *seen: calls.append(seen))
    inner = model.forward
    model.forward = lambda *given, **named: calls.append(given) or inner(*given, **named)
    weights = {name: weight.clone() for name, weight in model.state_dict().items()}
    model.lm_head.weight.grad = torch.ones_like(model.lm_head.weight)
    state = torch.get_rng_state()
    chosen = model.config._attn_implementation, model.config._experts_implementation
    assert counted(model) == total(products(model, 2, 24))
    assert calls == []
    assert torch.equal(torch.get_rng_state(), state)
    assert (model.config._attn_implementation, model.config._experts_implementation) == chosen
    assert not model.training
    assert [name for name, weight in model.named_parameters() if weight.grad is not None] == ["lm_head.weight"]
    assert all(torch.equal(weights[name], weight) for name, weight in model.state_dict().items())


def test_dropout_draws_no_random_number():
    model = make("gpt2").train()
    assert model.config.resid_pdrop > 0
    state = torch.get_rng_state()
    counted(model)
    assert torch.equal(torch.get_rng_state(), state)


class Attending(torch.nn.Module):
    """Attention of a plain loop: nobody can switch it to eager."""

    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(64, 32)
        self.out = torch.nn.Linear(32, 64, bias=False)

    def forward(self, ids):
        hidden = self.embed(ids).unflatten(-1, (2, 16)).transpose(1, 2)
        mixed = torch.nn.functional.scaled_dot_product_attention(hidden, hidden, hidden, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(2))


def test_attention_that_pytorchs_counter_passes_over_on_the_cpu_is_counted_and_said():
    from torch.utils.flop_counter import FlopCounterMode

    model, rows, length = Attending(), 3, 10
    head, attention = 6 * rows * length * 32 * 64, 3 * 4 * rows * length * length * 32
    with FlopCounterMode(display=False) as bare:
        model(torch.zeros(rows, length, dtype=torch.long)).sum().backward()
    assert bare.get_total_flops() == head  # the fault: attention is missing
    line = count_flops(torch, model, rows, length)
    assert sum(line["flops"].values()) == head + attention
    assert "scaled_dot_product_attention" in line["corrected"]


def test_a_model_that_looks_at_its_values_is_refused_in_words():
    class Looking(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = torch.nn.Embedding(8, 4)

        def forward(self, ids):
            return self.embed(ids) * self.embed(ids).sum().item()

    line = count_flops(torch, Looking(), 1, 4)
    assert line["flops"] == {}
    assert "DataDependent" in line["failure"]


def test_a_count_that_fails_says_nothing_on_the_users_screen(caplog):
    class Mismatched(Attending):
        def forward(self, ids):
            return self.embed(ids) * torch.ones(7)

    logging.getLogger("torch._subclasses.fake_tensor").propagate = True
    line = count_flops(torch, Mismatched(), 1, 4)
    assert "broadcast" in line["failure"]
    assert caplog.records == []
    assert logging.root.manager.disable == 0


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_what_wraps_the_model_is_taken_off():
    model = make("llama")
    assert counted(torch.compile(model)) == counted(model)
    assert described(torch.compile(model)).config["model_type"] == "llama"


def test_operators_are_counted_by_part():
    line = count_flops(torch, make("qwen3-moe"), 1, 8)
    assert {"attention", "moe", "norm", "lm_head", "embed"} <= set(line["operators"])
    assert line["operators"]["lm_head"] < line["operators"]["attention"]
    assert line["backward_operators"] > sum(line["operators"].values()) // 2


def test_what_is_written_before_the_first_measurement():
    import msgspec

    from stepprobe.instruments.experiments.prelude import prelude
    from stepprobe.model.experiments import ExperimentRecord

    written = list(prelude(torch, make("llama"), [(1, 8), (1, 16), (1, 8)]))
    read = [msgspec.convert({"type": kind, **line}, ExperimentRecord) for kind, line in written]
    kinds = [kind for kind, _ in written]
    assert kinds == ["limit"] * (len(kinds) - 3) + ["structure", "counted", "counted"]
    assert {one.dtype for one in read[:-3]} == {"float32"}
    assert read[-1].length == 16


def losses(between):
    """Train with dropout; ask in the middle."""
    from stepprobe.instruments.experiments.prelude import prelude

    model = make("gpt2").train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    torch.manual_seed(1)
    found = []
    for step in range(4):
        ids = torch.randint(0, 512, (2, 16))
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.item())
        if between and step == 1:
            assert list(prelude(torch, model, [(1, 8)], autocast="bfloat16"))
    return found


def test_training_goes_on_bit_equal_after_the_prelude():
    assert losses(between=True) == losses(between=False)
