"""Leave out what attention does not depend on: feed-forward blocks and recurrent mixers become the identity.

Their shapes are those of their input, so every attention call stays as it is, and Python loops over experts or over
tokens cost nothing.
"""

import inspect
import re
import types
from collections import Counter
from typing import Any

_FEED_FORWARD = re.compile(r"(MLP|Mlp|SparseMoeBlock|MoE|Moe|MoeBlock|FeedForward|Experts)$")
_MIXER = re.compile(
    r"(GatedDelta|Mamba|SSM|LinearAttention|LightningAttention|DeltaNet|DeltaAttention|Rwkv|RWKV|xLSTM|mLSTM|sLSTM"
    r"|Recurrent|Rglru|RgLru|KDA|ShortConv)",
)
_MIXER_END = re.compile(r"(Mixer|Net|Attention|Block|Lru|LRU|Layer|Conv|Cell|KDA|Delta)$")
_NOT_MIXER = re.compile(r"(Norm|Model|ForCausalLM|DecoderLayer|Cache|Hybrid|MLP)")
_ATTENDS = ("scaled_dot_product", "attention_interface", "softmax(")


def leave_out(model: Any) -> tuple[Counter[str], Counter[str]]:
    """Replace those modules' forward; return the classes of the mixers and of the feed-forward blocks, counted."""
    mixers: Counter[str] = Counter()
    blocks: Counter[str] = Counter()
    for module in list(model.modules()):
        name = type(module).__name__
        is_block = bool(_FEED_FORWARD.search(name)) and "forward" in vars(type(module))
        is_mixer = bool(_MIXER.search(name) and _MIXER_END.search(name) and not _NOT_MIXER.search(name))
        if not (is_block or is_mixer):
            continue
        source = _source(type(module))
        if source is None or (is_mixer and any(word in source for word in _ATTENDS)):
            continue
        (mixers if is_mixer else blocks)[name] += 1
        module.forward = types.MethodType(_identity(type(module), source), module)
    return mixers, blocks


def _source(kind: type) -> str | None:
    try:
        return inspect.getsource(kind.forward)  # type: ignore[attr-defined]
    except (OSError, TypeError):
        return None


def _identity(kind: type, source: str) -> Any:
    """Return a forward that gives back its first argument, in a tuple as long as the class's own."""
    first = list(inspect.signature(kind.forward).parameters)[1]  # type: ignore[attr-defined]
    returned = [line.split("#")[0] for line in source.splitlines() if re.match(r"\s+return\b", line)]
    flat = re.sub(r"\([^()]*\)|\[[^\[\]]*\]", "", returned[-1] if returned else "")
    length = flat.count(",") + 1 if "," in flat else 0

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        hidden = args[0] if args else kwargs.get(first)
        return hidden if not length else (hidden, *([None] * (length - 1)))

    return forward
