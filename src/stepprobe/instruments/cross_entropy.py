"""Runs the loss itself, each chunk size in a process of its own: CPU seconds, peak memory, loss, gradient.

One process a point, because the high-water mark of memory belongs to a process. The chunked loss makes its gradient in
the forward pass, as fused losses do.
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepprobe.errors import NotObserved, UsageError

if TYPE_CHECKING:
    import torch

EVIDENCE = "ce.json"
ROWS = 256
CHUNKS = (32, 64, 128, 256)
"""Chunk sizes that are run; in smaller ones the shape of the product, not the chunk, decides the time."""
REPEATS = 3


def measure(
    vocabulary: int,
    hidden: int,
    *,
    dtype: str,
    trained_head: bool,
    rows: int = ROWS,
    chunks: Sequence[int] = CHUNKS,
) -> dict[str, bytes]:
    """Return the evidence of running the loss in chunks and in one piece.

    Raises:
        UsageError: torch is missing, or this is no Linux.
        NotObserved: A process failed, for example for want of memory.
    """
    if not Path("/proc/self/clear_refs").exists():
        raise UsageError("the loss is measured on Linux only: its peak memory is read from /proc")
    sizes = {"vocabulary": vocabulary, "hidden": hidden, "rows": rows, "dtype": dtype, "trained_head": trained_head}
    points = [_run({**sizes, "chunk": chunk}) for chunk in chunks]
    plain = _run({**sizes, "chunk": 0})
    held = {
        **sizes,
        "points": [{"chunk": chunk, **point} for chunk, point in zip(chunks, points, strict=True)],
        "plain_cpu_s": plain["cpu_s"],
        "plain_peak_bytes": plain["peak_bytes"],
        "losses": [plain["loss"], *(point["loss"] for point in points)],
        "gradients": [plain["gradient"], *(point["gradient"] for point in points)],
    }
    return {EVIDENCE: json.dumps(held, indent=1).encode()}


def _run(point: dict[str, Any]) -> dict[str, float]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "stepprobe.instruments.cross_entropy", json.dumps(point)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1]
        if "No module named 'torch'" in last:
            raise UsageError("measuring the loss needs torch in this Python; leave out --measure-loss, or install it")
        raise NotObserved(
            f"the loss could not be run at {point['rows']} rows: {last}; take fewer rows or a smaller model"
        )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def _memory(key: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key):
            return int(line.split()[1]) * 1024
    return 0


def _one_point(point: dict[str, Any]) -> dict[str, float]:
    """Run one chunk size in this process; chunk 0 is the unfused loss with its logits kept."""
    import time

    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    kind = torch.bfloat16 if point["dtype"] == "bf16" else torch.float32
    states = (torch.randn(point["rows"], point["hidden"]) * 0.5).to(kind)
    head = (torch.randn(point["vocabulary"], point["hidden"]) * 0.02).to(kind)
    labels = torch.randint(0, point["vocabulary"], (point["rows"],))
    base = _memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    times, loss, gradient = [], 0.0, 0.0
    for _ in range(REPEATS):
        begun = time.process_time()
        loss, gradient = _loss(states, head, labels, point["chunk"], trained_head=point["trained_head"])
        times.append(time.process_time() - begun)
    # in the unfused loss the head's gradient is made when the temporaries of the peak are gone
    of_head = head.numel() * head.element_size() if point["trained_head"] and point["chunk"] else 0
    peak = max(0, _memory("VmHWM") - base - of_head)
    return {"cpu_s": min(times), "peak_bytes": peak, "loss": loss, "gradient": gradient}


def _loss(
    states: "torch.Tensor", head: "torch.Tensor", labels: "torch.Tensor", chunk: int, *, trained_head: bool
) -> tuple[float, float]:
    """Return the loss and the norm of the gradient of the hidden states."""
    import torch
    from torch.nn import functional

    if chunk:
        loss, of_states = _chunked(states, head, labels, chunk, trained_head=trained_head)
        return loss, float(of_states.float().norm())
    states, head = states.detach().requires_grad_(), head.detach().requires_grad_(trained_head)
    logits = functional.linear(states, head)
    whole = functional.cross_entropy(logits.float(), labels)
    whole.backward()
    assert states.grad is not None
    assert isinstance(logits, torch.Tensor)
    return float(whole.detach()), float(states.grad.float().norm())


def _chunked(
    states: "torch.Tensor", head: "torch.Tensor", labels: "torch.Tensor", chunk: int, *, trained_head: bool
) -> "tuple[float, torch.Tensor]":
    import torch

    of_states, total, count = torch.empty_like(states), 0.0, len(labels)
    of_head = torch.zeros_like(head) if trained_head else None
    for begin in range(0, count, chunk):
        part, wanted = states[begin : begin + chunk], labels[begin : begin + chunk]
        logits = (part @ head.t()).float()
        sums = torch.logsumexp(logits, 1, keepdim=True)
        total += float((sums.squeeze(1) - logits.gather(1, wanted[:, None]).squeeze(1)).sum())
        logits.sub_(sums).exp_()
        logits[torch.arange(len(wanted)), wanted] -= 1
        gradient = logits.div_(count).to(states.dtype)
        torch.mm(gradient, head, out=of_states[begin : begin + chunk])
        if of_head is not None:
            of_head.addmm_(gradient.t(), part)
    return total / count, of_states


if __name__ == "__main__":
    sys.stdout.write(json.dumps(_one_point(json.loads(sys.argv[1]))) + "\n")
