"""Out-of-memory messages as rows of logits, beside the batch that was set."""

import pytest

from stepprobe.analysis.lengths.chunks import read_oom
from stepprobe.analysis.lengths.oom import best, told

GIB = 2**30


@pytest.mark.parametrize(
    ("message", "vocabulary", "rows", "half", "batch", "ratio"),
    [
        ("Tried to allocate 6.54 GiB", 151_936, 11_555, 9, (1, 4096), 2.82),  # NeMo Automodel#2336
        ("Tried to allocate 49 GiB", 151_936, 86_572, 884, (1, 32_768), 2.64),  # ms-swift#6966
        ("Tried to allocate 45 GiB", 248_320, 48_645, 541, (1, 10_000), 4.86),  # NeMo Automodel#2603
    ],
)
def test_public_messages(message, vocabulary, rows, half, batch, ratio):
    read = best(read_oom(message), vocabulary, *batch)
    assert read.rows == pytest.approx(rows, abs=1)
    assert read.half == pytest.approx(half, abs=1)
    assert read.kind == "fp32"
    assert read.ratio == pytest.approx(ratio, abs=0.01)
    assert read.copies == 0
    assert "truncation or packing is not what it seems" in told(message, vocabulary, *batch)


@pytest.mark.parametrize(
    ("copies", "item", "kind", "slots"), [(1, 4, "fp32", 2048), (2, 4, "fp32", 2048), (1, 4, "fp32", 2047)]
)
def test_whole_copies_are_recognised(copies, item, kind, slots):
    size = copies * 4 * slots * 151_936 * item
    read = best(read_oom(f"Tried to allocate {size} bytes"), 151_936, 4, 2048)
    assert (read.copies, read.kind, read.of) == (copies, kind, 4 * slots)


def test_16_bit_logits_are_half_a_copy_and_so_a_whole_one_of_16_bits():
    size = 4 * 2048 * 151_936 * 2
    read = best(read_oom(f"Tried to allocate {size} bytes"), 151_936, 4, 2048)
    assert (read.copies, read.kind) == (1, "16-bit")


def test_a_vocabulary_may_have_been_padded():
    size = 4 * 2048 * 50_304 * 4
    read = best(read_oom(f"Tried to allocate {size} bytes"), 50_257, 4, 2048)
    assert (read.copies, read.vocabulary) == (1, 50_304)


def test_a_message_without_a_size_says_nothing():
    assert told("CUDA error", 1000, 1, 10) == ""
