"""The rules of kernel choice: reasons by card, and the CPU's rules held against torch itself."""

import itertools
import subprocess
import sys
from pathlib import Path

import pytest

from stepprobe.analysis.attention.kernels import CARDS, Shape, choose

ROOT = Path(__file__).parents[3]
NAMES = {0: "math", 1: "flash"}


def shape(**changes):
    fields = {"heads": 8, "kv_heads": 8, "queries": 256, "keys": 256, "head_dim": 128, "value_dim": 128}
    return Shape(**{**fields, "dtype": "bfloat16", "is_causal": True, **changes})


@pytest.mark.parametrize(
    ("card", "changes", "kernel"),
    [
        ("a100", {}, "flash"),
        ("4090", {}, "flash"),
        ("h100", {}, "cudnn"),
        ("b200", {}, "cudnn"),
        ("mi300x", {}, "flash"),
        ("t4", {"dtype": "float16"}, "efficient"),
        ("t4", {"dtype": "bfloat16"}, "math"),
        ("v100", {"dtype": "float16", "gqa": True, "kv_heads": 2}, "math"),
        ("a100", {"mask": True, "is_causal": False}, "efficient"),
        ("h100", {"mask": True, "is_causal": False}, "cudnn"),
        ("a100", {"mask": True, "is_causal": False, "gqa": True, "kv_heads": 2}, "math"),
        ("a100", {"mask": True, "is_causal": False, "mask_last_stride": 0}, "math"),
        ("a100", {"head_dim": 512, "value_dim": 512}, "efficient"),
        ("h100", {"head_dim": 256, "value_dim": 256}, "flash"),
        ("h100", {"head_dim": 192, "value_dim": 128}, "cudnn"),
        ("a100", {"head_dim": 192, "value_dim": 128}, "efficient"),
        ("mi300x", {"head_dim": 512, "value_dim": 512}, "flash"),
        ("l4", {"head_dim": 224, "value_dim": 224}, "efficient"),
        ("l4", {"head_dim": 224, "value_dim": 224, "training": False}, "flash"),
        ("a100", {"dtype": "float32", "gqa": True, "kv_heads": 2}, "math"),
        ("a100", {"queries": 128}, "efficient"),
        ("a100", {"head_dim": 60, "value_dim": 60}, "flash"),
        ("cpu", {}, "flash"),
        ("cpu", {"dropout": 0.1}, "math"),
    ],
)
def test_known_choices(card, changes, kernel):
    assert choose(shape(**changes), CARDS[card]).kernel == kernel


def test_every_refusal_has_a_reason():
    choice = choose(shape(mask=True, is_causal=False, head_dim=512, value_dim=512), CARDS["a100"])
    assert choice.refused["flash"] == ("a mask is given", "head_dim 512 > 256")
    assert choice.why == "a mask is given"
    assert not choice.fast


@pytest.mark.parametrize("card", CARDS)
def test_a_kernel_that_is_taken_was_not_refused(card):
    for mask, dim, gqa, dropout in itertools.product((False, True), (60, 64, 256, 512), (False, True), (0.0, 0.1)):
        asked = shape(mask=mask, is_causal=not mask, head_dim=dim, value_dim=dim, gqa=gqa, dropout=dropout)
        choice = choose(asked, CARDS[card])
        assert choice.kernel not in choice.refused


def test_the_rules_of_the_cpu_are_those_of_torch():
    torch = pytest.importorskip("torch")
    agreed = 0
    for dims, mask, dropout, grouped in itertools.product(
        ((64, 64), (512, 512), (64, 32)), (None, "bool", "grad"), (0.0, 0.1), (False, True)
    ):
        query = torch.randn(2, 4, 8, dims[0])
        key, value = (torch.randn(2, 2 if grouped else 4, 8, dim) for dim in dims)
        made = {
            None: None,
            "bool": torch.ones(2, 1, 8, 8, dtype=torch.bool),
            "grad": torch.zeros(2, 1, 8, 8, requires_grad=True),
        }[mask]
        found = torch._fused_sdp_choice(query, key, value, made, dropout, False, enable_gqa=grouped)
        sizes = {"heads": 4, "kv_heads": 2 if grouped else 4, "queries": 8, "keys": 8}
        given = {"mask": made is not None, "mask_grad": mask == "grad", "gqa": grouped, "dropout": dropout}
        dims_given = {"head_dim": dims[0], "value_dim": dims[1], "dtype": "float32", "is_causal": False}
        asked = shape(**sizes, **given, **dims_given)
        assert choose(asked, CARDS["cpu"]).kernel == NAMES[int(found)], (dims, mask, dropout, grouped)
        agreed += 1
    assert agreed == 36


def test_the_grid_says_when_there_is_no_gpu(tmp_path):
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU: run bench/gpu/sdpa_grid.py itself")
    command = [sys.executable, str(ROOT / "bench" / "gpu" / "sdpa_grid.py"), "--out", str(tmp_path / "grid.json")]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 3
    assert "stay predicted" in ran.stderr
    assert not (tmp_path / "grid.json").exists()
