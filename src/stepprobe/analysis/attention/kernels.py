"""Which kernel ``scaled_dot_product_attention`` takes on which card: torch's own conditions, restated.

A CPU build cannot ask torch, so the rules stand here as a table with reasons. They restate torch 2.13
(``aten/src/ATen/native/transformers/cuda/sdp_utils.cpp``) and are *predicted*: ``bench/gpu/sdpa_grid.py`` holds them
against ``torch._fused_sdp_choice`` on a GPU.
"""

import msgspec

RULES = "torch 2.13"
"""The torch version that the rules restate."""
CONFIRMED: dict[str, str] = {}
"""Torch version → card on which the grid has confirmed the rules; empty while none has."""

FAST = ("flash", "cudnn")
LARGEST_FLASH = 256
_HALF = ("float16", "bfloat16")


class Card(msgspec.Struct, frozen=True, kw_only=True):
    """What the choice of a kernel depends on, of a card and its software."""

    name: str
    capability: tuple[int, int]
    """CUDA compute capability; (0, 0) for a CPU."""
    dtype: str = "bfloat16"
    """Half type that training uses on it."""
    cudnn: int = 92100
    rocm: bool = False
    torch: tuple[int, int] = (2, 13)


CARDS = {
    card.name: card
    for card in (
        Card(name="t4", capability=(7, 5), dtype="float16"),
        Card(name="v100", capability=(7, 0), dtype="float16"),
        Card(name="a100", capability=(8, 0)),
        Card(name="l4", capability=(8, 9)),
        Card(name="4090", capability=(8, 9)),
        Card(name="h100", capability=(9, 0)),
        Card(name="h200", capability=(9, 0)),
        Card(name="b200", capability=(10, 0)),
        Card(name="mi300x", capability=(9, 4), rocm=True),
        Card(name="cpu", capability=(0, 0)),
    )
}
DEFAULT = "a100"
SHOWN = ("t4", "v100", "a100", "l4", "h100", "b200", "mi300x", "cpu")
"""One card of each kind for the table (4090 as l4, h200 as h100)."""


def card_of(name: str) -> str:
    """Return the card of our rules that a device's name means; empty where there is none."""
    words = name.lower().replace("-", " ").split()
    return next((card for card in CARDS if card in words), "")


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """What the choice depends on, of a call."""

    heads: int
    kv_heads: int
    queries: int
    keys: int
    head_dim: int
    value_dim: int
    dtype: str
    mask: bool = False
    mask_grad: bool = False
    mask_last_stride: int = 1
    is_causal: bool = False
    gqa: bool = False
    dropout: float = 0.0
    training: bool = True


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """The kernel that is taken, and why each faster one was refused."""

    kernel: str
    refused: dict[str, tuple[str, ...]] = {}

    @property
    def fast(self) -> bool:
        """Whether it is a kernel that never makes the matrix of scores and skips what the mask hides."""
        return self.kernel in FAST

    @property
    def why(self) -> str:
        """The first reason for which flash was refused."""
        return (self.refused.get("flash") or ("",))[0]


def choose(shape: Shape, card: Card) -> Choice:
    """Return the kernel that torch takes for a call on a card."""
    if card.capability == (0, 0):
        reasons = _cpu(shape)
        return Choice(kernel="math" if reasons else "flash", refused={"flash": reasons} if reasons else {})
    refused = {
        "flash": (*_every(shape), *_flash(shape, card)),
        "cudnn": (*_every(shape), *_cudnn(shape, card)),
        "efficient": (*_every(shape), *_efficient(shape, card)),
    }
    order = ("cudnn", "flash", "efficient") if _prefers_cudnn(card) else ("flash", "efficient")
    kernel = next((name for name in order if not refused[name]), "math")
    return Choice(kernel=kernel, refused={name: reasons for name, reasons in refused.items() if reasons})


def _every(shape: Shape) -> tuple[str, ...]:
    """Return the reasons that hold for every fused kernel."""
    return _told(
        (shape.queries == 0 or shape.keys == 0, "empty sequence"),
        (shape.mask and shape.mask_last_stride != 1, "the mask is expanded over keys (last stride not 1)"),
        (shape.heads != shape.kv_heads and not shape.gqa, "head counts differ and enable_gqa is not set"),
        (shape.gqa and shape.heads % max(shape.kv_heads, 1) != 0, "query heads are no multiple of key heads"),
    )


def _flash(shape: Shape, card: Card) -> tuple[str, ...]:
    dims = (shape.head_dim, shape.value_dim)
    most = 512 if card.rocm else LARGEST_FLASH
    consumer = (8, 6) <= card.capability <= (8, 9) or (12, 0) <= card.capability <= (12, 1)
    large = 192 < shape.head_dim <= 224 or (shape.head_dim > 224 and shape.dropout > 0)
    return _told(
        (shape.mask, "a mask is given"),
        (dims[0] != dims[1], f"head_dim {dims[0]} of queries, {dims[1]} of values"),
        (shape.head_dim > most, f"head_dim {shape.head_dim} > {most}"),
        (not card.rocm and not (8, 0) <= card.capability <= (12, 1), f"compute capability {_dotted(card)} < 8.0"),
        (
            shape.training and consumer and not card.rocm and large,
            f"backward at head_dim {shape.head_dim} on this card",
        ),
        (shape.is_causal and shape.queries != shape.keys, "is_causal with unequal lengths"),
        (not _half(shape, card), f"dtype {shape.dtype}"),
    )


def _cudnn(shape: Shape, card: Card) -> tuple[str, ...]:
    most = 128
    if card.capability[0] in (9, 10) and card.cudnn >= 91100 and (shape.head_dim, shape.value_dim) == (192, 128):
        most = 192
    size = max(shape.head_dim, shape.value_dim)
    return _told(
        (card.rocm, "ROCm"),
        (card.cudnn < 90000, "cuDNN older than 9"),
        (not (8, 0) <= card.capability <= (12, 1), f"compute capability {_dotted(card)} < 8.0"),
        (not _half(shape, card), f"dtype {shape.dtype}"),
        (shape.mask_grad, "the mask requires a gradient"),
        (size > most, f"head_dim {size} > {most}"),
        (shape.head_dim % 8 != 0 or shape.value_dim % 8 != 0, "head_dim is no multiple of 8"),
        (shape.keys == 1, "one key"),
        (shape.dropout > 0 and (shape.dropout * 16) % 1 != 0, "dropout is no multiple of 1/16"),
    )


def _efficient(shape: Shape, card: Card) -> tuple[str, ...]:
    step = 8 if shape.dtype in _HALF else 4
    types = ("float16", "float32", "bfloat16") if card.capability >= (8, 0) else ("float16", "float32")
    grouped = shape.heads != shape.kv_heads
    return _told(
        (card.torch < (2, 14) and grouped and shape.gqa, "no shared key heads before torch 2.14"),
        (shape.head_dim % step != 0 or shape.value_dim % step != 0, f"head_dim is no multiple of {step}"),
        (shape.dtype not in types, f"dtype {shape.dtype}"),
        (card.rocm and shape.head_dim > 512, f"head_dim {shape.head_dim} > 512"),
    )


def _cpu(shape: Shape) -> tuple[str, ...]:
    return _told(
        (shape.dropout > 0, "dropout"),
        (shape.head_dim != shape.value_dim, f"head_dim {shape.head_dim} of queries, {shape.value_dim} of values"),
        (shape.heads != shape.kv_heads and not shape.gqa, "head counts differ and enable_gqa is not set"),
        (shape.mask_grad, "the mask requires a gradient"),
    )


def _half(shape: Shape, card: Card) -> bool:
    return shape.dtype == "float16" or (shape.dtype == "bfloat16" and card.capability >= (8, 0))


def _prefers_cudnn(card: Card) -> bool:
    return not card.rocm and card.cudnn > 91500 and card.capability[0] in (9, 10)


def _dotted(card: Card) -> str:
    return ".".join(map(str, card.capability))


def _told(*reasons: tuple[bool, str]) -> tuple[str, ...]:
    return tuple(reason for holds, reason in reasons if holds)
