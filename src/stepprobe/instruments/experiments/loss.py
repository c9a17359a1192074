"""Output layer and loss alone, forward and backward, on hidden states that a step of the run handed to them.

The states are caught in one step at the shape, the layer is the model's own module with its own weight. The loss is the
model's ``loss_function`` where it has one, else PyTorch's cross entropy in fp32 over shifted labels; a line's variant
says which. In chunks each chunk goes forward and backward before the next begins, so that the logits of one alone are
held and nothing has to be computed twice: as fused losses do.
"""

import dataclasses
import functools
from types import ModuleType
from typing import Any

from stepprobe.instruments.attach.kinds import kind_of
from stepprobe.instruments.experiments.bench import Bench, Case
from stepprobe.instruments.experiments.plan import Point

MODELS = "loss_function"
OURS = "cross_entropy"
IGNORED = -100
CHUNKS = (1, 2, 4, 8, 16)
"""The rows are cut into so many chunks."""


@dataclasses.dataclass
class Head:
    """The output layer, what it was given, and what it should say."""

    torch: ModuleType
    layer: Any
    states: Any
    """(rows, length, hidden)."""
    labels: Any
    """(rows, length), not shifted."""
    function: Any
    """The model's own loss, or None."""
    vocabulary: int
    autocast: Any = None
    """Element type of autocast while the layer ran in the step; None without."""

    def casting(self) -> Any:
        """Return the context in which the layer ran in the step."""
        kind = self.labels.device.type
        return self.torch.autocast(kind, dtype=self.autocast, enabled=self.autocast is not None)

    def whole(self, states: Any) -> Any:
        """Run layer and loss over all rows, forward and backward; return the loss."""
        with self.casting():
            logits = self.layer(states)
            if self.function is not None:
                loss = self.function(logits=logits, labels=self.labels, vocab_size=self.vocabulary)
            else:
                loss = self.mean_loss(logits[:, :-1].flatten(0, 1), self.labels[:, 1:].flatten())
        loss.backward()
        return loss.detach()

    def mean_loss(self, logits: Any, labels: Any) -> Any:
        """Return PyTorch's cross entropy in fp32."""
        return self.torch.nn.functional.cross_entropy(logits.float(), labels, ignore_index=IGNORED)

    def in_chunks(self, states: Any, rows: int) -> Any:
        """Run layer and loss over so many rows at a time; return the loss."""
        flat, labels = states[:, :-1].flatten(0, 1), self.labels[:, 1:].flatten()
        count = (labels != IGNORED).sum().clamp(min=1)
        total = labels.new_zeros((), dtype=self.torch.float32)
        pieces = flat.detach()
        found = self.torch.empty_like(pieces)
        entropy = self.torch.nn.functional.cross_entropy
        for begin in range(0, len(labels), rows):
            part = pieces[begin : begin + rows].requires_grad_()
            wanted = labels[begin : begin + rows]
            with self.casting():
                loss = entropy(self.layer(part).float(), wanted, ignore_index=IGNORED, reduction="sum") / count
            loss.backward()
            found[begin : begin + rows] = part.grad
            total += loss.detach()
            del loss, part
        flat.backward(found)
        return total

    def entropy(self, logits: Any) -> None:
        """Compute the entropy of logits, row by row, as loops log it."""
        with self.torch.no_grad():
            logs = self.torch.log_softmax(logits.float(), -1)
            (logs.exp() * logs).sum(-1).neg().mean()

    def accuracy(self, logits: Any) -> None:
        """Compute the share of rows whose largest logit is the label."""
        with self.torch.no_grad():
            wanted = self.labels[:, 1:]
            hits = (logits[:, :-1].argmax(-1) == wanted) & (wanted != IGNORED)
            hits.sum() / (wanted != IGNORED).sum()

    def fresh_states(self) -> Any:
        """Return the states as a leaf that gets a gradient, as they do in a step."""
        return self.states.detach().clone().requires_grad_()

    def fresh_logits(self) -> Any:
        """Return the logits on which metrics are computed."""
        with self.torch.no_grad(), self.casting():
            return self.layer(self.states)

    def norm(self, states: Any) -> float:
        """Return the norm of the gradients of the states and of the layer."""
        grads = [states.grad, *(one.grad for one in self.layer.parameters() if one.requires_grad)]
        return float(sum(float(one.float().norm()) ** 2 for one in grads if one is not None) ** 0.5)


def cases(bench: Bench, head: Head, shape: Point) -> list[Case]:
    """Return the loss as it is, in chunks, and what loops compute beside it."""
    rows, length = shape
    make = functools.partial(Case, rows=rows, length=length)
    name = OURS if head.function is None else MODELS
    found = [make("loss", variant=name, prepare=head.fresh_states, run=head.whole, gradient=head.norm)]
    for size in chunk_rows(rows * (length - 1)):
        run = functools.partial(_chunked, head, size)
        chunk = make("loss_chunk", variant=str(size), prepare=head.fresh_states, run=run, gradient=head.norm)
        found.append(chunk)
    for metric, of in (("entropy", head.entropy), ("accuracy", head.accuracy)):
        found.append(make("loss_metric", variant=metric, prepare=head.fresh_logits, run=of))
    return found


def _chunked(head: Head, rows: int, states: Any) -> Any:
    return head.in_chunks(states, rows)


def chunk_rows(rows: int) -> list[int]:
    """Return the chunk sizes to try, largest first: all rows at once, and down to a sixteenth."""
    return sorted({-(-rows // count) for count in CHUNKS}, reverse=True) if rows > 0 else []


def caught(bench: Bench, shape: Point) -> Head | str:
    """Return the output layer with what a step at the shape gave it, or why it cannot be measured alone."""
    root = bench.harness.root()
    layer = output_layer(root, bench.plan.vocabulary)
    if layer is None:
        return (
            "the output layer was not found: no get_output_embeddings, no Linear of its name or the vocabulary's width"
        )
    bench.torch.manual_seed(bench.plan.seed)  # the batch that the step is measured on
    batch = bench.harness.batch(*shape)
    labels = _labels(batch)
    if labels is None:
        return "the batch has no labels of (rows, length), so the loss cannot be computed apart from the step"
    states, autocast = _states(bench, root, layer, batch)
    if states is None:
        return "neither the output layer nor the decoder was called in the step, so its hidden states are unknown"
    if getattr(states, "ndim", 0) != 3 or tuple(states.shape[:2]) != tuple(labels.shape):
        return f"the output layer was given {list(getattr(states, 'shape', []))}, not a state for each token"
    weight = layer.weight
    model = model_with_loss(root)
    function = None if model is None else model.loss_function
    return Head(bench.torch, layer, states, labels.to(weight.device), function, int(weight.shape[0]), autocast)


def model_with_loss(root: Any) -> Any:
    """Return the Transformers model whose own loss is the causal one, shift included; None where there is none."""
    for module in root.modules():
        if callable(getattr(type(module), "get_output_embeddings", None)):
            function = getattr(module, "loss_function", None)
            if "CausalLM" in getattr(function, "__name__", ""):
                return module
    return None


def _labels(batch: Any) -> Any:
    get = getattr(batch, "get", None)
    labels = get("labels") if get else None
    return labels if getattr(labels, "ndim", 0) == 2 else None


def output_layer(root: Any, vocabulary: int | None) -> Any:
    """Return the module that makes logits: the model says so, or it is the last Linear of the vocabulary's width.

    Where the vocabulary is not known, it is the last Linear that the ledger books as the head, by its name.
    """
    for module in root.modules():
        ask = getattr(module, "get_output_embeddings", None)
        layer = ask() if callable(ask) else None
        if getattr(getattr(layer, "weight", None), "ndim", 0) == 2:
            return layer
    linear = [(name, module) for name, module in root.named_modules() if getattr(module, "out_features", 0)]
    if vocabulary:
        heads = [module for _, module in linear if module.out_features == vocabulary]
    else:
        heads = [module for name, module in linear if kind_of(name, module) == "lm_head"]
    return heads[-1] if heads else None


def autocast_of(torch: ModuleType, kind: str) -> Any:
    """Return the element type that autocast casts to now, None where it is off."""
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None


def _states(bench: Bench, root: Any, layer: Any, batch: Any) -> tuple[Any, Any]:
    """Run a step; return what the output layer was given, and the element type of autocast there.

    Where a fused loss passes the layer by, what the decoder gave is what the layer would have been given.
    """
    found: dict[str, Any] = {}

    def given(_: Any, arguments: Any) -> None:
        found["layer"] = arguments[0].detach() if arguments else None
        found["autocast"] = autocast_of(bench.torch, bench.machine.kind)

    def gave(_: Any, __: Any, output: Any) -> None:
        states = getattr(output, "last_hidden_state", None)
        states = states if states is not None else output[0] if isinstance(output, tuple) else output
        found["decoder"] = states.detach() if hasattr(states, "detach") else None
        found.setdefault("autocast", autocast_of(bench.torch, bench.machine.kind))

    handles = [layer.register_forward_pre_hook(given)]
    for module in root.modules():
        ask = getattr(module, "get_decoder", None)
        decoder = ask() if callable(ask) else None
        if decoder is not None and decoder is not module:
            handles.append(decoder.register_forward_hook(gave))
            break
    try:
        bench.harness.step(batch)
    finally:
        for handle in handles:
            handle.remove()
    return found.get("layer", found.get("decoder")), found.get("autocast")
