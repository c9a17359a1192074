"""Classes that are unlike most: never wrongly right, never wrongly wrong. Known of transformers 5.24."""

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import msgspec  # noqa: E402

from stepprobe import assert_masks  # noqa: E402
from stepprobe.analysis.attention.derive import mask_answer  # noqa: E402
from stepprobe.instruments.attention import tiny  # noqa: E402
from stepprobe.model.attention import CAPTURE, read_capture, write_capture  # noqa: E402
from tests.fakes.attention import config, evidence, holds, inputs, kinds, report, value  # noqa: E402

TEXT = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "pad_token_id": 0,
}


def test_a_window_that_a_class_does_not_heed_is_no_leak_where_it_hides_nothing():
    short = report(config("moshi", sliding_window=64, max_position_embeddings=64), length=48)
    assert short.verdict == "ok"
    assert (value(short, "twin.leak_pairs"), value(short, "mask.layers_correct")) == (0, 2)
    assert any("does not heed the window of its config" in note for note in short.notes)


def test_a_window_that_a_class_does_not_heed_is_a_leak_where_it_should_hide():
    long = report(config("moshi", sliding_window=16, max_position_embeddings=64), length=48)
    assert long.verdict == "fail"
    assert "mask.wrong" in kinds(long)
    assert value(long, "mask.layers_correct") == 0
    assert holds(long, 5) == "NO"


def test_a_mask_that_is_learned_is_slow_and_not_wrong():
    told = report(config("doge"))
    assert (told.verdict, kinds(told)) == ("warn", {"mask.lost"})
    assert holds(told, 12) == "NO"  # costs time: said, and no reason to fail
    assert ", learned)" in told.findings[0].title


def test_a_mask_that_is_learned_and_of_another_type_is_wrong():
    kept = evidence(config("doge"))
    whole = read_capture(kept.files[CAPTURE])
    calls = tuple(msgspec.structs.replace(call, mask_dtype="float64") for call in whole.calls)
    changed = write_capture(msgspec.structs.replace(whole, calls=calls))
    odd = mask_answer(msgspec.structs.replace(kept, files={CAPTURE: changed}))
    assert (odd.verdict, holds(odd, 12)) == ("fail", "NO")


def test_a_class_that_says_it_looks_both_ways_may():
    told = report(config("xlm"))
    assert (told.verdict, kinds(told)) == ("warn", {"kernel.eager"})
    causal = report(config("xlm", causal=True))
    assert value(causal, "mask.layers_correct") == 2


@pytest.mark.parametrize("kind", ["mvp", "trocr", "xglm"])
def test_hand_written_attention_over_folded_heads_is_seen(kind):
    told = report(config(kind, is_decoder=True), size=2)
    assert (told.verdict, kinds(told)) == ("warn", {"kernel.eager"})
    assert (value(told, "mask.layers"), value(told, "mask.fallback_layers")) == (2, 2)


def test_the_heads_are_told_from_the_rows():
    captured = read_capture(evidence(config("mvp", is_decoder=True), size=2).files[CAPTURE])
    assert {call.query for call in captured.calls} == {(2, config("mvp").decoder_attention_heads, 24, 0)}


def test_layers_that_are_run_several_times_are_as_many_as_their_calls():
    told = report(config("hrm_text", num_hidden_layers=2, num_layers_per_stack=None))
    assert told.verdict == "ok"
    layers = value(told, "mask.layers")
    assert layers == value(told, "mask.layers_correct") > 4


def test_a_call_too_few_of_layers_run_several_times_is_not_measured():
    kept = evidence(config("hrm_text", num_hidden_layers=2, num_layers_per_stack=None))
    whole = read_capture(kept.files[CAPTURE])
    cut = write_capture(msgspec.structs.replace(whole, calls=whole.calls[1:]))
    told = mask_answer(msgspec.structs.replace(kept, files={CAPTURE: cut}))
    assert told.verdict == "not measured"


def test_attention_over_something_else_than_tokens_is_left_out():
    small = config("inkling2_text")
    assert small.unpadded_vocab_size == tiny.VOCABULARY  # else the twin's logits take a gigabyte
    told = report(small)
    assert told.verdict == "warn"
    assert value(told, "mask.layers") == value(told, "mask.layers_correct") == 2
    assert "kernel.eager" in kinds(told)


@pytest.mark.parametrize("kind", ["xLSTMConfig", "MambaConfig", "Mamba2Config"])
def test_a_class_without_attention_says_so(kind):
    if not hasattr(transformers, kind):
        pytest.skip(f"this transformers has no {kind}")
    told = report(getattr(transformers, kind)())
    assert told.headline.startswith("no attention layer; nothing leaks")


def test_cross_attention_that_text_does_not_reach_is_no_missing_layer():
    text = {**TEXT, "num_hidden_layers": 3, "cross_attention_layers": [1], "rope_scaling": {"rope_type": "default"}}
    told = report(transformers.MllamaConfig(text_config=text))
    assert told.verdict == "ok"
    assert value(told, "mask.layers") == 2


@pytest.fixture
def forward(monkeypatch):
    """Put another forward in the place of Qwen3's; it is given the original."""
    original = transformers.Qwen3ForCausalLM.forward
    return lambda made: monkeypatch.setattr(transformers.Qwen3ForCausalLM, "forward", made(original))


def test_a_class_that_takes_no_positions_is_measured_without_them(forward):
    """BART's decoder and its kin, before transformers 5."""

    def without(original):
        def run(self, input_ids=None, attention_mask=None, use_cache=None):
            return original(self, input_ids=input_ids, attention_mask=attention_mask, use_cache=use_cache)

        return run

    forward(without)
    told = report(config("qwen3"), "ones")
    assert (told.verdict, value(told, "mask.layers_correct")) == ("ok", 2)
    packed = report(config("qwen3"), "packed")
    assert packed.verdict == "not measured"
    assert "unexpected keyword argument 'position_ids'" in packed.headline


def test_a_class_that_adds_to_its_positions_in_place_changes_no_batch(forward):
    """XGLM, before transformers 5."""

    def adding(original):
        def run(self, input_ids=None, position_ids=None, **more):
            if position_ids is not None:
                position_ids += 2
            return original(self, input_ids=input_ids, position_ids=position_ids, **more)

        return run

    forward(adding)
    batch = inputs("packed")
    before = batch["position_ids"].clone()
    assert value(assert_masks(config("qwen3"), batch), "mask.layers_correct") == 2
    assert torch.equal(batch["position_ids"], before)


def test_a_class_that_mixes_rows_is_not_measured(forward):
    """Llama 4 of transformers 4.54: a token's experts are weighed by those of other rows."""

    def mixing(original):
        def run(self, **given):
            output = original(self, **given)
            rows = torch.arange(len(output.logits), dtype=output.logits.dtype, device=output.logits.device)
            output.logits = output.logits + rows[:, None, None]
            return output

        return run

    forward(mixing)
    told = report(config("qwen3"), "ones")
    assert told.verdict == "not measured"
    assert "like rows of a batch get unlike logits" in told.headline
