"""The loss: chunk sizes, memory, the message of an allocation that failed, and the real thing."""

import json

import msgspec
import pytest

from stepprobe.analysis.lengths import chunks
from stepprobe.analysis.lengths.chunks import Head, choose, fit, read_oom, whole_batches
from stepprobe.errors import EvidenceError, UsageError
from stepprobe.instruments import cross_entropy
from stepprobe.probes import padding
from tests.fakes.lengths import evidence_of

GIB = 2**30
QWEN = Head(vocabulary=151_936, hidden=1024)


def test_a_small_batch_is_not_chunked():
    found = choose(512, QWEN)
    assert found.chunk == 512
    assert found.chunked == found.plain == 512 * 151_936 * 14.4


def test_a_chunk_saves_memory():
    found = choose(8192, QWEN)
    assert found.chunk == 1024
    assert found.plain == pytest.approx(16.7 * GIB, rel=0.01)
    assert found.chunked == 1024 * 151_936 * 6 + 2 * 1024 * (8192 + 151_936)


def test_the_budget_decides():
    assert choose(8192, QWEN, budget=20 * GIB).reason == "the unfused loss fits the budget"
    tight = choose(8192, QWEN, budget=0.75 * GIB)
    assert tight.chunk % 128 == 0
    assert tight.chunk < 1024
    assert tight.chunked <= 0.75 * GIB


def test_a_trained_head_can_cost_more_than_chunking_saves():
    trained = Head(vocabulary=151_936, hidden=8192)
    assert choose(1100, trained).reason.startswith("the gradient of the head")
    assert choose(1100, Head(vocabulary=151_936, hidden=8192, trained=False)).chunk == 1024


def test_a_fit_needs_a_point_to_be_checked_on():
    assert fit(128, [(16, 1.0), (128, 0.5)]) is None
    made = fit(128, [(16, 8 * 0.07 + 128 * 0.004), (32, 4 * 0.07 + 128 * 0.004), (128, 0.07 + 128 * 0.004)])
    assert made.fixed == pytest.approx(0.07)
    assert made.each == pytest.approx(0.004)
    assert made.residual < 1e-9
    assert made.efficient == 350
    bent = fit(128, [(16, 1.0), (32, 1.0), (128, 0.5)])
    assert bent.residual > 0.2


@pytest.mark.parametrize(
    ("message", "size"),
    [
        ("CUDA out of memory. Tried to allocate 6.54 GiB. GPU 0 has", 6.54 * GIB),
        ("Tried to allocate 512.00 MiB (GPU", 512 * 2**20),
        ("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1244659712 bytes", 1244659712),
    ],
)
def test_messages_are_read(message, size):
    assert read_oom(message).bytes == size


def test_a_message_gives_rows_again():
    """8 rows of 4,096 tokens, fp32 logits of 151,936: what PyTorch would print, read back."""
    size = 8 * 1344 * 151_936 * 4
    found = read_oom(f"Tried to allocate {size / GIB:.2f} GiB")
    rows, fewest, most = found.rows(151_936, 4)
    assert fewest <= 8 * 1344 <= most
    assert rows == pytest.approx(8 * 1344, rel=0.002)
    assert ("fp32 logits", 1344) in [
        (kind, length) for kind, length in whole_batches(found, 151_936, 8)
    ] or most - fewest > 8


def test_a_message_without_a_size_is_refused():
    with pytest.raises(UsageError, match="names no size"):
        read_oom("CUDA error")


def test_damaged_measurements_are_refused():
    with pytest.raises(EvidenceError, match=r"ce\.json is damaged"):
        chunks.read_measured({"ce.json": b"{}"})


def measured(**changes):
    points = [{"chunk": chunk, "cpu_s": 256 / chunk * 0.07 + 256 * 0.004, "peak_bytes": 1.0} for chunk in (16, 64, 256)]
    held = {
        **{"vocabulary": 1000, "hidden": 8, "rows": 256, "dtype": "bf16", "trained_head": True, "points": points},
        **{"plain_peak_bytes": 256 * 1000 * 14.5, "losses": [7.0, 7.0, 7.0], "gradients": [1.0, 1.0, 1.0]},
    }
    return json.dumps(held | changes).encode()


def derived(content):
    evidence = evidence_of("padding", [600] * 100, batch_size=8)
    config = {"hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 2, "vocab_size": 1000}
    files = {**evidence.files, "ce.json": content, "model.json": json.dumps(config).encode()}
    return padding.derive(msgspec.structs.replace(evidence, files=files))


def test_a_sound_measurement_sets_the_chunk():
    report = derived(measured())
    assert report.verdict == "ok"
    assert report.figures["ce.chunk_rows"].value == 384
    assert report.figures["ce.time_residual"].value < 1e-9
    assert {"ce.loss", "ce.gradient", "ce.third_point_s", "ce.peak_bytes"} <= {one.name for one in report.controls}


@pytest.mark.parametrize(
    ("changes", "control"),
    [
        ({"losses": [7.0, 7.0, 7.1]}, "ce.loss"),
        ({"gradients": [1.0, 1.2, 1.0]}, "ce.gradient"),
        ({"plain_peak_bytes": 256 * 1000 * 20}, "ce.peak_bytes"),
        (
            {"points": [{"chunk": c, "cpu_s": s, "peak_bytes": 1} for c, s in ((16, 2.0), (64, 2.0), (256, 1.0))]},
            "ce.third_point_s",
        ),
    ],
)
def test_a_measurement_that_does_not_hold_is_not_believed(changes, control):
    report = derived(measured(**changes))
    assert report.verdict == "not measured"
    assert control in report.headline


@pytest.mark.e2e
@pytest.mark.parametrize("trained", [False, True])
def test_the_real_loss_is_equal_over_chunks(trained):
    """Losses and gradients are equal to the unfused loss, whatever the chunk: what the instrument runs is the loss."""
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    states, head = torch.randn(48, 16) * 0.5, torch.randn(500, 16) * 0.02
    labels = torch.randint(0, 500, (48,))
    found = [cross_entropy._loss(states, head, labels, chunk, trained_head=trained) for chunk in (0, 1, 7, 16, 48)]
    for loss, gradient in found[1:]:
        assert loss == pytest.approx(found[0][0], rel=1e-5)
        assert gradient == pytest.approx(found[0][1], rel=1e-4)
    states.requires_grad_(), head.requires_grad_()
    torch.nn.functional.cross_entropy(states @ head.t(), labels).backward()
    of_states = cross_entropy._chunked(states.detach(), head.detach(), labels, 7, trained_head=True)[1]
    assert torch.allclose(of_states, states.grad, atol=1e-6)


@pytest.mark.e2e
def test_the_instrument_runs_each_chunk_in_its_own_process():
    pytest.importorskip("torch")
    held = json.loads(
        cross_entropy.measure(2000, 16, dtype="fp32", trained_head=False, rows=32, chunks=(8, 16, 32))["ce.json"]
    )
    assert [one["chunk"] for one in held["points"]] == [8, 16, 32]
    assert held["losses"] == pytest.approx([held["losses"][0]] * 4, rel=1e-5)
    assert all(one["cpu_s"] > 0 for one in held["points"])
