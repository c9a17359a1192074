"""A capture whose answer is known by counting on paper: four layers, a window of 4 at 8 tokens, and a leak."""

from stepprobe.model.attention import CAPTURE, Batch, Call, Capture, Influence, Layer, Mask, Rows, write_capture
from stepprobe.model.evidence import Evidence

LENGTH = 8
WINDOW = 4

EXPECTED: dict[str, float] = {
    "mask.layers": 4,
    "mask.layers_fast": 1,  # the full layer without a mask
    "mask.layers_correct": 3,  # the last one sees one document through the other
    "mask.leak_pairs": 5 * 3,  # five tokens of the second document see three of the first
    "mask.missing_pairs": 0,
    "mask.bytes": 2 * 64 + 8 * 16 * 2,  # two boolean masks, one as a bias padded to 16 keys
    "mask.repeat_kv_bytes": 0,
    "mask.fallback_layers": 0,
    "twin.forced_bidirectional": 28,
    "twin.forced_causal": 15,
    "twin.leak_pairs": 15,
    "twin.reach": 7,
}


def known_capture() -> Evidence:
    """Return the evidence of a known capture."""
    return Evidence(
        probe="mask",
        command="mask",
        subject="known capture",
        environment={"torch": "known"},
        files={CAPTURE: write_capture(_capture())},
    )


def _capture() -> Capture:
    batch = Batch(
        kind="packed", size=1, length=LENGTH, names=("input_ids", "position_ids"), use_cache=False,
        positions=(((0, 0), (3, 0)),),
    )  # fmt: skip
    blocks = (Rows(first=0, end=3, runs=((0, 1, 0, 1),)), Rows(first=3, end=8, runs=((3, 4, 0, 1),)))
    window = (*blocks[:1], Rows(first=3, end=7, runs=((3, 4, 0, 1),)), Rows(first=7, end=8, runs=((4, 8, 0, 0),)))
    masks = tuple(
        Mask(name=name, queries=8, keys=8, patterns=(rows,), batch=(0,), rows_read=8, rows_checked=8)
        for name, rows in (("mask1", blocks), ("mask2", window))
    )
    layers = tuple(
        Layer(index=place, kind=kind, size=size)
        for place, (kind, size) in enumerate((("full", None), ("sliding", WINDOW), ("sliding", WINDOW), ("full", None)))
    )
    return Capture(
        model_type="known", model_class="Known", attention="sdpa", compiled=False,
        parameters=0, batch=batch, layers=layers, masks=masks,
        calls=tuple(_call(place, mask) for place, mask in enumerate(("mask1", "mask2", "mask2", None))),
        twin=tuple(_influence(name, batch) for name in ("batch", "bidirectional", "causal")),
    )  # fmt: skip


def _call(place: int, mask: str | None) -> Call:
    shape = (1, 2, LENGTH, 64)
    given = {"mask": mask, "mask_shape": (1, 1, LENGTH, LENGTH), "mask_dtype": "bool"} if mask else {"is_causal": True}
    return Call(
        layer=f"layers.{place}.attention", module="KnownAttention", api="sdpa", query=shape, key=shape, value=shape,
        dtype="bfloat16", kv_heads=2, **given,
    )  # fmt: skip


def _influence(name: str, batch: Batch) -> Influence:
    both = name == "bidirectional"
    rows = tuple("".join("1" if both or key <= query else "0" for key in range(LENGTH)) for query in range(LENGTH))
    return Influence(name=name, batch=batch, layers=(Layer(index=0, kind="full"),), rows=rows)
