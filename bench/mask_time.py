"""What ``stepprobe mask`` costs from the command line: wall and CPU seconds, largest memory, imports included.

    python bench/mask_time.py CONFIG [--length 16384] [--batch-size 2] [--padding none] [--runs 3]

Prints a line for each run and the smallest of each; on a machine that does other work only the CPU seconds mean much.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time


def main() -> int:
    """Run the command and print what it used."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("config")
    parser.add_argument("--length", default="16384")
    parser.add_argument("--batch-size", default="2")
    parser.add_argument("--padding", default="none")
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()
    options = ["--length", arguments.length, "--batch-size", arguments.batch_size, "--padding", arguments.padding]
    taken = []
    with tempfile.TemporaryDirectory() as out:
        command = [sys.executable, "-m", "stepprobe", "mask", arguments.config, *options, "--out", out]
        for _ in range(arguments.runs):
            taken.append(used(command))
            print("{:6.2f} s wall  {:6.2f} s CPU  {:6.0f} MB  exit {}".format(*taken[-1]), flush=True)
    print("{:6.2f} s wall  {:6.2f} s CPU  {:6.0f} MB  smallest of each".format(*map(min, zip(*taken, strict=True))))
    print(f"load of the machine: {' '.join(f'{load:.1f}' for load in os.getloadavg())}")
    return 0


def used(command: list[str]) -> tuple[float, float, float, int]:
    """Return wall seconds, CPU seconds, largest memory in MB and the exit code of a command."""
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    seconds = usage.ru_utime + usage.ru_stime
    return time.perf_counter() - began, seconds, usage.ru_maxrss / 1000, process.returncode


if __name__ == "__main__":
    sys.exit(main())
