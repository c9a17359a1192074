"""What kind of work a kernel does, told from its name."""

import re
from typing import TYPE_CHECKING

from stepprobe.analysis.trace.names import names_of, names_with
from stepprobe.analysis.trace.validity import is_copy
from stepprobe.model.trace import Columns

if TYPE_CHECKING:
    from stepprobe.model.trace import Ints, Mask

COMMUNICATION = "communication"

_RULES = (
    (COMMUNICATION, r"nccl|rccl|oneccl|msccl|nvshmem|deep_?ep|cross_device_reduce|all_?reduce|all_?gather|all_?to_?all"
                    r"|reduce_?scatter|sendrecv"),
    ("copy", r"^(memcpy|memset|copybuffer|fillbuffer)"),
    ("optimizer", r"multi_tensor_apply|adam|\blamb\b|\blion\b|sgd|fused_optim"),
    ("attention", r"flash|fmha|attention|attn|\bmha|_mha|sdpa"),
    ("convolution", r"conv(?!ert)|scudnn|winograd|wgrad|dgrad|implicit_?gemm|im2col|col2im|miopen"),
    ("matmul", r"gemm|gemv|cutlass|cublas|mma_|_mma|wgmma|matmul|cijk_|splitk|\bmm_|_mm\b|_bmm|triton_mm|tem_fused"),
    ("norm", r"norm|\bbn_|_bn_|moments|rowwise_?moments"),
    ("reduce", r"reduce|softmax|argmax|argmin|cumsum|scan|sort|topk|nll_loss|cross_entropy|logsumexp|triton_(red|per)"),
    ("index", r"embedding|gather|scatter|index|masked_select|take"),
    ("copy", r"copy|cat_?array|transpose|permute|contiguous|pad_"),
    ("elementwise", r"elementwise|pointwise|triton_poi|vectorized|unrolled|dropout|gelu|silu|relu|fill|rotary|rope|bias"
                    r"|add|mul|tensorapply|distribution|triton_|subtensor|scalepacked|tonchw|tonhwc"),
)  # fmt: skip
_COMPILED = tuple((family, re.compile(pattern, re.IGNORECASE)) for family, pattern in _RULES)


def family(name: str) -> str:
    """Return the family of a device row: the first rule that its name matches, else ``other``."""
    return next((found for found, pattern in _COMPILED if pattern.search(name)), "other")


def families(columns: Columns, rows: "Ints") -> list[str]:
    """Return the family of each name in the trace that one of these rows has; of every other name, nothing."""
    found = [""] * len(columns.header.names)
    for number in names_of(columns, rows).tolist():
        found[number] = family(columns.header.names[number])
    return found


def communicate(columns: Columns, rows: "Ints") -> "Mask":
    """Tell which of these device rows are communication."""
    named = names_with(columns, rows, lambda name: family(name) == COMMUNICATION)
    return named[columns.name[rows]] & ~is_copy(columns.kind[rows])
