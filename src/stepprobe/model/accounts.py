"""The accounts of the ledger: every place where a nanosecond of a training step can be booked.

Standard library only: the list is also used inside the user's process.
"""

FORWARD_PARTS = ("embed", "attention", "mlp", "moe", "norm", "lm_head", "loss", "other")
"""What a forward or backward pass splits into, in the order of a decoder."""

FORWARD = tuple(f"forward.{part}" for part in FORWARD_PARTS)
BACKWARD = tuple(f"backward.{part}" for part in FORWARD_PARTS)

ACCOUNTS = (
    "data.wait",
    "data.fetch",
    "data.collate",
    "data.start",
    "h2d",
    *FORWARD,
    "recompute",
    *BACKWARD,
    "clip",
    "optimizer",
    "zero_grad",
    "scheduler",
    "sync",
    "d2h",
    "logging",
    "callbacks",
    "eval",
    "checkpoint",
    "gc",
    "compile",
    "unattributed",
)
"""Accounts of a finished ledger, in the order in which they are shown."""

UNDIVIDED = ("forward", "backward")
"""Accounts of a step that was not observed in detail; a derivation divides them by the shares of the detailed steps."""

BOOKED = (*ACCOUNTS, *UNDIVIDED)
"""Every account that evidence may hold."""

LABELS = {
    "data.wait": "data · wait for the loader",
    "data.fetch": "data · fetch rows",
    "data.collate": "data · collate",
    "data.start": "data · start the loader",
    "h2d": "copy to device",
    **{f"forward.{part}": f"forward · {part.replace('_', ' ')}" for part in FORWARD_PARTS},
    "recompute": "recompute (checkpointing)",
    **{f"backward.{part}": f"backward · {part.replace('_', ' ')}" for part in FORWARD_PARTS},
    "clip": "clip gradients",
    "optimizer": "optimizer",
    "zero_grad": "zero gradients",
    "scheduler": "scheduler",
    "sync": "synchronise",
    "d2h": "copy to host",
    "logging": "logging",
    "callbacks": "callbacks",
    "eval": "evaluation",
    "checkpoint": "checkpoint",
    "gc": "garbage collection",
    "compile": "compile",
    "unattributed": "unattributed",
}
"""The words for each account that a person reads."""
