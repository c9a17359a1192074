"""The samplers and packers that people use, run themselves: what they give is what we said beforehand."""

import numpy as np
import pytest

from stepprobe.probes import bucket, padding
from tests.fakes.lengths import chat_mix, evidence_of

ROWS, SIZE, CAP = 10_000, 8, 4096


@pytest.fixture(scope="module")
def lengths():
    return chat_mix(ROWS, seed=4, most=CAP)[0]


@pytest.fixture(scope="module")
def figures(lengths):
    return bucket.derive(evidence_of("bucket", lengths, batch_size=SIZE, max_length=CAP)).figures


def wasted(ordered):
    batches = [ordered[i : i + SIZE] for i in range(0, len(ordered), SIZE)]
    return 1 - ordered.sum() / sum(one.max() * len(one) for one in batches)


@pytest.mark.parametrize("seed", range(5))
def test_the_length_grouping_of_the_hf_trainer(lengths, figures, seed):
    torch = pytest.importorskip("torch")
    group = pytest.importorskip("transformers.trainer_pt_utils").get_length_grouped_indices
    order = group(lengths.tolist(), SIZE, generator=torch.Generator().manual_seed(seed))
    said = figures["bucket.waste_share.k50"]
    # 99.7 % rather than 95 %: five seeds are asked
    assert abs(wasted(lengths[np.array(order)]) - said.value) <= 1.5 * (said.high - said.value)


@pytest.mark.parametrize("seed", range(5))
def test_the_random_order(lengths, figures, seed):
    said = padding.derive(evidence_of("padding", lengths, batch_size=SIZE)).figures["padding.waste_share"]
    shuffled = lengths[np.random.default_rng(seed).permutation(ROWS)]
    assert abs(wasted(shuffled) - said.value) <= 1.5 * (said.high - said.value)


def test_the_interval_holds_one_epoch_in_95_of_100(lengths):
    said = padding.derive(evidence_of("padding", lengths, batch_size=SIZE)).figures["padding.waste_share"]
    random = np.random.default_rng(11)
    inside = sum(said.low <= wasted(random.permutation(lengths)) <= said.high for _ in range(300))
    assert 0.90 <= inside / 300 <= 0.99


def test_the_packer_of_trl(lengths, figures):
    datasets = pytest.importorskip("datasets")
    pack = pytest.importorskip("trl").pack_dataset
    datasets.disable_progress_bars()
    rows = datasets.Dataset.from_dict({"input_ids": [[1] * int(length) for length in lengths]})
    whole = pack(rows, CAP, "bfd", {"batch_size": ROWS})
    assert figures["packing.bins"].value == len(whole)
    shipped = figures["packing.bins_per_map"]
    assert shipped.low <= len(pack(rows, CAP, "bfd")) <= shipped.high
    assert figures["packing.bins_wrapped"].value == len(pack(rows, CAP, "wrapped", {"batch_size": ROWS}))
    filled = sum(map(len, whole["input_ids"]))
    assert figures["packing.waste_share"].value == pytest.approx(1 - filled / len(whole) / CAP)
