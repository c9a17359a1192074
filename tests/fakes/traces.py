"""GPU-shaped traces with known answers: a builder, and an oracle that books each nanosecond by looking at it."""

import gzip
import json
from itertools import pairwise

from stepprobe.analysis.trace.known import kineto_text

ACCOUNTS = (
    "compute",
    "communication",
    "copy",
    "carried_over",
    "idle.queued",
    "idle.data",
    "idle.sync",
    "idle.launch",
    "idle.python",
)


class Builder:
    """Collects events; times are integers in ns after ``origin_ns``."""

    def __init__(self, origin_ns=5_000_000_000, rank=0, pid=42, device=0):
        self.origin_ns, self.rank, self.pid, self.device = origin_ns, rank, pid, device
        self.events, self.correlation = [], 100
        self.truth = []  # (kind, start, end) of everything that the ledger looks at

    def row(self, category, name, start, end, pid=None, tid=None, **arguments):
        event = {
            "ph": "X",
            "cat": category,
            "name": name,
            "pid": self.pid if pid is None else pid,
            "tid": tid or self.pid,
        }
        event |= {"ts": self.time(self.origin_ns + start), "dur": self.time(end - start)}
        if arguments:
            event["args"] = {key.replace("_", " "): value for key, value in arguments.items()}
        self.events.append(event)
        return event

    @staticmethod
    def time(ns):
        return ns // 1000 if ns % 1000 == 0 else ns / 1000

    def step(self, number, start, end):
        self.truth.append(("step", start, end))
        return self.row("user_annotation", f"ProfilerStep#{number}", start, end)

    def data(self, start, end):
        self.truth.append(("idle.data", start, end))
        return self.row("user_annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", start, end)

    def sync(self, start, end):
        self.truth.append(("idle.sync", start, end))
        return self.row("cuda_runtime", "cudaStreamSynchronize", start, end, correlation=self.next())

    def op(self, name, start, end, tid=None, **arguments):
        self.truth.append(("idle.launch", start, end))
        return self.row("cpu_op", name, start, end, tid=tid, **arguments)

    def launch(self, start, end, tid=None, name="cudaLaunchKernel"):
        self.truth.append(("idle.launch", start, end))
        correlation = self.next()
        self.row("cuda_runtime", name, start, end, tid=tid, correlation=correlation)
        return correlation

    def kernel(self, name, start, end, correlation, stream=7, launched=None, category="kernel", **arguments):
        """A device row; ``launched`` is the start of its launch call, None where there is no launch row."""
        account = "copy" if category != "kernel" else "communication" if "nccl" in name else "compute"
        self.truth.append((account if launched is not None else "carried_over", start, end, launched))
        arguments |= {"correlation": correlation, "device": self.device, "stream": stream}
        return self.row(category, name, start, end, pid=self.device, tid=stream, **arguments)

    def next(self):
        self.correlation += 1
        return self.correlation

    def text(self, order=None, about=None):
        events = self.events if order is None else [self.events[place] for place in order]
        known = {"schemaVersion": 1, "distributedInfo": {"backend": "nccl", "rank": self.rank, "world_size": 8}}
        return kineto_text(events, known if about is None else about)

    def compact(self):
        return json.dumps({"traceEvents": self.events}).encode()

    def packed(self):
        return gzip.compress(self.text())

    def answer(self):
        """The ledger of every step, found by asking of each elementary stretch who holds it."""
        edges = sorted({edge for fact in self.truth for edge in fact[1:] if edge is not None})
        device = [fact for fact in self.truth if len(fact) == 4]
        busy = [(start, end) for _, start, end, _ in device]
        found = []
        for step in (fact for fact in self.truth if fact[0] == "step"):
            accounts = dict.fromkeys(ACCOUNTS, 0)
            inner = [edge for edge in edges if step[1] <= edge <= step[2]]
            for start, end in pairwise(inner):
                holders = {fact[0] for fact in self.truth if fact[0] != "step" and fact[1] <= start < fact[2]}
                if not any(a <= start < b for a, b in busy) and self.was_queued(device, start):
                    holders.add("idle.queued")
                accounts[next((name for name in ACCOUNTS if name in holders), "idle.python")] += end - start
            found.append(accounts)
        return found

    @staticmethod
    def was_queued(device, time):
        later = [fact for fact in device if fact[1] > time]
        if not later:
            return False
        first = min(fact[1] for fact in later)
        launches = [fact[3] for fact in later if fact[1] == first]
        return any(launched is None or launched <= time for launched in launches)


def steps_of(summary):
    """The device ledger step by step, device after device."""
    return [step for one in summary.devices for step in one.steps(summary.step_names)]


def training(steps=3, ns=0):
    """A few ordinary steps: two streams, a collective, a copy, a sync, a wait for data. ``ns`` shifts the grid."""
    built = Builder()
    base = 1_000_000 + ns
    for number in range(steps):
        at = number * base
        built.step(number + 10, at, at + base)
        built.data(at + 10_000, at + 110_000)
        built.op("aten::linear", at + 150_000, at + 260_000, External_id=number * 10 + 1)
        built.op("aten::addmm", at + 160_000, at + 250_000, External_id=number * 10 + 2)
        gemm = built.launch(at + 170_000, at + 180_000)
        built.kernel(
            "sm90_gemm", at + 200_000, at + 500_000 + ns, gemm, launched=at + 170_000, External_id=number * 10 + 2
        )
        built.op("c10d::allreduce_", at + 270_000, at + 300_000, External_id=number * 10 + 3)
        reduce = built.launch(at + 280_000, at + 290_000)
        name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
        built.kernel(name, at + 450_000, at + 640_000, reduce, 20, at + 280_000, External_id=number * 10 + 3)
        built.op("aten::copy_", at + 310_000, at + 340_000, External_id=number * 10 + 4)
        copy = built.launch(at + 320_000, at + 330_000, name="cudaMemcpyAsync")
        built.kernel(
            "Memcpy DtoH (Device -> Pageable)", at + 650_000, at + 700_000, copy, 7, at + 320_000, "gpu_memcpy"
        )
        built.sync(at + 600_000, at + 710_000)
        built.op("Optimizer.step", at + 800_000, at + 900_000, External_id=number * 10 + 5)
        adam = built.launch(at + 810_000, at + 820_000)
        built.kernel("multi_tensor_apply_kernel", at + 850_000, at + 1_050_000, adam, launched=at + 810_000)
    return built
