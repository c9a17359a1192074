"""HF Trainer."""

import functools
import inspect
from types import ModuleType
from typing import Any

from stepprobe.instruments.attach.callers import unseen
from stepprobe.instruments.attach.clock import INDEX
from stepprobe.instruments.attach.observer import Observer
from stepprobe.instruments.attach.patches import booked, swallowed

BOOKED = {
    "_prepare_inputs": "h2d",
    "get_batch_samples": "data.wait",
    "_maybe_log_save_evaluate": "logging",
    "floating_point_ops": "logging",
    "_track_num_input_tokens": "logging",
    "_clip_grad_norm": "clip",
    "_get_grad_norm": "clip",
}
SWALLOWED = {"evaluate": "eval", "predict": "eval", "_save_checkpoint": "checkpoint"}
MASKS = ("create_causal_mask", "create_sliding_window_causal_mask", "create_chunked_causal_mask")
MOST = 1e18
"""What a rate may be; infinities and what is no number are no rates."""
SETTINGS = (
    *("gradient_accumulation_steps", "gradient_checkpointing", "bf16", "fp16", "dataloader_num_workers"),
    *("packing", "padding_free", "group_by_length", "train_sampling_strategy", "per_device_train_batch_size"),
    *("max_length", "logging_steps", "eval_steps", "save_steps"),
)


def attach_trainer(observer: Observer, trainer: ModuleType) -> None:
    """Book what ``Trainer`` does around the model."""
    clock, gate, patches, cls = observer.clock, observer.gate, observer.patches, trainer.Trainer
    for name, account in BOOKED.items():
        patches.replace(cls, name, booked(clock, gate, INDEX[account]))
    for name, account in SWALLOWED.items():
        patches.replace(cls, name, swallowed(clock, gate, INDEX[account]))
    for name in ("training_step", "compute_loss"):
        patches.replace(cls, name, observer.part("other"))
    # looked up on every micro-step, on the disk, by the filter of the losses that are logged
    patches.replace(trainer, "is_torch_xla_available", booked(clock, gate, INDEX["logging"]))
    patches.replace(cls, "log", lambda log: _logging(observer, log))
    patches.replace(cls, "_inner_training_loop", lambda loop: _noting_settings(observer, loop))
    patches.replace(cls, "_finalize_training", lambda finalize: _ending(observer, finalize))


def _logging(observer: Observer, log: Any) -> Any:
    """Keep the numbers about speed and tokens that the framework itself logs, for comparison with ours."""
    logged = booked(observer.clock, observer.gate, INDEX["logging"])(log)

    @unseen(log)
    def logging(trainer: Any, logs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        if isinstance(logs, dict):
            observer.sites.rates.update(_rates(logs))
        return logged(trainer, logs, *args, **kwargs)

    return logging


def _rates(logs: dict[Any, Any]) -> dict[str, float]:
    named = {str(name)[:80]: value for name, value in logs.items() if isinstance(value, (int, float))}
    return {
        name: float(value)
        for name, value in named.items()
        if abs(value) < MOST and ("per_second" in name or "tokens" in name)
    }


def _noting_settings(observer: Observer, loop: Any) -> Any:
    @unseen(loop)
    def noting(trainer: Any, *args: Any, **kwargs: Any) -> Any:
        observer.facts.setdefault("framework", "transformers")
        for name in SETTINGS:
            value = getattr(trainer.args, name, None)
            if isinstance(value, (bool, int, float, str)):
                observer.facts[name] = value
        if observer.take_over is not None:
            observer.take_over.trainer_begins(trainer)
        return loop(trainer, *args, **kwargs)

    return noting


def _ending(observer: Observer, finalize: Any) -> Any:
    @unseen(finalize)
    def ending(*args: Any, **kwargs: Any) -> Any:
        observer.training_ended()
        return finalize(*args, **kwargs)

    return ending


def attach_callbacks(observer: Observer, callbacks: ModuleType) -> None:
    """Book the callbacks."""
    book = booked(observer.clock, observer.gate, INDEX["callbacks"])
    observer.patches.replace(callbacks.CallbackHandler, "call_event", book)


def attach_losses(observer: Observer, losses: ModuleType) -> None:
    """Book the loss functions, which models look up by name in a mapping.

    Trainer asks whether a model's loss *is* ``ForCausalLMLoss``, and counts the labels differently when it is not: one
    function gets one replacement under all its names.
    """
    book = functools.cache(observer.part("loss"))
    originals = set(losses.LOSS_MAPPING.values())
    for name in list(losses.LOSS_MAPPING):
        observer.patches.replace(losses.LOSS_MAPPING, name, book)
    for name in [name for name, member in vars(losses).items() if inspect.isfunction(member) and member in originals]:
        observer.patches.replace(losses, name, book)


def attach_masks(observer: Observer, masks: ModuleType) -> None:
    """Book the building of attention masks as attention."""
    for name in MASKS:
        observer.patches.replace(masks, name, observer.part("attention"))


ON_IMPORT = {
    "transformers.trainer": attach_trainer,
    "transformers.trainer_callback": attach_callbacks,
    "transformers.loss.loss_utils": attach_losses,
    "transformers.masking_utils": attach_masks,
}
