"""The lines of ``experiments-rank<R>-pid<P>.jsonl``: what was asked of the user's own step, and what it answered.

Each line is sealed like those of ``stepprobe.model.records``. One *micro-step* is forward, loss and backward of one
batch, without the optimizer. Times are integer nanoseconds of one micro-step (or of the part that is named); they are
never corrected here.
"""

from typing import Literal

import msgspec

from stepprobe.errors import EvidenceError
from stepprobe.model.records import decode_lines

EXPERIMENTS_SCHEMA = 1

Experiment = Literal[
    "scaling", "heldout", "fixed_tokens", "padded", "unpadded", "loss", "loss_chunk", "loss_metric", "remedy"
]
"""Which question a measurement belongs to.

``scaling`` and ``heldout``: the micro-step at a point of the fit, and at the point that the fit may not see;
``fixed_tokens``: more rows of fewer tokens each; ``padded`` and ``unpadded``: the same real tokens with and without
padding; ``loss``: output layer and loss alone, forward and backward; ``loss_chunk``: the same in chunks of ``variant``
rows; ``loss_metric``: what is computed beside the loss (``variant``: ``entropy`` or ``accuracy``); ``remedy``: the
micro-step with the remedy ``variant`` on, beside ``variant`` = ``"none"`` in the same block; ``below_window`` is as
many rows of one token less than the model's sliding window.
"""


class Harness(msgspec.Struct, frozen=True, kw_only=True, tag="harness", tag_field="type"):
    """First line: whose step is driven, and what it was given before the experiments."""

    schema: int
    source: str
    """How the step was taken over: ``Trainer.training_step``, ``replay``, ``LightningModule.training_step``, or the
    ``module:factory`` that the user named."""
    root: str
    """Class of the root module."""
    rank: int
    device: str
    dtype: str
    threads: int
    """Threads that PyTorch computes with on the CPU."""
    micro_steps: int
    """Micro-steps of one optimizer step."""
    batches: list[list[int]]
    """Real tokens of each row of each micro-batch that was seen before (bounded), in order."""
    labelled_share: float | None
    """Tokens that have a label, after the shift, over real tokens of those batches."""
    captured_loss: float | None
    """Loss of a micro-step that the script ran itself."""
    replayed_loss: float | None
    """Loss of the same batch when the harness ran it: the control of the harness."""
    longest: int | None
    """Slots of a row that the model allows (``max_position_embeddings``)."""
    vocabulary: int | None


class Quiet(msgspec.Struct, frozen=True, kw_only=True, tag="quiet", tag_field="type"):
    """How idle the machine was before anything was measured."""

    load: float
    """Mean number of runnable tasks of the last minute."""
    cpus: int
    others_share: float | None
    """CPU time that others took over the CPU time there was, while this process slept; None where unknown."""
    own_share: float | None = None
    """The same of the job's own processes: its data workers, above all."""
    device_busy_share: float | None
    """Utilisation of the card while this process let it rest; None where unknown or without a card."""
    device_processes: int | None
    free_bytes: int | None
    """Memory that could be had: of the card, else of the machine."""
    refused: str
    """Why the experiments were not begun; empty where they were."""
    anyway: bool
    """The user asked to measure on a busy machine."""
    busy: str | None = None
    """Why the machine was too busy, also where it was measured all the same; empty: it was not; None: not kept."""


class Measured(msgspec.Struct, frozen=True, kw_only=True, tag="measured", tag_field="type"):
    """One repetition."""

    experiment: Experiment
    variant: str = ""
    block: int
    """Number of the block; each block holds every point of the experiment once, in an order of its own."""
    rows: int
    length: int
    """Slots of each row."""
    real: int
    """Tokens that are no padding."""
    labelled: int | None = None
    wall_ns: int
    thread_ns: int
    """CPU time of the calling thread."""
    process_ns: int
    """CPU time of all threads of the process."""
    device_ns: int | None = None
    """Between two events on the card; None without a card."""
    peak_bytes: int | None = None
    """Most memory above what lay there before; None where unknown. On the CPU it is seen in a warm-up of this shape."""
    loss: float | None = None
    gradient: float | None = None
    """Norm of the gradient, where variants are compared."""


class Dropped(msgspec.Struct, frozen=True, kw_only=True, tag="dropped", tag_field="type"):
    """A point that could not be measured."""

    experiment: Experiment
    variant: str = ""
    rows: int
    length: int
    reason: Literal["memory", "refused", "loss", "time"]
    """Out of memory or predicted to be; the user's code raised; loss or gradient was not finite; the time was up."""
    text: str


class Limit(msgspec.Struct, frozen=True, kw_only=True, tag="limit", tag_field="type"):
    """What this machine can do at most: one size of one kind of work, repeated."""

    kind: Literal["matmul", "copy", "dispatch"]
    size: int
    dtype: str
    work: int
    """FLOPs, bytes moved (read and written), or operations of one repetition."""
    wall_ns: list[int]
    thread_ns: list[int]
    device_ns: list[int] | None = None
    block: int | None = None
    """Block of the micro-steps between which it was measured; None for the first look at the machine."""


class Structure(msgspec.Struct, frozen=True, kw_only=True, tag="structure", tag_field="type"):
    """What the user's model is made of, as far as arithmetic goes."""

    config: dict[str, object]
    """The model's ``config.json``, as transformers writes it; empty for a model without one."""
    weights: list["Weight"]
    embedding_gradient: bool
    """A gradient flows to what the embedding gives: its weight is trained, or a hook asks for it."""
    checkpointing: bool = False
    """The micro-step runs the layers' forward a second time in the backward pass."""
    attention: str = ""
    """Attention implementation of the micro-step."""
    autocast: str = ""
    """Element type that matrix products are cast to; empty without autocast."""


class Weight(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of weight: the parameters whose names differ in the number of the layer (and of the expert) alone."""

    name: str
    """Name with ``*`` for each number and without what an adapter's package puts around it."""
    shape: list[int]
    layers: list[int]
    """First number in each name; -1 where there is none."""
    trained: list[int]
    """Those of ``layers`` whose weight gets a gradient."""


class Counted(msgspec.Struct, frozen=True, kw_only=True, tag="counted", tag_field="type"):
    """FLOPs of one micro-step that a counter saw on tensors without storage, with eager attention."""

    rows: int
    length: int
    flops: dict[str, int]
    """Operator -> FLOPs of forward and backward."""
    operators: dict[str, int] = {}
    """Part of the model (``attention mlp moe norm lm_head embed other``) -> operators that its forward dispatched."""
    backward_operators: int = 0
    """Operators that the backward pass dispatched."""
    corrected: str = ""
    """What the counter of PyTorch missed and was counted here instead."""
    failure: str = ""
    """Why nothing was counted."""


class Restored(msgspec.Struct, frozen=True, kw_only=True, tag="restored", tag_field="type"):
    """What was put back, and whether it is what it was."""

    unchanged: dict[str, bool]
    """``parameters buffers gradients optimizer scheduler random counters`` -> the same as before the experiments."""
    seconds: float
    """What the experiments took."""


class Done(msgspec.Struct, frozen=True, kw_only=True, tag="done", tag_field="type"):
    """Last line."""

    reason: str
    """``finished``, or what stopped the experiments."""


ExperimentRecord = Harness | Quiet | Measured | Dropped | Limit | Structure | Counted | Restored | Done

_DECODER = msgspec.json.Decoder(ExperimentRecord)


def decode_experiments(name: str, data: bytes) -> tuple[list[ExperimentRecord], int]:
    """Decode one ``experiments-*.jsonl`` file; return its lines and the bytes of a last one that was never finished.

    Raises:
        EvidenceError: A finished line is damaged, there is no harness line, or the file is of a newer schema.
    """
    records, cut_bytes = decode_lines(name, data, _DECODER)
    if not records or not isinstance(records[0], Harness):
        raise EvidenceError(f"{name}: has no harness line; the process ended before it wrote one")
    if records[0].schema > EXPERIMENTS_SCHEMA:
        raise EvidenceError(f"{name}: written by a newer stepprobe (schema {records[0].schema}); upgrade stepprobe")
    return records, cut_bytes
