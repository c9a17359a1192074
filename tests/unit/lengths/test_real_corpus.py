"""Real text through a real tokenizer, where there is some: the estimate holds what a full count has said."""

import json

import pytest

from stepprobe.instruments.dataset import tokenizer as loading
from stepprobe.model.evidence import Evidence
from stepprobe.model.lengths import encode
from stepprobe.probes import padding
from tests.unit.lengths.conftest import observe

pytestmark = pytest.mark.e2e


def test_the_estimate_of_a_corpus_holds_its_full_count(shared):
    pytest.importorskip("tokenizers")
    whole = json.loads((shared / "corpus" / "MANIFEST.json").read_text())["total"]
    found = observe(shared / "corpus", tokenizer=loading.load(str(shared / "tokenizers" / "qwen3")))
    assert found.about.rows == whole["rows"]
    assert found.about.tokenised == 2200
    for cap, size in ((2048, 4), (2048, 8), (2048, 32), (512, 8)):
        options = {"max_length": str(cap), "batch_size": str(size)}
        evidence = Evidence(
            probe="padding", command="padding", subject="", environment={}, files=encode(found), options=options
        )
        figures = padding.derive(evidence).figures
        tokens, waste = figures["padding.tokens_total"], figures["padding.waste_share"]
        # one and a half widths: one seed of the sample is asked, not four hundred
        assert abs(tokens.value - whole["tokens_qwen3"]) <= 1.5 * (tokens.high - tokens.value)
        said = whole["random_batch_padding_waste"][str(cap)][str(size)]
        assert abs(waste.value - said) <= 1.5 * (waste.high - waste.value)
