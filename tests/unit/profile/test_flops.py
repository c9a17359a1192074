"""Model FLOPs by arithmetic: masks, conventions, what is not trained, what runs twice."""

import json

import pytest

from stepprobe.analysis.lengths.cost import MODEL, choose
from stepprobe.analysis.limits.decoder import Layer, read_decoder
from stepprobe.analysis.limits.flops import hardware, micro_step, pairs, total
from stepprobe.errors import EvidenceError

QWEN3 = {
    "model_type": "qwen3",
    "vocab_size": 2048,
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "layer_types": ["full_attention"] * 4,
}
"""4 layers of 4 heads of 32: 6·N·tokens is 3.2212e9 at 2 x 256, attention three times 2.684e8."""


def attention(products):
    return total(product for product in products if product.pairwise)


def seen(length, layer):
    """Count the pairs one by one."""
    counts = {
        "full": lambda i: i + 1,
        "sliding": lambda i: min(i + 1, layer.size),
        "chunked": lambda i: i % layer.size + 1,
        "bidirectional": lambda i: length,
    }
    return sum(counts[layer.kind](i) for i in range(length))


@pytest.mark.parametrize("length", [1, 5, 7, 64, 4096])
@pytest.mark.parametrize("kind", ["full", "sliding", "chunked", "bidirectional"])
@pytest.mark.parametrize("size", [1, 2, 5, 512, 9000])
def test_pairs_are_those_of_the_mask(length, kind, size):
    layer = Layer(kind, size)
    assert pairs(length, layer) == seen(length, layer)


def test_known_pairs():
    assert pairs(5) == 15
    assert pairs(5, Layer("sliding", 2)) == 9
    assert pairs(4096, Layer("sliding", 512)) == sum(min(i + 1, 512) for i in range(4096))


def test_a_known_model():
    decoder = read_decoder(QWEN3)
    square, real = (micro_step(decoder, 2, 256, convention) for convention in ("square", "real"))
    assert total(square) == 4_026_531_840
    assert attention(square) == 805_306_368
    assert f"{total(real):.4e}" == "3.6255e+09"


@pytest.mark.parametrize("length", [1, 16, 16384])
def test_causal_attention_over_the_square(length):
    decoder = read_decoder(QWEN3)
    ratio = attention(micro_step(decoder, 1, length, "real")) / attention(micro_step(decoder, 1, length, "square"))
    assert ratio == (length + 1) / (2 * length)
    if length == 16384:
        assert f"{1 / ratio:.4g}" in ("2", "2.0")


def test_packed_documents_see_only_themselves():
    decoder = read_decoder(QWEN3)
    whole, packed = micro_step(decoder, 1, 256), micro_step(decoder, 1, 256, documents=[100, 156])
    assert attention(packed) * pairs(256) == attention(whole) * (pairs(100) + pairs(156))
    assert total(whole) - attention(whole) == total(packed) - attention(packed)
    for convention, documents in (("square", [10]), ("real", [200, 100])):
        with pytest.raises(ValueError, match="documents"):
            micro_step(decoder, 1, 256, convention, documents=documents)


def test_windows_by_layer():
    kinds = ["sliding_attention", "full_attention", "chunked_attention", "sliding_attention"]
    config = {**QWEN3, "layer_types": kinds, "sliding_window": 16, "attention_chunk_size": 32}
    by_layer = {
        product.layer: product.forward
        for product in micro_step(read_decoder(config), 1, 256)
        if product.name == "scores"
    }
    wanted = [
        pairs(256, Layer("sliding", 16)),
        pairs(256),
        pairs(256, Layer("chunked", 32)),
        pairs(256, Layer("sliding", 16)),
    ]
    assert [by_layer[layer] for layer in range(4)] == [2 * 4 * 32 * count for count in wanted]


def test_rows_without_a_label_cost_no_head():
    decoder = read_decoder(QWEN3)
    all_rows, half = micro_step(decoder, 2, 256), micro_step(decoder, 2, 256, head_rows=256)
    assert total(all_rows) - total(half) == 6 * 256 * 128 * 2048


def test_what_runs_twice_is_in_the_hardware_figure_alone():
    decoder = read_decoder(QWEN3)
    made = micro_step(decoder, 2, 256, "square")
    scores = sum(product.forward for product in made if product.pairwise)
    assert hardware(made, False, False) == total(made)
    assert hardware(made, True, False) - total(made) == scores // 2  # 3.5 times the forward, not 3
    layers = sum(product.forward for product in made if product.layer >= 0)
    assert hardware(made, False, True) - total(made) == layers


def test_shared_key_heads_make_attention_no_cheaper():
    alone = micro_step(read_decoder({**QWEN3, "num_key_value_heads": 4}), 1, 64)
    assert attention(alone) == attention(micro_step(read_decoder(QWEN3), 1, 64))
    assert total(alone) > total(micro_step(read_decoder(QWEN3), 1, 64))


def test_only_active_experts_count():
    config = {**QWEN3, "num_experts": 64, "num_experts_per_tok": 2, "moe_intermediate_size": 384}
    mixed = micro_step(read_decoder(config), 1, 64)
    dense = total(product for product in micro_step(read_decoder(QWEN3), 1, 64) if product.part == "mlp")
    experts = total(product for product in mixed if product.part == "moe" and product.name != "router")
    assert experts == 2 * dense


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"kv_lora_rank": 512}, "MLA"),
        ({"layer_types": ["linear_attention"] * 3 + ["full_attention"]}, "linear_attention"),
        ({"is_encoder_decoder": True}, "encoder"),
    ],
)
def test_what_is_not_read_is_said(changes, said):
    assert any(said in reason for reason in read_decoder({**QWEN3, **changes}).not_read)


@pytest.mark.parametrize("missing", ["hidden_size", "vocab_size", "num_hidden_layers", "num_attention_heads"])
def test_a_config_without_a_size_is_refused(missing):
    config = {name: value for name, value in QWEN3.items() if name != missing}
    with pytest.raises(EvidenceError, match=missing):
        read_decoder(config)


def test_a_list_of_layers_of_another_length_is_refused():
    with pytest.raises(EvidenceError, match="layer_types"):
        read_decoder({**QWEN3, "layer_types": ["full_attention"]})


def test_the_cost_of_a_batch_is_the_same_arithmetic():
    cost = choose({MODEL: json.dumps(QWEN3).encode()})
    square = total(micro_step(read_decoder(QWEN3), 2, 256, "square"))
    assert cost.fixed == 0
    assert cost.total(1, 2 * 256, 2 * 2 * 256 * 256) == square  # its square term holds half of the pairs
    mixed = {**QWEN3, "num_experts": 64, "num_experts_per_tok": 2, "moe_intermediate_size": 8}
    assert choose({MODEL: json.dumps(mixed).encode()}).linear < cost.linear
    with pytest.raises(EvidenceError, match=f"{MODEL}.*hidden_size"):
        choose({MODEL: b"{}"})
