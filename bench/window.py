"""What the traced steps of a run cost: in the training's wall time, in the reading, and on disk.

    python bench/window.py                    # both examples
    python bench/window.py plain_loop.py --steps 60

Read: the gap between steps (start, stop and export of the profiler), how much longer the steps set aside took than
steady ones, the CPU seconds of reading and deriving, and the median step before and behind the window.
"""

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from stepprobe import probes, store
from stepprobe.instruments.trace import window
from stepprobe.model.records import Step, decode_process

EXAMPLES = Path(__file__).parents[1] / "examples"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="What the traced steps of a run cost.")
    parser.add_argument("scripts", nargs="*", default=["sft_trainer.py", "plain_loop.py"])
    parser.add_argument("--steps", type=int, default=60)
    arguments = parser.parse_args()
    for script in arguments.scripts:
        with tempfile.TemporaryDirectory() as out:
            show(script, run(script, arguments.steps, out))


def run(script: str, steps: int, out: str) -> Path:
    """Run an example and return its run folder."""
    command = [sys.executable, str(EXAMPLES / script), "--steps", str(steps)]
    under = [sys.executable, "-m", "stepprobe", "run", "--out", out, "--", *command]
    subprocess.run(under, check=True, capture_output=True)
    (folder,) = Path(out).iterdir()
    return folder


def show(script: str, folder: Path) -> None:
    """Print what the window of one run cost."""
    (path,) = folder.glob("steps-*.jsonl")
    steps = decode_process(path.name, path.read_bytes()).steps
    aside = [place for place, step in enumerate(steps) if step.aside]
    before, behind = steps[aside[0] // 2 : aside[0]], steps[aside[-1] + 1 :]
    steady = statistics.median(step.wall_ns for step in (*before, *behind))
    gaps = sum(gap(steps[place - 1], steps[place]) for place in range(aside[0], aside[-1] + 2))
    longer = sum(steps[place].wall_ns - steady for place in aside)
    spent, packed, columns = reading(folder)
    print(
        f"{script}: {len(aside)} steps set aside took {longer / 1e6:+.0f} ms beyond steady ones, the gaps between them "
        f"{gaps / 1e6:.0f} ms: {(gaps + longer) / 1e6:.0f} ms of training in all; "
        f"reading {spent:.2f} CPU s; on disk {packed / 1e6:.2f} MB and {columns / 1e6:.2f} MB of columns; "
        f"median step {statistics.median(step.wall_ns for step in before) / 1e6:.1f} ms before, "
        f"{statistics.median(step.wall_ns for step in behind) / 1e6:.1f} ms behind",
        flush=True,
    )


def gap(one: Step, other: Step) -> int:
    """Return the ns between two steps."""
    return other.start_ns - one.start_ns - one.wall_ns


def reading(folder: Path) -> tuple[float, int, int]:
    """Return the CPU seconds of packing, reading and deriving the trace of a run, and its bytes in both forms."""
    (packed,) = folder.glob("trace-*.json.gz")
    (columns,) = folder.glob("trace-*.columns")
    evidence = store.load(folder)
    with tempfile.TemporaryDirectory() as scratch:
        plain = Path(scratch) / packed.name.removesuffix(".gz")
        plain.write_bytes(subprocess.run(["gzip", "-dc", packed], check=True, capture_output=True).stdout)
        begin = time.process_time()
        window.gather(Path(scratch))
        probes.load(evidence.probe).derive(evidence)
        spent = time.process_time() - begin
        shutil.rmtree(scratch, ignore_errors=True)
        Path(scratch).mkdir()
    return spent, packed.stat().st_size, columns.stat().st_size


if __name__ == "__main__":
    main()
