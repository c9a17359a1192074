"""Lines of experiments with a planted step: what a driver would have written, without a driver."""

import random
from collections.abc import Mapping, Sequence
from typing import Any

from stepprobe.analysis.ledger.encoding import encode_process
from stepprobe.model.evidence import Evidence
from stepprobe.model.experiments import (
    EXPERIMENTS_SCHEMA,
    Done,
    Dropped,
    Experiment,
    ExperimentRecord,
    Harness,
    Measured,
    Quiet,
    Restored,
    Structure,
)
from tests.fakes.records import FakeProcess

MS = 1_000_000
SHAPES = ((1, 128), (8, 128), (1, 1024))
HELDOUT = (2, 512)


def cost_ms(rows: int, length: int, terms: Sequence[float]) -> float:
    """What the planted micro-step takes: terms in ms, ms a slot, ms a slot and length."""
    return terms[0] + rows * length * (terms[1] + terms[2] * length)


class FakeExperiments:
    """Builds one ``experiments-*.jsonl``; times in ms, ``noise`` and ``drift`` relative."""

    def __init__(
        self,
        terms: Sequence[float] = (6.3, 0.0241, 41.9e-6),
        *,
        noise: float = 0.0,
        drift: float = 0.0,
        seed: int = 0,
        **harness: Any,
    ) -> None:
        self.terms = terms
        self._noise, self._drift, self._random = noise, drift, random.Random(seed)
        self.records: list[ExperimentRecord] = [
            Harness(
                **{
                    "schema": EXPERIMENTS_SCHEMA,
                    "source": "replay",
                    "root": "Model",
                    "rank": 0,
                    "device": "cpu",
                    "dtype": "float32",
                    "threads": 1,
                    "micro_steps": 1,
                    "batches": [],
                    "labelled_share": None,
                    "captured_loss": None,
                    "replayed_loss": None,
                    "longest": None,
                    "vocabulary": None,
                    **harness,
                }
            )
        ]

    def quiet(self, **changes: Any) -> "FakeExperiments":
        usual = {
            "load": 0.1,
            "cpus": 2,
            "others_share": 0.0,
            "device_busy_share": None,
            "device_processes": None,
            "free_bytes": None,
            "refused": "",
            "anyway": False,
        }
        self.records.append(Quiet(**{**usual, **changes}))
        return self

    def structure(self, attention: str = "sdpa", **more: Any) -> "FakeExperiments":
        usual: dict[str, Any] = {"config": {}, "weights": [], "embedding_gradient": True}
        self.records.append(Structure(**{**usual, "attention": attention, **more}))
        return self

    def measured(
        self, experiment: Experiment, block: int, rows: int, length: int, ms: float | None = None, **more: Any
    ) -> "FakeExperiments":
        spent = cost_ms(rows, length, self.terms) if ms is None else ms
        spent *= (1 + self._noise * self._random.gauss(0, 1)) * (1 + self._drift * block)
        line = {"real": rows * length, "wall_ns": round(spent * 1.1 * MS), "process_ns": round(spent * MS)}
        self.records.append(
            Measured(
                **{
                    **line,
                    "experiment": experiment,
                    "block": block,
                    "rows": rows,
                    "length": length,
                    "thread_ns": round(spent * MS),
                    **more,
                }
            )
        )
        return self

    def scaling(
        self,
        blocks: int = 9,
        shapes: Sequence[tuple[int, int]] = SHAPES,
        heldout: tuple[int, int] | None = HELDOUT,
        beyond: float = 0.0,
    ) -> "FakeExperiments":
        """Blocks of the fit's shapes; shapes longer than 1,024 slots, and the held-out one, cost ``beyond`` more."""
        for block in range(blocks):
            order = [("scaling", one) for one in shapes] + ([("heldout", heldout)] if heldout else [])
            self._random.shuffle(order)
            for experiment, (rows, length) in order:
                dearer = 1 + beyond if experiment == "heldout" else 1.0
                self.measured(experiment, block, rows, length, cost_ms(rows, length, self.terms) * dearer)
        return self

    def padding(self, padded: tuple[int, int], unpadded: tuple[int, int], blocks: int = 9) -> "FakeExperiments":
        for block in range(blocks):
            self.measured("padded", block, *padded, real=unpadded[0] * unpadded[1])
            self.measured("unpadded", block, *unpadded)
        return self

    def losses(
        self, shape: tuple[int, int], ms: float, chunks: Mapping[int, float], blocks: int = 9, **more: Any
    ) -> "FakeExperiments":
        """The loss at once, and in chunks of some rows; ``more`` goes to the chunks."""
        for block in range(blocks):
            self.measured("loss", block, *shape, ms, loss=7.0, gradient=1.0, peak_bytes=1 << 24)
            for chunk, spent in chunks.items():
                line = {"loss": 7.0, "gradient": 1.0, "peak_bytes": chunk * 4096, **more}
                self.measured("loss_chunk", block, *shape, spent, variant=str(chunk), **line)
        return self

    def remedy(self, variant: str, times: float, shape: tuple[int, int], blocks: int = 9) -> "FakeExperiments":
        for block in range(blocks):
            usual = cost_ms(*shape, self.terms)
            self.measured("remedy", block, *shape, usual, variant="none")
            self.measured("remedy", block, *shape, usual * times, variant=variant)
        return self

    def below_window(self, ms: float, shape: tuple[int, int], window: int, blocks: int = 9) -> "FakeExperiments":
        """The usual shape, and as many rows of one token less than a window that take ``ms``."""
        for block in range(blocks):
            self.measured("remedy", block, *shape, variant="none")
            self.measured("remedy", block, shape[0], window - 1, ms, variant="below_window")
        return self

    def dropped(self, **changes: Any) -> "FakeExperiments":
        usual: dict[str, Any] = {"experiment": "scaling", "rows": 64, "length": 4096, "reason": "memory", "text": ""}
        self.records.append(Dropped(**{**usual, **changes}))
        return self

    def end(self, reason: str = "finished", **unchanged: bool) -> "FakeExperiments":
        self.records.append(Restored(unchanged={"parameters": True, **unchanged}, seconds=2.0))
        self.records.append(Done(reason=reason))
        return self

    def data(self) -> bytes:
        return encode_process(self.records)


def evidence(experiments: FakeExperiments | None, *processes: FakeProcess, **changes: Any) -> Evidence:
    files = {process.name: process.data() for process in processes}
    if experiments:
        files["experiments-rank0-pid100.jsonl"] = experiments.data()
    usual: dict[str, Any] = {
        "probe": "profile",
        "command": "profile",
        "subject": "python train.py",
        "environment": {"machine": "two cores"},
        "files": files,
    }
    return Evidence(**{**usual, **changes})
