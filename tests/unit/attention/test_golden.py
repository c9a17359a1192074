"""Verdicts that are known of transformers 5.24 with torch 2.13: fast paths that are lost, documents that leak."""

import msgspec
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from stepprobe.instruments.attention import models  # noqa: E402
from stepprobe.instruments.attention.configs import of_type  # noqa: E402
from stepprobe.instruments.attention.observed import Way  # noqa: E402
from tests.fakes import attention as fake  # noqa: E402
from tests.fakes.attention import cell, config, holds, kinds, report, value  # noqa: E402
from tests.unit.attention.test_capture import Spy  # noqa: E402

WINDOW = 6
since_5 = pytest.mark.skipif(transformers.__version__ < "5", reason="transformers 4 does otherwise")


@since_5
@pytest.mark.parametrize(
    ("length", "found", "seen", "fast"),
    [(5, set(), "causal", 2), (6, {"mask.lost_for_nothing"}, "causal", 0), (7, {"mask.lost"}, "causal+window(6)", 0)],
)
def test_a_window_is_made_at_its_own_length_for_nothing(length, found, seen, fast):
    told = report(config("mistral"), length=length)
    assert (kinds(told), cell(told, "sees")) == (found, seen)
    assert (value(told, "mask.layers"), value(told, "mask.layers_fast")) == (2, fast)
    assert value(told, "mask.layers_correct") == 2
    assert told.verdict == ("warn" if found else "ok")


def test_the_cure_for_a_window_at_its_length_is_named():
    told = report(config("mistral"), length=6)
    cut, dropped = told.findings[0].remedies
    assert cut.action.startswith("max_length=5: rows cut to window − 1 = 5 tokens")
    assert "a row of 6 loses 1 of its tokens (16.7%)" in cut.action
    assert dropped.action == "drop the window from the config"


def test_one_pad_token_costs_the_whole_batch_the_fast_path():
    batch = {"attention_mask": torch.ones(4, 24, dtype=torch.long)}
    batch["attention_mask"][3, 23] = 0
    padded = report(config("qwen3"), "ones", size=4, **batch)
    assert kinds(padded) == {"mask.lost"}
    assert (value(padded, "mask.layers_fast"), value(padded, "mask.layers_correct")) == (0, 2)
    assert padded.findings[0].remedies[0].action.startswith("1 short row of 4 cost all the fast path: sort by length")
    batch["attention_mask"][:, 23] = 0
    told = report(config("qwen3"), "ones", size=4, **batch).findings[0].remedies[0].action
    assert told.startswith("4 short rows of 4 cost all the fast path: no row is as long as the batch: pad to the long")
    whole = report(config("qwen3"), "ones", size=4)
    assert (whole.verdict, value(whole, "mask.layers_fast")) == ("ok", 2)


def test_left_padding_is_right_and_slow():
    told = report(config("qwen3"), "left", size=2)
    assert told.verdict == "warn"
    assert "left_pad(6)" in cell(told, "sees")
    assert value(told, "mask.layers_correct") == 2


def test_packed_rows_without_a_cache_stay_apart():
    told = report(config("qwen3"), "packed")
    assert told.verdict == "warn"
    assert cell(told, "sees") == "causal+blocks(2)"
    assert (value(told, "mask.leak_pairs"), value(told, "twin.leak_pairs")) == (0, 0)


@pytest.mark.parametrize(
    ("kind", "cache", "cure"),
    [("packed", None, "use_cache=False"), ("packed-ones", False, "no all-ones attention_mask")],
)
def test_a_cache_or_an_all_ones_mask_makes_packed_documents_leak(kind, cache, cure):
    told = report(config("qwen3"), kind, cache=cache)
    assert (told.verdict, kinds(told)) == ("fail", {"mask.document_leak"})
    assert (value(told, "mask.leak_pairs"), value(told, "twin.leak_pairs")) == (140, 140)
    assert cure in told.findings[0].remedies[0].action
    assert holds(told, 4) == "NO"


@pytest.mark.parametrize("checkpointing", [False, True])
def test_gradient_checkpointing_drops_the_cache_before_the_mask_is_made(checkpointing):
    """In transformers 4.54 to 5.24 it does, with gradients on, and the leak is gone: probe and real model agree."""
    from transformers import AutoModelForCausalLM

    from stepprobe import assert_masks
    from stepprobe.errors import AssertionFailed

    with models.quiet():
        real = AutoModelForCausalLM.from_config(config("qwen3"), attn_implementation="sdpa", **of_type(torch.float32))
        if checkpointing:
            real.train().gradient_checkpointing_enable()
        with Spy() as spy:
            real.train()(**fake.inputs("packed", cache=None))
    assert [(causal, mask is None) for _, causal, _, mask in spy.calls] == [(not checkpointing,) * 2] * 2
    if checkpointing:
        told = assert_masks(real, fake.inputs("packed", cache=None))
        assert (value(told, "mask.leak_pairs"), value(told, "twin.leak_pairs")) == (0, 0)
    else:
        with pytest.raises(AssertionFailed, match="no pair across documents"):
            assert_masks(real, fake.inputs("packed", cache=None))


@pytest.mark.parametrize("kind", ["gpt_oss", "afmoe"])
def test_classes_that_do_not_read_packed_positions_leak(kind):
    told = report(config(kind), "packed")
    assert told.verdict == "fail"
    assert "mask.document_leak" in kinds(told)
    assert (value(told, "mask.leak_pairs"), value(told, "twin.leak_pairs")) == (140, 140)


@since_5
def test_sinks_attend_eagerly():
    told = report(config("gpt_oss"))
    assert kinds(told) == {"kernel.eager"}
    assert "softmax sinks" in told.findings[0].title
    assert value(told, "mask.fallback_layers") == 2


@since_5
def test_falcon_always_makes_a_plain_causal_mask():
    told = report(config("falcon"))
    assert kinds(told) == {"kernel.fallback"}, "without the mask, its one key head would be refused all the same"
    assert (value(told, "mask.layers_fast"), value(told, "mask.layers_correct")) == (0, value(told, "mask.layers"))
    assert holds(told, 9) == "NO"


def test_block_ids_of_text_alone_cost_the_fast_path():
    from transformers import Gemma3Config

    text = config("gemma3_text").to_dict()
    small = Gemma3Config(text_config={name: part for name, part in text.items() if not name.startswith("_")})
    ids = torch.zeros(1, 24, dtype=torch.long)
    told = report(small, token_type_ids=ids)
    assert "mask.lost_for_nothing" in kinds(told)
    assert value(told, "mask.layers_correct") == value(told, "mask.layers") == 2
    ids[0, 4:8] = 1
    told = report(small, token_type_ids=ids)
    assert told.verdict == "warn"
    assert "image blocks(1)" in cell(told, "sees", 1)
    assert holds(told, 7) == "yes"


def test_compiling_makes_every_mask():
    if tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 14):
        pytest.skip("torch 2.14 keeps is_causal under compile")
    told = report(config("qwen3"), way=Way(compiled=True))
    assert kinds(told) == {"mask.lost_for_nothing"}
    assert "upgrade torch" in told.findings[0].remedies[0].action
    assert compiled_calls() == {("mask", False)}


def compiled_calls():
    """What a real ``torch.compile`` puts into its graph."""
    from transformers import AutoModelForCausalLM

    seen = set()

    def backend(graph, examples):
        for node in graph.graph.nodes:
            if node.op == "call_function" and "scaled_dot_product" in str(node.target):
                seen.add(("mask" if node.kwargs.get("attn_mask") is not None else "none", node.kwargs.get("is_causal")))
        return graph.forward

    with models.quiet(), torch.no_grad():
        model = AutoModelForCausalLM.from_config(config("qwen3"), attn_implementation="sdpa", **of_type(torch.float32))
        torch.compile(model.train(), backend=backend)(**fake.inputs())
    return seen


def test_linear_attention_leaks_over_packed_documents_and_only_the_twin_sees_it():
    told = report(config("qwen3_5_text"), "packed")
    assert (told.verdict, value(told, "mask.leak_pairs")) == ("fail", 0)
    assert value(told, "twin.leak_pairs") > 0
    leak = next(finding for finding in told.findings if finding.kind == "mask.document_leak")
    assert "linear_attention" in leak.title
    assert "no mask shows it" in leak.title


def test_linear_attention_refuses_padding_free_batches_without_its_kernels():
    told = report(config("qwen3_5_text"), "padding-free")
    assert told.verdict == "not measured"
    assert "causal_conv1d" in told.headline or "causal-conv1d" in told.headline


def test_linear_attention_without_its_kernels_is_a_fallback():
    told = report(config("qwen3_5_text"))
    slow = next(finding for finding in told.findings if finding.kind == "kernel.fallback")
    assert "flash-linear-attention" in slow.remedies[0].action
    assert value(told, "mask.fallback_layers") == 1


def test_a_kernel_that_stays_fused_beside_a_mask_is_said_to_compute_all_pairs():
    told = fake.mask.derive(fake.evidence(config("qwen3"), "packed", card="h100"))
    assert told.headline.startswith(
        "fast kernel on 2/2 layers (h100, predicted), for a mask computing all pairs on 2 ·"
    )
    assert kinds(told) == {"mask.lost"}
    plain = fake.mask.derive(fake.evidence(config("qwen3"), "ones", card="h100"))
    assert plain.headline.startswith("fast kernel on 2/2 layers (h100, predicted) ·")


def of_cards(kind="right", dropout=0.1):
    """What is found of a tiny GPT-2 with attention dropout, by card."""
    seen = fake.evidence(config("gpt2", attn_pdrop=dropout), kind, size=4)
    return {card: fake.mask.derive(msgspec.structs.replace(seen, options={"card": card})) for card in ("cpu", "a100")}


def test_dropout_and_no_mask_keeps_a_call_of_the_cpu_from_flash():
    cpu = of_cards()["cpu"]
    assert [finding.kind for finding in cpu.findings] == ["kernel.fallback"], "no mask would bring flash back"
    slow = cpu.findings[0]
    assert "flash: dropout" in slow.title
    assert slow.remedies[0].action.startswith("attention dropout 0 (attn_pdrop or attention_dropout = 0.0 in")
    assert slow.remedies[0].action.endswith("the kernel is flash then, with the mask as it is")
    assert slow.remedies[0].predicted.value == value(cpu, "mask.layers")
    whole = of_cards("ones")["cpu"].findings[0]
    assert whole.remedies[0].action.endswith("the kernel is flash then")


def test_flash_takes_dropout_on_a_card_so_there_the_mask_alone_is_to_blame():
    card = of_cards()["a100"]
    assert kinds(card) == {"mask.lost"}
    assert "short row" in card.findings[0].remedies[0].action
    assert of_cards("ones")["a100"].verdict == "ok"


def test_without_dropout_the_mask_is_to_blame_on_the_cpu_too():
    assert kinds(of_cards(dropout=0.0)["cpu"]) == {"mask.lost"}


def test_a_card_without_flash_loses_none_to_a_mask():
    told = fake.mask.derive(fake.evidence(config("qwen3"), "right", size=4, card="t4"))
    assert kinds(told) == {"kernel.fallback"}
    assert "compute capability 7.5 < 8.0" in told.findings[0].title
    assert told.findings[0].remedies == ()


def test_padding_to_a_multiple_is_blamed_at_batch_size_1_alone():
    one = {"attention_mask": torch.tensor([[1] * 23 + [0]])}
    action = report(config("qwen3"), "ones", **one).findings[0].remedies[0].action
    assert action.endswith("pad to the longest row, without pad_to_multiple_of")
    some = report(config("qwen3"), "right", size=4).findings[0].remedies[0].action
    assert some == "one short row costs the whole batch the fast path: sort by length or go padding-free"
