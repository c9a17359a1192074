"""Hold the kernel rules against torch itself, on the GPU of this machine.

    python bench/gpu/sdpa_grid.py [--out sdpa-grid.json]

Every cell of a grid (dtype, head_dim, value head_dim, mask, shared key heads, causal, dropout, gradient) is asked of
``torch._fused_sdp_choice`` with real tensors and of ``stepprobe.analysis.attention.kernels``. Cells that differ are
printed with the reasons of the rules; all cells go into the evidence file. Exit code 0: the rules hold for this card
and this torch; 1: some cell differs; 3: no GPU. Under three minutes.
"""

import argparse
import itertools
import json
import sys
import time
from pathlib import Path

from stepprobe.analysis.attention.kernels import Card, Choice, Shape, choose

KERNELS = {0: "math", 1: "flash", 2: "efficient", 3: "cudnn", 4: "overrideable"}
LENGTHS = ((256, 256), (1, 256), (128, 256))
GRID = {
    "dtype": ("bfloat16", "float16", "float32"),
    "dims": ((64, 64), (96, 96), (128, 128), (192, 128), (192, 192), (224, 224), (256, 256), (512, 512), (60, 60)),
    "mask": (None, "bool", "float", "expanded"),
    "kv_heads": (8, 2),
    "causal": (False, True),
    "dropout": (0.0, 0.1),
    "training": (False, True),
    "lengths": LENGTHS,
}


def main() -> int:
    """Ask all cells, print those that differ, write the evidence."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("sdpa-grid.json"))
    arguments = parser.parse_args()
    import torch

    if not torch.cuda.is_available():
        print("no GPU is visible to torch: nothing was asked, the rules stay predicted", file=sys.stderr)
        return 3
    card, began = this_card(), time.monotonic()
    cells = [
        asked(card, dict(zip(GRID, cell, strict=True))) for cell in itertools.product(*GRID.values()) if sensible(cell)
    ]
    differing = [cell for cell in cells if not cell["agrees"]]
    for cell in differing[:40]:
        print(f"DIFFERS {cell['cell']}: torch {cell['torch']}, rules {cell['rules']} {cell['refused']}")
    environment = {
        "card": torch.cuda.get_device_name(),
        "capability": ".".join(map(str, card.capability)),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "seconds": round(time.monotonic() - began, 1),
    }
    arguments.out.write_text(
        json.dumps({"environment": environment, "cells": cells}, indent=1) + "\n", encoding="utf-8"
    )
    print(
        f"{environment['card']}, torch {torch.__version__}: {len(cells) - len(differing)} of {len(cells)} cells agree"
    )
    return 1 if differing else 0


def this_card() -> Card:
    """Return the card of this machine as the rules describe one."""
    import torch

    major, minor = torch.cuda.get_device_capability()
    version = torch.__version__.split("+")[0].split(".")
    return Card(
        name=torch.cuda.get_device_name(),
        capability=(major, minor),
        dtype="bfloat16" if (major, minor) >= (8, 0) else "float16",
        cudnn=torch.backends.cudnn.version() or 0,
        rocm=torch.version.hip is not None,
        torch=(int(version[0]), int(version[1])),
    )


def sensible(cell: tuple) -> bool:
    """Leave out what SDPA itself refuses: a mask together with is_causal."""
    given = dict(zip(GRID, cell, strict=True))
    return not (given["mask"] and given["causal"])


def asked(card: Card, cell: dict) -> dict:
    """Return one cell with both answers."""
    told = rules(card, cell)
    found = kernel(cell)
    return {
        "cell": {name: list(value) if isinstance(value, tuple) else value for name, value in cell.items()},
        "torch": found,
        "rules": told.kernel,
        "refused": {name: list(reasons) for name, reasons in told.refused.items()},
        "agrees": found == told.kernel,
    }


def rules(card: Card, cell: dict) -> Choice:
    """Return what the rules choose."""
    (queries, keys), (dim, value_dim) = cell["lengths"], cell["dims"]
    return choose(
        Shape(
            heads=8,
            kv_heads=cell["kv_heads"],
            queries=queries,
            keys=keys,
            head_dim=dim,
            value_dim=value_dim,
            dtype=cell["dtype"],
            mask=cell["mask"] is not None,
            mask_last_stride=0 if cell["mask"] == "expanded" else 1,
            is_causal=cell["causal"],
            gqa=cell["kv_heads"] != 8,
            dropout=cell["dropout"],
            training=cell["training"],
        ),
        card,
    )


def kernel(cell: dict) -> str:
    """Return what torch chooses; the text of the error when it refuses to choose."""
    import torch

    (queries, keys), (dim, value_dim) = cell["lengths"], cell["dims"]
    made = {"dtype": getattr(torch, cell["dtype"]), "device": "cuda", "requires_grad": cell["training"]}
    query = torch.zeros(2, 8, queries, dim, **made)
    key = torch.zeros(2, cell["kv_heads"], keys, dim, **made)
    value = torch.zeros(2, cell["kv_heads"], keys, value_dim, **made)
    mask = None
    if cell["mask"] == "expanded":
        mask = torch.ones(2, 1, queries, 1, dtype=torch.bool, device="cuda").expand(2, 1, queries, keys)
    elif cell["mask"]:
        dtype = torch.bool if cell["mask"] == "bool" else made["dtype"]
        mask = torch.ones(2, 1, queries, keys, dtype=dtype, device="cuda")
    grouped = {"enable_gqa": cell["kv_heads"] != 8}
    try:
        choice = torch._fused_sdp_choice(query, key, value, mask, cell["dropout"], cell["causal"], **grouped)
    except RuntimeError as error:
        return f"refused: {str(error)[:80]}"
    return KERNELS[int(choice)]


if __name__ == "__main__":
    sys.exit(main())
