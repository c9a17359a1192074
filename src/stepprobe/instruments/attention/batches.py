"""Batches as a loop would pass them: made to order, or the user's own, and their run-length form."""

from collections.abc import Mapping
from typing import Any

from stepprobe.errors import UsageError
from stepprobe.model.attention import Batch

KINDS = ("none", "ones", "right", "left", "packed", "packed-ones", "padding-free")


def make(kind: str, size: int, length: int) -> dict[str, Any]:
    """Return a batch: ``input_ids`` and what a collator of this kind adds.

    Args:
        kind: One of ``KINDS``. ``right`` and ``left`` pad the last row by a quarter; ``packed`` puts documents of
            unequal length into each row; ``padding-free`` adds what TRL's collator emits.
        size: Rows.
        length: Tokens of a row.

    Raises:
        UsageError: There is no memory for it.
    """
    try:
        return _made(kind, size, length)
    except (RuntimeError, MemoryError) as error:
        raise UsageError(
            f"a batch of {size:,} rows of {length:,} tokens cannot be made here ({str(error)[:120]}…); "
            "ask with fewer rows"
        ) from error


def _made(kind: str, size: int, length: int) -> dict[str, Any]:
    import torch

    batch: dict[str, Any] = {"input_ids": torch.ones(size, length, dtype=torch.long)}
    short = max(1, length // 4) if length > 1 else 0
    if kind in ("ones", "right", "left", "packed-ones"):
        batch["attention_mask"] = torch.ones(size, length, dtype=torch.long)
    if kind == "right" and short:
        batch["attention_mask"][-1, -short:] = 0
    if kind == "left" and short:
        batch["attention_mask"][-1, :short] = 0
    if kind in ("packed", "packed-ones", "padding-free"):
        lengths = documents(length)
        positions = torch.cat([torch.arange(part) for part in lengths])
        batch["position_ids"] = positions[None].repeat(size, 1)
        if kind == "padding-free":
            batch |= _padding_free(lengths, size)
    return batch


def documents(length: int) -> list[int]:
    """Return document lengths of about 5/12, 1/3 and 1/4 of a row; [10, 14] at 24 tokens."""
    if length < 3:
        return [length]
    if length <= 24:
        return [length * 5 // 12, length - length * 5 // 12]
    first, second = length * 5 // 12, length // 3
    return [first, second, length - first - second]


def _padding_free(lengths: list[int], size: int) -> dict[str, Any]:
    import torch

    ends = torch.tensor([0, *lengths] if size == 1 else [0, *(lengths * size)]).cumsum(0).to(torch.int32)
    ids = torch.cat([torch.full((part,), place) for place, part in enumerate(lengths)]).to(torch.int32)
    return {
        "cu_seq_lens_q": ends,
        "cu_seq_lens_k": ends,
        "max_length_q": max(lengths),
        "max_length_k": max(lengths),
        "seq_idx": ids[None].repeat(size, 1),
    }


def describe(kind: str, batch: Mapping[str, Any]) -> Batch:
    """Return the run-length form of a batch; the order of tokens and their ids are left out."""
    import torch

    ids = batch["input_ids"] if batch.get("input_ids") is not None else batch["inputs_embeds"]
    mask, positions = batch.get("attention_mask"), batch.get("position_ids")
    boundaries = batch.get("cu_seq_lens_k")
    blocks = [(batch[name], none) for name, none in _BLOCKS.items() if isinstance(batch.get(name), torch.Tensor)][:1]
    if positions is not None and positions.dim() == 3:  # one plane for text, then height and width
        positions = positions[0]
    if positions is not None and positions.shape[0] != ids.shape[0]:
        positions = positions.expand(ids.shape[0], -1)
    return Batch(
        kind=kind,
        size=ids.shape[0],
        length=ids.shape[1],
        names=tuple(sorted(name for name, value in batch.items() if value is not None)),
        use_cache=batch.get("use_cache"),
        valid=_valid(mask) if isinstance(mask, torch.Tensor) and mask.dim() == 2 else (),
        positions=tuple(_jumps(row) for row in positions) if positions is not None else (),
        boundaries=tuple(boundaries.tolist()) if boundaries is not None else (),
        blocks=tuple(_blocks(row, none) for rows, none in blocks for row in rows),
    )


_BLOCKS = {"block_sequence_ids": -1, "mm_token_type_ids": 0, "token_type_ids": 0}
"""Arguments that mark the tokens of images, and the value that marks text."""


def _valid(mask: Any) -> tuple[tuple[tuple[int, int], ...], ...]:
    return tuple(tuple((first, end) for first, end, value in _equal_runs(row) if value) for row in mask.long().tolist())


def _jumps(row: Any) -> tuple[tuple[int, int], ...]:
    values = row.tolist()
    return tuple((place, value) for place, value in enumerate(values) if not place or value != values[place - 1] + 1)


def _blocks(row: Any, none: int) -> tuple[tuple[int, int, int], ...]:
    return tuple((first, end, value) for first, end, value in _equal_runs(row.tolist()) if value > none)


def _equal_runs(values: list[int]) -> list[tuple[int, int, int]]:
    runs: list[tuple[int, int, int]] = []
    for place, value in enumerate(values):
        if runs and runs[-1][2] == value:
            runs[-1] = (runs[-1][0], place + 1, value)
        else:
            runs.append((place, place + 1, value))
    return runs
