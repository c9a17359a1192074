"""How often two runs of one training are called different: by what is within two runs, and with repeats of the first.

    python bench/repeats.py                     # six runs of the SFT example, 60 equal steps each
    python bench/repeats.py --runs 10 --steps 100

Nothing is changed between the runs, so every comparison that is decided is wrong. An interval of 95 % that held all
that varies would be wrong in one of twenty. Every ordered pair is compared alone, and with runs that are in neither
place as repeats of the first. Pairs of few runs are not independent: read the share as an order of size.
"""

import argparse
import itertools
import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]


def main():
    """Run, compare, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=6)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--script", type=Path, default=ROOT / "examples" / "sft_trainer.py")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as out:
        runs = [observed(arguments.script, arguments.steps, Path(out) / f"{i}") for i in range(arguments.runs)]
        pairs = list(itertools.permutations(runs, 2))
        for label, repeats in (("alone", 0), ("3 repeats", 3), ("all as repeats", len(runs) - 2)):
            found = [
                compared(first, second, [one for one in runs if one not in (first, second)][:repeats])
                for first, second in pairs
            ]
            wrong = sum(document["verdict"] != "undecided" for document in found)
            halves = sorted(
                (wall["high"] - wall["low"]) / 2
                for document in found
                if (wall := document["figures"]["compare.step.wall"])["low"] is not None
            )
            half = f"{halves[len(halves) // 2]:.2f} ms" if halves else "none"
            print(f"{label:15} {wrong:3} of {len(pairs)} pairs decided  half width {half} at the median", flush=True)


def observed(script, steps, out):
    """Run the script under ``stepprobe run``; return the run folder."""
    command = [sys.executable, "-m", "stepprobe", "run", "--json", "--no-trace", "--no-masks", "--out", str(out), "--"]
    done = subprocess.run([*command, sys.executable, script, "--steps", str(steps)], capture_output=True, text=True)
    document = json.loads(done.stdout)
    print(f"{document['figures']['step.wall']['value']:9.2f} ms a step", flush=True)
    return document["run"]


def compared(first, second, repeats):
    """Compare two runs."""
    command = [sys.executable, "-m", "stepprobe", "compare", first, second, "--json"]
    command += ["--repeat", *repeats] if repeats else []
    return json.loads(subprocess.run(command, capture_output=True, text=True).stdout)


if __name__ == "__main__":
    main()
