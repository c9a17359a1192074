"""A model of the config's own class, without storage, and what of it can run on a slow path."""

import contextlib
import importlib.util
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any, Literal

from stepprobe.errors import NotObserved, UsageError
from stepprobe.instruments.attention.configs import Config, of_type
from stepprobe.model.attention import Slow

_TABLE = re.compile(r"(^|\.)(wpe|embed_positions|position_embeddings?|pos_embed(ding)?s?)(\.weight)?$")
"""Tensors that hold a row for each position: GPT-2's, OPT's, GPT-J's, BERT's."""
_ROTARY = re.compile(r"rotary|rope", re.IGNORECASE)
_TOWER = re.compile(r"visi|visual|image|audio|encoder\.", re.IGNORECASE)
"""Names of what reads pictures or sound."""
_FAST_LINEAR = ("fla", "causal_conv1d")
_FAST_SSM = ("mamba_ssm", "causal_conv1d")
_PACKAGES = {"fla": "flash-linear-attention", "causal_conv1d": "causal-conv1d", "mamba_ssm": "mamba-ssm"}


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep transformers and its warnings off the user's streams while the context lasts."""
    import warnings

    from transformers.utils import logging

    level = logging.get_verbosity()
    logging.set_verbosity(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(level)


def build(read: Config, attention: str | None, dtype: Any = None) -> Any:
    """Return the model on the ``meta`` device, in training mode.

    Args:
        read: The config.
        attention: Attention implementation; None lets transformers choose, as it does in the job.
        dtype: Element type of floats; bfloat16 when None.

    Raises:
        UsageError: The attention implementation is not known or not installed.
        NotObserved: The class cannot be built from this config.
    """
    import torch

    wanted: dict[str, Any] = of_type(dtype or torch.bfloat16) | (
        {"attn_implementation": attention} if attention else {}
    )
    try:
        with torch.device("meta"), _no_init():
            model = _create(read, wanted)
    except (ImportError, ValueError, KeyError) as error:
        if attention and _is_about(error, attention):
            raise UsageError(
                f"attention implementation {attention!r} cannot be used here: {_short(error)}; install what it needs, "
                "or leave it out of --with"
            ) from error
        raise NotObserved(
            f"the model could not be built from its config: {type(error).__name__}: {_short(error)}"
        ) from error
    except Exception as error:  # a modelling file may raise anything on a config that it does not expect
        raise NotObserved(
            f"the model could not be built from its config: {type(error).__name__}: {_short(error)}"
        ) from error
    return model.train()


def _is_about(error: Exception, attention: str) -> bool:
    text = str(error).lower()
    return attention.lower() in text or "attention" in text or "attn" in text or "flash" in text


def _create(read: Config, wanted: dict[str, Any]) -> Any:
    from transformers import AutoModelForCausalLM

    config = read.config
    if read.remote:
        return AutoModelForCausalLM.from_config(config, trust_remote_code=True, **wanted)
    for auto in _autos():
        if type(config) in auto._model_mapping:
            kind = auto._model_mapping[type(config)]
            if getattr(kind, "config_class", None) is type(read.text):  # transformers 4 hands it the whole config
                return kind._from_config(read.text, **wanted)
            return auto.from_config(config, **wanted)
    if type(read.text) in AutoModelForCausalLM._model_mapping:
        return AutoModelForCausalLM.from_config(read.text, **wanted)
    raise NotObserved(
        f"{type(config).__name__} belongs to no model that writes text; nothing to train as a language model"
    )


def _autos() -> Iterator[Any]:
    import transformers

    for name in ("AutoModelForCausalLM", "AutoModelForImageTextToText", "AutoModelForMultimodalLM"):
        if found := getattr(transformers, name, None):
            yield found


def _no_init() -> Any:
    try:
        from transformers.initialization import no_init_weights
    except ImportError:  # before transformers 5
        from transformers.modeling_utils import no_init_weights
    return no_init_weights()


def slow_parts(model: Any, mixers: Counter[str]) -> tuple[Slow, ...]:
    """Return the parts of a model that can run on a slow path, with what is missing here for their fast one."""
    found = []
    for name, count in mixers.items():
        needs = _FAST_SSM if "mamba" in name.lower() or "ssm" in name.lower() else _FAST_LINEAR
        missing = tuple(_PACKAGES[package] for package in needs if importlib.util.find_spec(package) is None)
        path = "a loop in PyTorch" if missing else "fused kernels"
        found.append(Slow(kind="linear_attention", module=name, layers=count, missing=missing, path=path))
    experts = Counter(type(module) for module in model.modules() if type(module).__name__.endswith("Experts"))
    path = str(getattr(model.config.get_text_config(), "_experts_implementation", None) or "eager")
    found += [
        Slow(kind="experts", module=kind.__name__, layers=count, path=_experts_path(kind, path))
        for kind, count in experts.items()
    ]
    return tuple(found)


def _experts_path(kind: type, chosen: str) -> str:
    """Return how experts are run; a class without a choice may loop over them or take them all in one product."""
    import ast
    import inspect
    import textwrap

    if chosen != "eager":
        return chosen
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(kind.forward)))  # type: ignore[attr-defined]
    except (OSError, TypeError, SyntaxError):
        return "unknown"
    loops = any(isinstance(node, ast.For) for node in ast.walk(tree))
    return "a loop over experts" if loops else "one product over all experts"


def whole(text: Any, name: str) -> int:
    """Return a number of a config; 0 where it names none."""
    value = getattr(text, name, None)
    return value if isinstance(value, int) and value > 0 else 0


def positions(text: Any) -> int:
    """Return the tokens of a row that a text config allows; 0 where it names no number (state space models)."""
    return whole(text, "max_position_embeddings") or whole(text, "n_positions")


def position_kind(model: Any) -> Literal["", "table", "rotary"]:
    """Return how a model tells positions apart; towers beside the text do not count."""
    import itertools

    tensors = itertools.chain(model.named_parameters(), model.named_buffers())
    if any(tensor.dim() == 2 and _TABLE.search(name) and not _TOWER.search(name) for name, tensor in tensors):
        return "table"
    rotary = (name for name, module in model.named_modules() if _ROTARY.search(type(module).__name__))
    return "rotary" if any(not _TOWER.search(name) for name in rotary) else ""


def parameters(model: Any) -> int:
    """Return the number of parameters, tied ones once."""
    return sum(parameter.numel() for parameter in model.parameters())


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:240]
