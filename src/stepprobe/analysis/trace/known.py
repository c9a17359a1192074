"""A trace whose answer is known: what a derivation must recover before it is asked about an unknown one.

Two steps of 1 ms: a copy carried over from before the recording, a wait for the loader, a matrix product, a collective
half hidden behind it, a synchronisation, and a kernel that runs past the end of the host's last step.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any

START_US = 5_000_000
"""Time stamp at which the known trace begins, in µs."""

EXPECTED = {
    "trace.step_wall": 1.0,
    "trace.steps": 2.0,
    "trace.kernels": 3.0,
    "trace.busy_share": 0.75,
    "trace.idle_share": 0.25,
    "trace.dataloader": 0.1,
    "trace.device.compute": 0.625,
    "trace.device.communication": 0.075,
    "trace.device.carried_over": 0.05,
    "trace.device.idle.data": 0.05,
    "trace.device.idle.sync": 0.05,
    "trace.device.idle.launch": 0.01,
    "trace.device.idle.python": 0.1,
    "trace.device.idle.queued": 0.04,
    "trace.carried_over_share": 100 / 1700,
    "trace.linked_share": 1600 / 1700,
    "trace.double_count_factor": 3300 / 1700,
    "trace.comm_overlap_share": 0.25,
    "trace.launched": 0.775,
}
"""The answer, by figure."""


def kineto_text(events: Iterable[Mapping[str, Any]], about: Mapping[str, Any] | None = None) -> bytes:
    """Return a trace in the layout in which Kineto writes it: one event a block, all indented alike."""
    head = "".join(f"  {json.dumps(key)}: {json.dumps(value)},\n" for key, value in (about or {}).items())
    return f'{{\n{head}  "traceEvents": [{",".join(map(_block, events))}\n  ]\n}}\n'.encode()


def _block(event: Mapping[str, Any]) -> str:
    fields = ", ".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in event.items() if key != "args")
    arguments = f',\n    "args": {{\n      {json.dumps(event["args"])[1:-1]}\n    }}' if "args" in event else ""
    return f"\n  {{\n    {fields}{arguments}\n  }}"


def row(category: str, name: str, start_us: float, end_us: float, **rest: Any) -> dict[str, Any]:  # noqa: ANN401
    """Return one event; times are µs after ``START_US``, on the host's one thread unless ``rest`` says else."""
    where = {"pid": rest.pop("pid", 42), "tid": rest.pop("tid", 42)}
    arguments = {key.replace("_", " ") if key.startswith("External") else key: value for key, value in rest.items()}
    event = {"ph": "X", "cat": category, "name": name, **where, "ts": START_US + start_us, "dur": end_us - start_us}
    return event | ({"args": arguments} if arguments else {})


def known_trace() -> bytes:
    """Return the text of the known trace."""
    stream, second = {"pid": 0, "tid": 7}, {"pid": 0, "tid": 20}
    reduce = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
    return kineto_text(
        [
            row("user_annotation", "ProfilerStep#3", 0, 1000, External_id=1),
            row("user_annotation", "ProfilerStep#4", 1000, 2000, External_id=2),
            row(
                "user_annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 0, 200, External_id=3
            ),
            row("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 0, 100, correlation=5, **stream),
            row("cpu_op", "aten::mm", 200, 300, External_id=4),
            row("cuda_runtime", "cudaLaunchKernel", 210, 220, correlation=10, External_id=4),
            row("kernel", "sm90_xmma_gemm_bf16", 250, 650, correlation=10, External_id=4, **stream),
            row("cpu_op", "c10d::allreduce_", 300, 320, External_id=5),
            row("cuda_runtime", "cudaLaunchKernelExC", 305, 310, correlation=11, External_id=5),
            row("kernel", reduce, 600, 800, correlation=11, External_id=5, **second),
            row("cuda_runtime", "cudaDeviceSynchronize", 700, 900, correlation=12),
            row("cpu_op", "aten::mm", 1100, 1200, External_id=6),
            row("cuda_runtime", "cudaLaunchKernel", 1110, 1120, correlation=13, External_id=6),
            row("kernel", "sm90_xmma_gemm_bf16", 1150, 2150, correlation=13, External_id=6, **stream),
        ],
        {"schemaVersion": 1, "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 1}},
    )
