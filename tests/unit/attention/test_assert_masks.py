"""``stepprobe.assert_masks``: what a training script passes, judged before the first step."""

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import stepprobe  # noqa: E402
from stepprobe.errors import AssertionFailed, NotObserved, UsageError  # noqa: E402
from stepprobe.instruments.attention import models  # noqa: E402
from tests.fakes.attention import config, inputs, value  # noqa: E402


@pytest.fixture
def model():
    with models.quiet():
        return transformers.AutoModelForCausalLM.from_config(config("qwen3"), attn_implementation="sdpa")


def test_a_right_batch_gives_a_report(model):
    told = stepprobe.assert_masks(model, inputs("packed") | {"labels": torch.ones(1, 24, dtype=torch.long)})
    assert value(told, "mask.layers_correct") == 2
    assert stepprobe.assert_masks(config("qwen3"), inputs()).verdict in ("ok", "warn")


def test_the_loop_that_says_nothing_about_the_cache_leaks(model):
    with pytest.raises(AssertionFailed, match="see other documents of the row: 140 pairs"):
        stepprobe.assert_masks(model, inputs("packed", cache=None))


def test_wrappers_are_looked_through(model):
    peft = pytest.importorskip("peft")
    with models.quiet():
        wrapped = peft.get_peft_model(model, peft.LoraConfig(target_modules=["q_proj"], task_type="CAUSAL_LM"))
    assert value(stepprobe.assert_masks(wrapped, inputs()), "mask.layers") == 2
    parallel = torch.nn.Module()
    parallel.module = model
    assert value(stepprobe.assert_masks(parallel, inputs()), "mask.layers") == 2


def test_the_model_is_left_as_it_was(model):
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    hooks = dict(torch.nn.modules.module._global_forward_hooks)
    stepprobe.assert_masks(model, inputs())
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert dict(torch.nn.modules.module._global_forward_hooks) == hooks
    assert torch.isfinite(model(**inputs()).logits).all()


def test_nothing_random_is_drawn_from_the_users_generator(model):
    torch.manual_seed(7)
    first = torch.rand(1)
    torch.manual_seed(7)
    stepprobe.assert_masks(model, inputs())
    assert torch.equal(torch.rand(1), first)


@pytest.mark.parametrize(
    ("given", "message"),
    [(7, "neither a model nor a config"), (torch.nn.Linear(2, 2), "has no config of transformers")],
)
def test_what_is_no_model_is_refused(given, message):
    with pytest.raises(UsageError, match=message):
        stepprobe.assert_masks(given, inputs())


def test_a_batch_without_tokens_is_refused(model):
    with pytest.raises(UsageError, match="no input_ids"):
        stepprobe.assert_masks(model, {"labels": torch.ones(1, 4)})


def test_no_verdict_is_no_silence():
    with pytest.raises(NotObserved, match="the twin was not run"):
        stepprobe.assert_masks(config("qwen3_5_text"), inputs("padding-free"))


def test_the_package_has_no_other_lazy_name():
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = stepprobe.nonsense
