"""A harness whose step costs what a test plants, on clocks that stand still otherwise: instant, and without torch.

``FakeHarness`` is the user's step, ``FakeClocks`` the time that it spends, ``FakeTorch`` as much of torch as the driver
asks for, ``ListJournal`` the file. ``planted_lines`` gives the lines of a finished run at once, without the driver.
"""

import json
import math
import random
import zlib
from types import SimpleNamespace

from stepprobe.instruments.experiments.timing import Stopwatch


class FakeClocks:
    """The clocks of one process, in ns; they move when a step spends time."""

    def __init__(self):
        self.now = self.thread_now = self.process_now = 1_000

    def spend(self, wall, thread=None, process=None):
        self.now += round(wall)
        self.thread_now += round(wall if thread is None else thread)
        self.process_now += round(wall if process is None else process)

    def wall(self):
        return self.now

    def thread(self):
        return self.thread_now

    def process(self):
        return self.process_now


class FakeOutOfMemory(RuntimeError):
    """As ``torch.OutOfMemoryError``."""


class FakeTorch:
    """As much of torch as a driver on the CPU asks for."""

    OutOfMemoryError = FakeOutOfMemory

    def __init__(self):
        self.seeds = []
        self.cuda = SimpleNamespace(is_available=lambda: False)

    def manual_seed(self, seed):
        self.seeds.append(seed)

    def get_num_threads(self):
        return 1


class FakeParameter:
    """A parameter whose gradient can be dropped."""

    def __init__(self):
        self.grad = None
        self.requires_grad = True
        self.device = SimpleNamespace(type="cpu", index=None)


class FakeModule:
    """A module without layers."""

    training = True

    def __init__(self):
        self.weight = FakeParameter()

    def parameters(self):
        return iter([self.weight])

    def modules(self):
        return iter([self])


class FakeLoss(float):
    """A 0-d tensor, as far as anybody asks."""

    def detach(self):
        return self

    def item(self):
        return float(self)

    def float(self):
        return self

    def norm(self):
        return abs(self)

    def detach_(self):
        return self

    def zero_(self):
        return self


class FakeHarness:
    """A micro-step that takes ``a + b·B·L + c·B·L²`` ns, times what is planted.

    Args:
        fixed: a, in ns.
        per_token: b, in ns.
        per_token_length: c, in ns.
        noise: Standard deviation of the logarithm of a step's time.
        drift: Part by which a step is dearer after 100 steps.
        beyond: (length, part): steps longer than that are dearer by this part, which no fit of a, b and c can know.
        capacity: Bytes above which a step runs out of memory; None for no end of it.
        bytes_per_token: What a token of a step takes.
        out_of_memory: What is raised then; ``FakeOutOfMemory`` if None.
        shortest, longest: Lengths that are not refused by ``batch``.
        faults: (rows, length) -> exception that the step raises there.
        not_finite: Lengths from which the loss is no number.
        first_ns: What the first step of a shape costs on top: what a warm-up is for.
        seed: Of the noise.
    """

    def __init__(self, *, fixed=6e6, per_token=24e3, per_token_length=40.0, noise=0.0, drift=0.0, beyond=None,
                 capacity=None, bytes_per_token=1000, out_of_memory=None, shortest=1,
                 longest=1 << 20, faults=None, not_finite=math.inf, first_ns=0.0, seed=0):  # fmt: skip
        self.fixed, self.per_token, self.per_token_length = fixed, per_token, per_token_length
        self.noise, self.drift, self.beyond = noise, drift, beyond
        self.capacity, self.bytes_per_token = capacity, bytes_per_token
        self.out_of_memory = out_of_memory or FakeOutOfMemory("out of memory")
        self.shortest, self.longest, self.faults = shortest, longest, faults or {}
        self.not_finite, self.first_ns = not_finite, first_ns
        self.clocks = FakeClocks()
        self.module = FakeModule()
        self.steps = []
        """(rows, length) of each step, in order."""
        self.gradients_before = []
        """Whether a gradient lay there when a step began."""
        self._random = random.Random(seed)

    def truth(self, rows, length):
        """Return the ns of a step without noise and drift."""
        cost = self.fixed + rows * length * (self.per_token + self.per_token_length * length)
        return cost * (1 + self.beyond[1]) if self.beyond and length > self.beyond[0] else cost

    def bytes(self, rows, length):
        return rows * length * self.bytes_per_token

    def batch(self, rows, length, real=None):
        if not self.shortest <= length <= self.longest:
            raise ValueError(f"this model takes lengths from {self.shortest} to {self.longest}, not {length}")
        return {"rows": rows, "length": length, "real": list(real or [length] * rows)}

    def step(self, batch):
        rows, length = batch["rows"], batch["length"]
        self.gradients_before.append(self.module.weight.grad is not None)
        if (rows, length) in self.faults:
            raise self.faults[rows, length]
        if self.capacity is not None and self.bytes(rows, length) > self.capacity:
            raise self.out_of_memory
        cost = self.truth(rows, length) * math.exp(self._random.gauss(0, self.noise) if self.noise else 0)
        cost *= 1 + self.drift * len(self.steps) / 100
        self.clocks.spend(cost + (self.first_ns if (rows, length) not in self.steps else 0))
        self.steps.append((rows, length))
        self.module.weight.grad = FakeLoss(1)
        return FakeLoss(math.nan if length >= self.not_finite else 2.5)

    def root(self):
        return self.module

    def trainable_modules(self):
        return [self.module]


class FakeMemory:
    """Memory that holds what the harness's steps take, of as much as a test says."""

    def __init__(self, harness, free=None):
        self.harness = harness
        self.free = free
        self.released = 0

    def peak_of(self, call, *, warming):
        result = call()
        return result, self.harness.bytes(*self.harness.steps[-1]) if warming else None

    def free_bytes(self):
        return self.free

    def release(self):
        self.released += 1


class FakeMachine:
    """A machine as quiet as a test says, on the clocks of a harness."""

    kind = "cpu"
    warm_ups = 1

    def __init__(self, harness, torch, *, free=None, refused=""):
        self.stopwatch = Stopwatch(torch, "cpu", harness.clocks)
        self.memory = FakeMemory(harness, free)
        self.refused = refused

    def quiet(self, *, anyway):
        return {**QUIET, "refused": "" if anyway else self.refused, "anyway": anyway}

    def steady_ns(self, reading):
        return reading.thread_ns


class ListJournal:
    """A journal that keeps its lines."""

    def __init__(self):
        self.lines = []

    def write(self, kind, record):
        self.lines.append((kind, dict(record)))

    def of(self, kind, **fields):
        """Return the records of a kind that have these fields."""
        return [
            record for name, record in self.lines
            if name == kind and all(record.get(key) == value for key, value in fields.items())
        ]  # fmt: skip

    def data(self):
        """Return the bytes of the file."""
        return sealed(self.lines)


def sealed(lines):
    """Return lines as they lie in a file, each with its checksum."""
    bodies = (json.dumps({"type": kind, **record}, separators=(",", ":"))[:-1] for kind, record in lines)
    return b"".join(b'%b,"crc":"%08x"}\n' % (body.encode(), zlib.crc32(body.encode())) for body in bodies)


HEADER = {
    "schema": 1, "source": "replay", "root": "FakeModule", "rank": 0, "device": "cpu", "dtype": "float32", "threads": 1,
    "micro_steps": 1, "batches": [[100, 128]], "labelled_share": 1.0, "captured_loss": 2.5, "replayed_loss": 2.5,
    "longest": 4096, "vocabulary": 512,
}  # fmt: skip

QUIET = {
    "load": 0.1, "cpus": 2, "others_share": 0.01, "device_busy_share": None, "device_processes": None,
    "free_bytes": 1 << 33, "refused": "", "anyway": False,
}  # fmt: skip


def measured(harness, experiment, block, rows, length, **more):
    """Run one step of the harness and return its line."""
    before = harness.clocks.now
    loss = harness.step(harness.batch(rows, length, more.pop("lengths", None)))
    took = harness.clocks.now - before
    times = {"wall_ns": took, "thread_ns": took, "process_ns": took}
    return {"experiment": experiment, "variant": "", "block": block, "rows": rows, "length": length,
            "real": rows * length, **times, "loss": float(loss), **more}  # fmt: skip


def planted_lines(harness, points=((1, 128), (8, 128), (1, 1024)), heldout=(2, 512), blocks=9, seed=0):
    """Return the lines of a run that measured the points and the one held out in shuffled blocks, and finished."""
    order = random.Random(seed)
    lines = [("harness", HEADER), ("quiet", QUIET)]
    for block in range(blocks):
        asked = [("scaling", point) for point in points] + ([("heldout", heldout)] if heldout else [])
        order.shuffle(asked)
        lines += [("measured", measured(harness, name, block, *point)) for name, point in asked]
    kept = dict.fromkeys(("parameters", "buffers", "gradients", "optimizer", "scheduler", "random", "counters"), True)
    return [*lines, ("restored", {"unchanged": kept, "seconds": 1.0}), ("done", {"reason": "finished"})]
