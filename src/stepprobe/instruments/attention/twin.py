"""The twin: a tiny random model of the same class, one token replaced at a time; which logits move?

The answer owes nothing to the code that makes masks, so it judges that code, and also layers that have no mask at all:
linear attention, state spaces, convolutions. Two controls are asked each time, with the attention of the twin forced:
both ways (tokens of the future must move logits) and plainly causal (documents must leak).
"""

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from stepprobe.instruments.attention.batches import describe, make
from stepprobe.instruments.attention.configs import of_type
from stepprobe.instruments.attention.dispatch import Stand, interfaces
from stepprobe.instruments.attention.layers import declared_layers
from stepprobe.instruments.attention.tiny import LENGTH, VOCABULARY, ways
from stepprobe.model.attention import Batch, Influence

SEED = 0
_LEAST = {"float64": 1e-9, "float32": 1e-6}
"""What a logit has to move by, in each type that the small model may run in."""
_ABOVE_NOISE = 64


class Twin:
    """A tiny model of the class of a config.

    Args:
        text: Config of the language model.
        attention: Attention implementation of the job.
        checkpointing: Whether the job recomputes activations.
        kind: Class of the job's model, for configs that transformers' automatic classes do not know.
    """

    def __init__(self, text: Any, attention: str | None, checkpointing: bool = False, kind: Any = None) -> None:
        self.model, self.config = _tiny_model(text, attention, kind)
        self._least = _LEAST[str(next(self.model.parameters()).dtype).removeprefix("torch.")]
        if checkpointing:
            self.model.gradient_checkpointing_enable()
        self.layers = declared_layers(self.config)

    def influence(self, name: str, kind: str, given: Mapping[str, Any], forced: str | None = None) -> Influence:
        """Return which tokens move which logits.

        Args:
            name: What the answer is called.
            kind: Kind of batch, as in ``batches.make``.
            given: Arguments beside the batch, such as ``use_cache``.
            forced: ``bidirectional`` or ``causal`` overrides the attention of every layer.
        """
        batch = make(kind, 1, LENGTH) | dict(given)
        described = describe(kind, batch)
        try:
            rows = self._moved(_taken(self.model, batch) if forced else batch, forced)
        except Exception as error:  # whatever the model says about such a batch is the answer
            text = " ".join(str(error).split())[:300]
            return Influence(name=name, batch=described, layers=self.layers, failed=f"{type(error).__name__}: {text}")
        return Influence(name=name, batch=described, layers=self.layers, rows=rows)

    def _moved(self, batch: dict[str, Any], forced: str | None) -> tuple[str, ...]:
        import torch

        generator = torch.Generator().manual_seed(SEED)
        base = torch.randint(5, VOCABULARY - 5, (LENGTH,), generator=generator)
        ids = base.repeat(LENGTH + 2, 1)  # the first and the last row stay as they are: their difference is noise
        place = torch.arange(LENGTH)
        ids[place + 1, place] = (base + 12) % (VOCABULARY - 10) + 5
        logits, overridden = self._logits(ids, batch, forced)
        if forced and not overridden:
            logits = self._without_attention(ids, batch, forced)
        noise = (logits[-1] - logits[0]).abs().max()
        moved = (logits[1:-1] - logits[0]).abs().amax(-1) > max(self._least, _ABOVE_NOISE * float(noise))
        if noise > self._least and not moved.any():  # Llama 4 of transformers 4.54 weighs tokens by those of other rows
            raise ArithmeticError("like rows of a batch get unlike logits: the class draws at random, or mixes rows")
        return tuple("".join("1" if moved[key, query] else "0" for key in range(LENGTH)) for query in range(LENGTH))

    def _without_attention(self, ids: Any, batch: dict[str, Any], forced: str) -> Any:
        """Force a model that has no attention to override: read it backwards, or hide the documents from it."""
        if forced == "bidirectional":
            return self._logits(ids.flip(1), {"input_ids": ids, "use_cache": False}, None)[0].flip(1)
        return self._logits(ids, {"input_ids": ids, "use_cache": False}, None)[0]

    def _logits(self, ids: Any, batch: dict[str, Any], forced: str | None) -> tuple[Any, int]:
        import torch

        # Gradients stay on: with them, checkpointing decides otherwise about the cache.
        with torch.enable_grad(), _forced(forced) as overridden:
            if "cu_seq_lens_q" in batch:  # padding-free batches have one row
                told = [_answer(self.model(**(batch | {"input_ids": row[None]}))) for row in ids]
                return torch.cat(told), overridden[0]
            wide = {name: _widened(value, len(ids)) for name, value in batch.items()}
            return _answer(self.model(**(wide | {"input_ids": ids}))), overridden[0]


def small_kind(batch: Batch) -> str:
    """Return the kind of synthetic batch that does in small what a user's batch does."""
    packed = bool(batch.boundaries) or any(len(row) > 1 for row in batch.positions)
    whole = ((0, batch.length),)
    if batch.boundaries and not batch.valid:
        return "padding-free"
    if packed:
        return "packed-ones" if batch.valid else "packed"
    if not batch.valid:
        return "none"
    short = next((runs for runs in batch.valid if runs != whole), whole)
    return "ones" if short == whole else "right" if short and short[0][0] == 0 else "left"


def observe_twin(
    text: Any,
    attention: str | None,
    kind: str,
    given: Mapping[str, Any],
    checkpointing: bool = False,
    model: Any = None,
) -> tuple[Influence, ...]:
    """Return the influence of the batch and of the two controls; ``model`` is the class of the job's model."""
    try:
        twin = Twin(text, attention, checkpointing, model)
    except Exception as error:  # a config class that cannot be shrunk
        batch = describe(kind, make(kind, 1, LENGTH) | dict(given))
        reason = f"no small model of this class could be built: {type(error).__name__}: {str(error)[:200]}"
        return (Influence(name="batch", batch=batch, failed=reason),)
    plain = {"use_cache": False}
    return (
        twin.influence("batch", kind, given),
        twin.influence("bidirectional", "none", plain, forced="bidirectional"),
        twin.influence("causal", "packed", plain, forced="causal"),
    )


def _tiny_model(text: Any, attention: str | None, kind: Any = None) -> tuple[Any, Any]:
    """Return a tiny model and its config; the first way of shrinking whose model runs is taken.

    Raises:
        Exception: What the last way failed with.
    """
    import torch

    failed: Exception | None = None
    for way in ways(text):
        try:
            config = way()
            wanted = {"attn_implementation": attention} if attention in ("eager", "sdpa") else {}
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(SEED)
                model = _maker(config, kind)(config, **of_type(torch.float32), **wanted)
            _loop_over_experts(model)
            for module in model.modules():
                if isinstance(module, torch.nn.Dropout):
                    module.p = 0.0
            return _running(model).train(), config.get_text_config()
        except Exception as error:  # try the next way
            failed = error
    raise failed or ValueError("no way to shrink the config")


def _maker(config: Any, kind: Any) -> Callable[..., Any]:
    """Return what makes a model of a config: an automatic class, or the class of the job's model itself."""
    from transformers import AutoModel, AutoModelForCausalLM

    if type(config) in AutoModelForCausalLM._model_mapping:
        return AutoModelForCausalLM.from_config  # type: ignore[no-any-return]
    if type(config) not in AutoModel._model_mapping and getattr(kind, "config_class", None) is type(config):
        return kind._from_config  # type: ignore[no-any-return]
    return AutoModel.from_config  # type: ignore[no-any-return]


def _running(model: Any) -> Any:
    """Return the model in double precision, or in single where its class mixes the two.

    Raises:
        Exception: What it says in single precision.
    """
    import torch

    batch = {"input_ids": torch.full((1, LENGTH), 7), "use_cache": False}
    with torch.no_grad():
        try:
            model.double()(**batch)
        except RuntimeError:
            model.float()(**batch)
    return model


def _taken(model: Any, batch: Mapping[str, Any]) -> dict[str, Any]:
    """Return what of a control's batch a class takes: BART's of transformers 4 take no positions.

    Documents are then no more than places in a row, and the control still has to reach across them.
    """
    parameters = inspect.signature(model.forward).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return dict(batch)
    return {name: value for name, value in batch.items() if name in parameters}


def _answer(output: Any) -> Any:
    """Return the logits, or the last hidden state of a model that has no head."""
    return (output.logits if hasattr(output, "logits") else output.last_hidden_state).detach().double()


def _loop_over_experts(model: Any) -> None:
    """Use the path of experts that knows double precision; grouped kernels do not."""
    if hasattr(model, "set_experts_implementation"):
        with contextlib.suppress(Exception):  # a model without experts refuses
            model.set_experts_implementation("eager")


def _widened(value: Any, rows: int) -> Any:
    """Return a row repeated, each in its own memory: XGLM of transformers 4 adds to its positions in place."""
    return value.repeat_interleave(rows, 0) if hasattr(value, "dim") and value.dim() > 1 else value


@contextlib.contextmanager
def _forced(how: str | None) -> Iterator[list[int]]:
    """Override the mask of every attention call while the context lasts; yield a count of the calls."""
    import torch
    from torch.overrides import TorchFunctionMode

    count = [0]
    if how is None:
        yield count
        return
    sdpa, causal = torch.nn.functional.scaled_dot_product_attention, how == "causal"

    class Override(TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = dict(kwargs or {})
            if function is sdpa:
                count[0] += 1
                kwargs |= {"attn_mask": None, "is_causal": causal}
                args = args[:3]
            return function(*args, **kwargs)

    with interfaces(_plainly(causal, count)), Override():
        yield count


def _plainly(causal: bool, count: list[int]) -> Stand:
    """Return what gives attention functions other than SDPA a plain mask."""

    def stand(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        if name == "sdpa":  # overridden where it calls torch
            return function

        def attend(module: Any, query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
            if (query.shape[-2], key.shape[-2]) != (LENGTH, LENGTH):  # over something else than the tokens
                return function(module, query, key, value, *args, **kwargs)
            count[0] += 1
            kwargs = {name: value for name, value in kwargs.items() if name != "attention_mask"}
            return function(module, query, key, value, _plain(query, key, causal), *args[1:], **kwargs)

        return attend

    return stand


def _plain(query: Any, key: Any, causal: bool) -> Any:
    """Return an additive mask without padding, documents or windows."""
    import torch

    hidden = torch.full((query.shape[-2], key.shape[-2]), torch.finfo(query.dtype).min, dtype=query.dtype)
    return (hidden.triu(1) if causal else torch.zeros_like(hidden))[None, None]
