"""Model FLOPs of a micro-step: each matrix product of the forward pass, and the gradients that the backward computes.

A product of m × k by k × n costs 2·m·k·n; each gradient of it costs the same again, so a weight that is trained costs
6 FLOPs a token, a frozen one that a gradient passes through 4, and one that none reaches 2. Attention costs two
products over pairs of query and key. Gathering rows of the embedding costs nothing.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from stepprobe.analysis.limits.decoder import GATED, Decoder, Layer

Convention = Literal["square", "real"]
"""``square``: each query with each key, as counters report; ``real``: the pairs that the mask lets through."""

FLASH_BACKWARD = 5
"""Products of the backward pass of a kernel that computes the scores again, where the forward has two."""
ROLES = {
    "q": ("q_proj", "qkv_proj", "c_attn", "query_key_value", "Wqkv"),
    "k": ("k_proj", "qkv_proj", "c_attn", "query_key_value", "Wqkv"),
    "v": ("v_proj", "qkv_proj", "c_attn", "query_key_value", "Wqkv"),
    "o": ("o_proj", "out_proj", "c_proj", "dense"),
    "gate": GATED,
    "up": ("up_proj", "gate_up_proj", "w3", "c_fc", "fc1", "dense_h_to_4h"),
    "down": ("down_proj", "w2", "c_proj", "fc2", "dense_4h_to_h"),
    "router": ("gate", "router"),
    "shared_gate": ("shared_expert_gate",),
    "head": ("lm_head", "embed_out"),
}
"""Role of a matrix → segments of the names that it goes by."""
OUTSIDE = -1
"""Layer number of what belongs to no layer."""


@dataclass(frozen=True)
class Product:
    """One matrix product of the forward pass."""

    part: str
    """Part of the model, as in ``model.accounts.FORWARD_PARTS``."""
    layer: int
    name: str
    forward: int
    """FLOPs."""
    gradients: int
    """Gradients that the backward pass computes of it: 0, 1 or 2."""
    pairwise: bool = False
    """Whether it is one of the two over pairs of query and key."""

    @property
    def backward(self) -> int:
        """FLOPs of the backward pass, without anything computed twice."""
        return self.forward * self.gradients


def pairs(length: int, layer: Layer | None = None) -> int:
    """Return how many pairs of query and key the mask of a layer lets through in one document.

    Args:
        length: Tokens of the document.
        layer: Kind and size of the window or chunk; None for plain causal attention.
    """
    kind, size = (layer.kind, layer.size) if layer else ("full", None)
    if kind == "bidirectional":
        return length * length
    if kind == "chunked" and size:
        whole, rest = divmod(length, size)
        return whole * (size * (size + 1) // 2) + rest * (rest + 1) // 2
    window = min(size or length, length) if kind == "sliding" else length
    return window * length - window * (window - 1) // 2


def micro_step(
    decoder: Decoder,
    rows: int,
    length: int,
    convention: Convention = "real",
    *,
    documents: Sequence[int] | None = None,
    head_rows: int | None = None,
) -> tuple[Product, ...]:
    """Return all matrix products of forward and loss of one micro-step.

    Args:
        decoder: The model.
        rows: Sequences.
        length: Slots of each.
        convention: Which pairs of query and key count.
        documents: Tokens of each document packed into the rows; None for one document a row. Only for ``real``.
        head_rows: Tokens whose logits are computed; None for all.

    Raises:
        ValueError: Documents are asked for with the full square, or hold more tokens than the rows.
    """
    if documents is not None and (convention == "square" or sum(documents) > rows * length):
        raise ValueError("documents count with the real mask alone, and fit into the rows")
    graph = _Graph(decoder, rows * length)
    for place, layer in enumerate(decoder.layers):
        if convention == "square":
            count = rows * length * length
        else:
            count = sum(pairs(one, layer) for one in (documents if documents is not None else [length] * rows))
        graph.attention(place, count)
        graph.mixture(place) if layer.experts else graph.mlp(place)
    graph.head(rows * length if head_rows is None else head_rows)
    return tuple(graph.products)


def total(products: Iterable[Product]) -> int:
    """Return the model FLOPs of forward and backward: nothing that is computed twice counts twice."""
    return sum(product.forward + product.backward for product in products)


def hardware(products: Iterable[Product], recompute_attention: bool, checkpointing: bool) -> int:
    """Return the FLOPs that are executed.

    Args:
        products: Of one micro-step.
        recompute_attention: The attention kernel computes its scores again in the backward (flash): 3.5 times the
            forward instead of 3.
        checkpointing: The layers' forward runs a second time in the backward pass.
    """
    executed = 0
    for product in products:
        executed += product.forward + product.backward
        if checkpointing and product.layer != OUTSIDE:
            executed += product.forward
        if recompute_attention and product.pairwise and product.name == "scores" and product.gradients:
            executed += product.forward * (FLASH_BACKWARD - 4)
    return executed


class _Spot(NamedTuple):
    """A matrix of the model."""

    part: str
    layer: int
    role: str
    scope: str = ""
    """``experts``, ``shared`` or ``attn``, where names alone do not tell."""


class _Graph:
    """Follows the forward pass and notes for each product which of its two sides wants a gradient."""

    def __init__(self, decoder: Decoder, tokens: int) -> None:
        self.decoder, self.tokens = decoder, tokens
        self.wanted = decoder.embedding_gradient
        """Whether the residual stream wants a gradient."""
        self.products: list[Product] = []

    def attention(self, place: int, count: int) -> None:
        """Add one attention layer over ``count`` pairs."""
        made = self.decoder
        wanted = self.wanted or self._norm_trained(place)
        query, key = made.heads * made.head, made.kv_heads * made.head
        own = self._norm_trained(place, "q_norm", "query_layernorm"), self._norm_trained(place, "k_norm", "k_layernorm")
        q = self._linear(_Spot("attention", place, "q"), (self.tokens, made.hidden, query), wanted) or own[0]
        k = self._linear(_Spot("attention", place, "k"), (self.tokens, made.hidden, key), wanted) or own[1]
        v = self._linear(_Spot("attention", place, "v"), (self.tokens, made.hidden, key), wanted)
        self._add("attention", place, "scores", 2 * query * count, q + k, True)
        self._add("attention", place, "values", 2 * query * count, (q or k) + v, True)
        out = _Spot("attention", place, "o", "attn")
        self.wanted |= self._linear(out, (self.tokens, query, made.hidden), q or k or v)

    def mlp(self, place: int) -> None:
        """Add a dense MLP that every token passes."""
        wanted = self.wanted or self._norm_trained(place)
        self._mlp(_Spot("mlp", place, ""), self.decoder.intermediate, self.tokens, wanted)

    def mixture(self, place: int) -> None:
        """Add a mixture of experts."""
        experts = self.decoder.experts
        assert experts is not None
        wanted = self.wanted or self._norm_trained(place)
        hidden = self.decoder.hidden
        router = _Spot("moe", place, "router")
        self.wanted |= self._linear(router, (self.tokens, hidden, experts.count), wanted)
        routed = self.tokens * experts.active
        self._mlp(_Spot("moe", place, "", "experts"), experts.intermediate, routed, wanted)
        if experts.shared:
            self._mlp(_Spot("moe", place, "", "shared"), experts.shared, self.tokens, wanted)
        if experts.shared_gate:
            self.wanted |= self._linear(_Spot("moe", place, "shared_gate"), (self.tokens, hidden, 1), wanted)

    def head(self, rows: int) -> None:
        """Add the output layer."""
        wanted = self.wanted or self._norm_trained(OUTSIDE)
        self._linear(_Spot("lm_head", OUTSIDE, "head"), (rows, self.decoder.hidden, self.decoder.vocabulary), wanted)

    def _mlp(self, spot: _Spot, width: int, rows: int, wanted: bool) -> None:
        hidden = self.decoder.hidden
        inner = self._linear(spot._replace(role="up"), (rows, hidden, width), wanted)
        if self.decoder.gated:
            inner |= self._linear(spot._replace(role="gate"), (rows, hidden, width), wanted)
        self.wanted |= self._linear(spot._replace(role="down"), (rows, width, hidden), inner)

    def _linear(self, spot: _Spot, sizes: tuple[int, int, int], wanted: bool) -> bool:
        """Add a linear layer with its adapters; tell whether its result wants a gradient.

        Args:
            spot: Which one.
            sizes: Rows, inputs and outputs.
            wanted: Whether its input wants a gradient.
        """
        rows, inputs, outputs = sizes
        trained, rank = self._trained(spot)
        self._add(spot.part, spot.layer, spot.role, 2 * rows * inputs * outputs, wanted + trained)
        if rank:
            self._add(spot.part, spot.layer, f"{spot.role}.lora_A", 2 * rows * inputs * rank, wanted + 1)
            self._add(spot.part, spot.layer, f"{spot.role}.lora_B", 2 * rows * rank * outputs, 2)
        return wanted or trained or bool(rank) or self._bias_trained(spot)

    def _add(self, part: str, place: int, name: str, flops: int, gradients: int, pairwise: bool = False) -> None:
        self.products.append(Product(part, place, name, flops, gradients, pairwise))

    def _trained(self, spot: _Spot) -> tuple[bool, int]:
        """Tell whether a matrix is trained, and the rank of the adapters beside it."""
        if not self.decoder.weights:
            return True, 0
        place = spot.layer
        found = [weight for weight in self.decoder.weights if place in weight.layers and _is(weight.name, spot)]
        rank = sum(weight.shape[0] for weight in found if ".lora_A." in weight.name)
        bare = [weight for weight in found if ".lora_" not in weight.name and not weight.name.endswith("bias")]
        if not bare and spot.role == "head":  # tied to the embedding
            bare = [weight for weight in self.decoder.weights if "embed" in weight.name or ".wte." in weight.name]
        return any(place in weight.trained for weight in bare), rank

    def _bias_trained(self, spot: _Spot) -> bool:
        return any(
            spot.layer in weight.trained and weight.name.endswith("bias") and _is(weight.name, spot)
            for weight in self.decoder.weights
        )

    def _norm_trained(self, place: int, *names: str) -> bool:
        """Tell whether one of the norms of a layer is trained: those before its two halves, or the named ones."""
        return not self.decoder.weights or any(
            place in weight.trained
            and any(
                segment in names if names else ("norm" in segment or segment.startswith("ln_")) and segment[1:2] != "_"
                for segment in weight.name.split(".")
            )
            for weight in self.decoder.weights
        )


def _is(name: str, spot: _Spot) -> bool:
    """Tell whether a weight has a role, by the segments of its name; its scope tells like names apart."""
    role, scope = spot.role, spot.scope
    segments = name.split(".")
    if not any(segment in ROLES[role] for segment in segments):
        return False
    experts, shared = "experts" in segments, any("shared_expert" in segment for segment in segments)
    if scope == "attn" or role in ("q", "k", "v"):
        return not experts and "mlp" not in segments
    if role in ("gate", "up", "down"):
        if any("attn" in segment or segment == "attention" for segment in segments):
            return False
        return {"experts": experts and not shared, "shared": shared, "": not experts and not shared}[scope]
    return not experts
