"""What the instrument leaves on the disk and holds in memory.

    python bench/evidence.py            # evidence of a million steps; memory of a training with and without

The million steps are written by the real recorder from a real step's record; the memory is the peak resident size of
whole processes, attached and bare in turn.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from overhead import INJECT, TRAINING
from training import TRAININGS

from stepprobe.instruments.attach.recorder import Recorder
from stepprobe.model.records import decode_process

STEPS = 1_000_000


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Evidence on disk, memory in the user's process.")
    parser.add_argument("--training", choices=TRAININGS, default="trainer")
    parser.add_argument("--pairs", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        record, per_step = real_record(arguments.training, Path(folder))
        print(
            f"{STEPS:,} steps like this one of {per_step:,} bytes: {million(record, folder) / 1e6:.1f} MB of evidence"
        )
    more = [peak_mb(arguments.training, True) - peak_mb(arguments.training, False) for _ in range(arguments.pairs)]
    print(
        f"{arguments.training}: attached holds {statistics.median(more):.1f} MB more at its peak "
        f"(pairs: {', '.join(f'{one:.1f}' for one in more)})"
    )


def real_record(training: str, folder: Path) -> tuple[dict[str, object], int]:
    """Run a training and return the fullest step that it left, and the length of its line."""
    train(training, folder, attached=True)
    (file,) = folder.glob("steps-*.jsonl")
    line = max((line for line in file.read_bytes().splitlines() if b'"type":"step"' in line), key=len)
    record = json.loads(line)
    del record["crc"], record["type"]
    file.unlink()
    return record, len(line)


def million(record: dict[str, object], folder: str) -> int:
    """Write a million steps; return the size of the file, after reading all of it back."""
    path = Path(folder) / "steps-rank0-pid1.jsonl"
    recorder = Recorder(str(path))
    header = {"schema": 1, "rank": 0, "local_rank": 0, "world_size": 1, "pid": 1, "origin_unix_ns": 0}
    recorder.write("header", {**header, "python": "", "versions": {}, "unit_cost_ns": {}})
    for index in range(STEPS):
        record["index"] = index
        record["detail"] = index % 5 == 0
        recorder.step(record, index * 10_000_000)
    recorder.close()
    found = decode_process(path.name, path.read_bytes())
    assert len(found.steps) + sum(summary.count for summary in found.summaries) == STEPS
    return path.stat().st_size


def peak_mb(training: str, attached: bool) -> float:
    """Return the peak resident size of a training, MB."""
    with tempfile.TemporaryDirectory() as folder:
        return train(training, Path(folder), attached) / 1024


def train(training: str, folder: Path, attached: bool) -> int:
    """Run a training of 60 steps; return its peak resident size, KiB."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    if attached:
        environment |= {"PYTHONPATH": str(INJECT), "STEPPROBE_RUN": str(folder)}
    code = (
        "import resource, subprocess, sys\n"
        "subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)\n"
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)\n"
    )
    command = [sys.executable, "-c", code, sys.executable, str(TRAINING), training, "60"]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return int(done.stdout.split()[-1])


if __name__ == "__main__":
    main()
