"""What is captured without weights is what a real run hands to SDPA: calls, shapes, flags, every mask element."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from torch.overrides import TorchFunctionMode  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402

from stepprobe.analysis.attention.reference import seen_in_batch  # noqa: E402
from stepprobe.instruments.attention import batches, lean, models, tiny  # noqa: E402
from stepprobe.instruments.attention.calls import watch  # noqa: E402
from stepprobe.instruments.attention.configs import Config, of_type  # noqa: E402
from tests.fakes import attention as fake  # noqa: E402

TYPES = (
    *("qwen3", "mistral", "gemma3_text", "llama4_text", "qwen3_5_text", "cohere2"),
    *("olmo3", "qwen2", "smollm3", "llama", "gemma4_text", "phi3"),
)
KINDS = ("none", "ones", "right", "left", "packed", "packed-ones")


class Spy(TorchFunctionMode):
    """Lets a real model run and keeps what it hands to SDPA."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function is torch.nn.functional.scaled_dot_product_attention:
            shapes = tuple(tuple(tensor.shape) for tensor in args[:3])
            self.calls.append((shapes, kwargs["is_causal"], kwargs.get("enable_gqa", False), kwargs["attn_mask"]))
        return function(*args, **kwargs)


@pytest.fixture(scope="module")
def pair():
    """The same tiny model twice: real, and without storage."""
    built = {}

    def pair(kind):
        if kind not in built:
            small = fake.config(kind)
            with models.quiet():
                torch.manual_seed(0)
                single = of_type(torch.float32)
                real = AutoModelForCausalLM.from_config(small, attn_implementation="sdpa", **single).train()
                bare = models.build(Config(small), "sdpa", torch.float32)
            lean.leave_out(bare)
            built[kind] = real, bare
        return built[kind]

    return pair


def as_matrix(mask):
    """Every element of a captured mask."""
    keys = torch.arange(mask.keys)
    rows = []
    for row in range(len(mask.batch)):
        seen = seen_in_batch(mask, row)
        first, end = torch.from_numpy(seen.first), torch.from_numpy(seen.end)
        rows.append(((keys >= first[..., None]) & (keys < end[..., None])).any(0))
    return torch.stack(rows)[:, None]


@pytest.mark.parametrize("batch", KINDS)
@pytest.mark.parametrize("kind", TYPES)
def test_capture_equals_a_real_run(pair, kind, batch):
    real, bare = pair(kind)
    given = batches.make(batch, 2, tiny.LENGTH) | {"use_cache": False}
    with Spy() as spy, torch.no_grad(), models.quiet():
        real(**given)
        calls = watch(bare, given)
    assert spy.calls
    assert len(spy.calls) == len(calls.made)
    for (shapes, is_causal, gqa, mask), call in zip(spy.calls, calls.made, strict=True):
        assert shapes == (call.query, call.key, call.value)
        assert (is_causal, gqa) == (call.is_causal, call.gqa)
        assert (mask is None) == (call.mask is None)
        if mask is not None:
            assert torch.equal(mask, as_matrix(calls.caught.masks[call.mask]))


def test_the_comparison_sees_a_mask_that_is_off_by_one(pair, monkeypatch):
    from transformers import masking_utils

    _, bare = pair("mistral")
    given = batches.make("none", 2, tiny.LENGTH) | {"use_cache": False}
    with models.quiet():
        right = watch(bare, given)
        overlay = masking_utils.sliding_window_overlay
        monkeypatch.setattr(masking_utils, "sliding_window_overlay", lambda window: overlay(window + 1))
        wrong = watch(bare, given)
    first, second = (as_matrix(calls.caught.masks["mask1"]) for calls in (right, wrong))
    assert not torch.equal(first, second)


def test_masks_that_a_model_makes_by_itself_are_read_or_called_opaque(pair):
    _, bare = pair("qwen3")
    triangle = torch.ones(2, 1, 24, 24, dtype=torch.bool).tril()
    given = batches.make("none", 2, 24) | {"use_cache": False, "attention_mask": triangle}
    with models.quiet():
        calls = watch(bare, given)
    assert torch.equal(as_matrix(calls.caught.masks[calls.made[0].mask]), triangle)
    bare_mask = torch.empty(2, 1, 24, 24, dtype=torch.bool, device="meta")
    with models.quiet():
        calls = watch(bare, given | {"attention_mask": bare_mask})
    assert "computes it" in calls.caught.masks[calls.made[0].mask].opaque
