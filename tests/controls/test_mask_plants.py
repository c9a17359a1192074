"""Bugs that were public once, planted into transformers' masks, and caught."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from transformers import masking_utils  # noqa: E402
from transformers.modeling_utils import AttentionInterface  # noqa: E402

from tests.fakes.attention import config, holds, kinds, report, value  # noqa: E402


@pytest.fixture
def sdpa(monkeypatch):
    """Replace transformers' SDPA function by one that changes its arguments first."""
    original = AttentionInterface._global_mapping["sdpa"]

    def plant(change):
        def attend(module, query, key, value, attention_mask, **kwargs):
            attention_mask, more = change(attention_mask)
            return original(module, query, key, value, attention_mask, **{**kwargs, **more})

        monkeypatch.setitem(AttentionInterface._global_mapping, "sdpa", attend)

    return plant


def caught(told, kind, number):
    """The plant made the verdict fail, with its own kind of finding and assertion."""
    assert told.verdict == "fail", told.headline
    assert kind in kinds(told)
    assert holds(told, number) == "NO"
    return True


def test_a_window_that_is_off_by_one(monkeypatch):
    """transformers#39408, in the mask instead of the kernel's argument."""
    overlay = masking_utils.sliding_window_overlay
    for off in (-1, 1):
        monkeypatch.setattr(masking_utils, "sliding_window_overlay", lambda window, off=off: overlay(window + off))
        assert caught(report(config("mistral")), "mask.wrong", 5)


def test_a_window_that_is_ignored(monkeypatch):
    """transformers PR#30127: SDPA took no notice of the window."""
    plain = lambda window: masking_utils.causal_mask_function  # noqa: E731
    monkeypatch.setattr(masking_utils, "sliding_window_causal_mask_function", plain)
    told = report(config("mistral"))
    assert caught(told, "mask.wrong", 5)
    assert value(told, "twin.leak_pairs") > 0


def test_a_window_of_nothing(monkeypatch):
    """unsloth-zoo PR#635: a window of zero, nothing visible."""
    overlay = masking_utils.sliding_window_overlay
    monkeypatch.setattr(masking_utils, "sliding_window_overlay", lambda window: overlay(0))
    assert caught(report(config("mistral")), "mask.wrong", 8)


def test_documents_that_are_ignored(monkeypatch):
    """axolotl PR#3796, transformers PR#46634: packed rows leaked under SDPA."""
    monkeypatch.setattr(masking_utils, "find_packed_sequence_indices", lambda position_ids: None)
    told = report(config("qwen3"), "packed")
    assert caught(told, "mask.document_leak", 4)
    assert (value(told, "mask.leak_pairs"), value(told, "twin.leak_pairs")) == (140, 140)


@pytest.mark.parametrize("batch", ["ones", "right"])
def test_attention_both_ways(monkeypatch, sdpa, batch):
    """transformers#48745, #48748: decoders that saw the future."""
    monkeypatch.setattr(masking_utils, "causal_mask_function", lambda batch, head, query, key: query >= 0)
    sdpa(lambda mask: (mask, {"is_causal": False}))
    told = report(config("qwen3"), batch)
    assert caught(told, "mask.future_leak", 1)
    if batch == "ones":
        assert holds(told, 11) == "NO"


def test_an_inverted_mask(sdpa):
    """rasbt/LLMs-from-scratch PR#1062; the mask cannot be read any more, so the twin has to see it."""
    sdpa(lambda mask: (~mask if mask is not None else None, {}))
    told = report(config("qwen3"), "packed")
    assert caught(told, "mask.future_leak", 1)
    assert value(told, "mask.layers_correct") == 0


def test_padding_that_replaces_causality(monkeypatch):
    """unslothai/unsloth-zoo PR#963: the model read the answer."""
    monkeypatch.setattr(masking_utils, "and_masks", lambda *functions: functions[-1])
    assert caught(report(config("qwen3"), "right", size=2), "mask.future_leak", 1)


def test_padding_that_is_not_masked(monkeypatch):
    monkeypatch.setattr(masking_utils, "and_masks", lambda *functions: functions[0])
    assert caught(report(config("qwen3"), "left", size=2), "mask.wrong", 3)


def test_image_blocks_that_never_reach_attention(monkeypatch):
    """transformers#39389, #38053."""
    from transformers import Gemma3Config
    from transformers.models.gemma3 import modeling_gemma3

    text = {name: part for name, part in config("gemma3_text").to_dict().items() if not name.startswith("_")}
    ids = torch.zeros(1, 24, dtype=torch.long)
    ids[0, 4:8] = 1
    nothing = lambda *given: lambda batch, head, query, key: (query < 0) & (key < 0)  # noqa: E731
    if hasattr(masking_utils, "blockwise_overlay"):
        monkeypatch.setattr(masking_utils, "blockwise_overlay", nothing)
    else:  # before transformers 5 the class makes them itself
        monkeypatch.setattr(modeling_gemma3, "token_type_ids_mask_function", nothing)
    assert caught(report(Gemma3Config(text_config=text), token_type_ids=ids), "mask.wrong", 7)


def test_a_mask_that_is_always_made(monkeypatch):
    """transformers PR#30070, #41856: no skip, so no fast path; it costs time and nothing else."""
    monkeypatch.setattr(masking_utils, "_ignore_causal_mask_sdpa", lambda *given: False)
    told = report(config("qwen3"))
    assert (told.verdict, kinds(told), holds(told, 9)) == ("warn", {"mask.lost_for_nothing"}, "NO")
    short = report(config("mistral"), length=4)  # its window of 6 has no part in it
    assert "makes this mask always" in short.findings[0].remedies[0].action


def test_a_causal_encoder(sdpa):
    """transformers PR#42820: no mask and is_causal, where the config wants both ways."""
    if not hasattr(masking_utils, "create_bidirectional_mask"):
        pytest.skip("decoders of this transformers take no notice of is_causal in their config")
    both_ways = config("qwen3", is_causal=False)
    assert report(both_ways).verdict == "ok"
    sdpa(lambda mask: (mask, {"is_causal": True}))
    told = report(both_ways)
    assert caught(told, "mask.wrong", 5)
    assert value(told, "mask.missing_pairs") == 24 * 23 / 2


@pytest.mark.parametrize(("fill", "kind"), [(1.0, "mask.future_leak"), (torch.finfo(torch.float32).min, "mask.wrong")])
def test_four_dimensional_masks_of_the_user(fill, kind):
    """A mask of 0 and 1 is added to the scores and hides nothing; one of float32 beside bfloat16 is pytorch#191612."""
    mask = torch.full((1, 1, 24, 24), fill).triu(1)
    told = report(config("qwen3"), attention_mask=mask)
    assert told.verdict == "fail"
    assert kind in kinds(told)


@pytest.mark.parametrize("control", ["bidirectional", "causal"])
def test_a_control_of_the_twin_that_does_not_fire_is_not_measured(monkeypatch, control):
    from stepprobe.instruments.attention import twin

    forced = twin._forced
    monkeypatch.setattr(twin, "_forced", lambda how: forced(None if how == control else how))
    silent = lambda self, ids, batch, how: self._logits(ids, batch, None)[0]  # noqa: E731
    monkeypatch.setattr(twin.Twin, "_without_attention", silent)
    told = report(config("qwen3"), "packed")
    assert told.verdict == "not measured"
    assert f"twin.forced_{control}" in told.headline


def test_a_call_that_is_not_seen_is_not_measured(monkeypatch):
    from stepprobe.instruments.attention.calls import Calls

    record = Calls._record
    monkeypatch.setattr(Calls, "_record", lambda self, *given: None if len(self.made) else record(self, *given))
    told = report(config("qwen3"))
    assert told.verdict == "not measured"
    assert "1 modules made an attention call, the config declares 2 layers" in told.headline
