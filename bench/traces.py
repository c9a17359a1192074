"""What ``stepprobe trace`` costs on large traces: CPU seconds and peak memory of the whole command, peers beside it.

    python bench/traces.py                              # a trace of our own, replicated to 50 MB, 210 MB and 1 GB
    python bench/traces.py --source TRACE.json.gz       # a real one, replicated
    python bench/traces.py --hta /path/to/python        # also HolisticTraceAnalysis, in a Python that has it
    python bench/traces.py --sizes 50,210               # fewer

CPU seconds are user + system of the whole process with its imports and children; memory is its peak resident set. Each
line is one run; compare lines of one invocation only. "ms for each more MB" is the slope from the line above: it says
whether the cost is linear, without the fixed cost of starting.

Run both shapes: a trace of our own is very many short steps, a real one few long ones. HolisticTraceAnalysis is given
``--hta-cpu`` seconds of CPU time; on many short steps it may not come to its end. AMD's TraceLens is not among the
peers, because it is on no package index (``tracelens`` there is another project).
"""

import argparse
import gzip
import json
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[1]
IDS = ("correlation", "External id", "external id", "Sequence number", "Ev Idx")
HTA = """
import logging, sys, warnings
warnings.filterwarnings("ignore")
from hta.trace_analysis import TraceAnalysis
logging.getLogger("hta").setLevel(logging.ERROR)
analysis = TraceAnalysis(trace_files={0: sys.argv[1]})
for ask in (
    lambda: analysis.get_temporal_breakdown(visualize=False),
    lambda: analysis.get_gpu_kernel_breakdown(visualize=False),
    lambda: analysis.get_idle_time_breakdown(visualize=False, ranks=[0]),
    lambda: analysis.get_comm_comp_overlap(visualize=False),
):
    try:
        ask()
    except Exception as error:
        print("HTA failed:", type(error).__name__, error, file=sys.stderr)
"""


def replicate(source, target, megabytes):
    """Write repeats of a trace, one after the other in time, until the file has the size asked for."""
    text = source.read_bytes()
    whole = json.loads(gzip.decompress(text) if text[:2] == b"\x1f\x8b" else text, strict=False)
    events = whole.pop("traceEvents")
    timed = [event for event in events if event.get("ph") == "X"]
    span = max(event["ts"] + event.get("dur", 0) for event in timed) - min(event["ts"] for event in timed) + 1000
    top = 1 + max(number for event in events for number in ids(event).values() or [0])
    steps = sum(str(event.get("name", "")).startswith("ProfilerStep#") for event in timed)
    about = {"distributedInfo": {"rank": 0}} | whole
    with target.open("w", encoding="utf-8") as file:
        head = "".join(f"  {json.dumps(key)}: {json.dumps(value)},\n" for key, value in about.items())
        file.write(f'{{\n{head}  "traceEvents": [\n')
        repeat = 0
        while file.tell() < megabytes * 1_000_000:
            rows = (moved(event, repeat, span, top, steps) for event in events if event.get("ph") != "M" or not repeat)
            file.write(",\n".join(rows) if not repeat else ",\n" + ",\n".join(rows))
            repeat += 1
        file.write("\n  ]\n}\n")
    return repeat


def elsewhere(work, *arguments):
    """Do it in a process of its own: what a child is said to have used begins with what its parent held."""
    with ProcessPoolExecutor(1) as pool:
        return pool.submit(work, *arguments).result()


def ids(event):
    """Return the ids of an event that must differ in each repeat."""
    arguments = event.get("args")
    found = {name: arguments.get(name) for name in IDS} if isinstance(arguments, dict) else {}
    return {name: number for name, number in found.items() if isinstance(number, int) and 0 < number < 2**31}


def moved(event, repeat, span, top, steps):
    """Return the text of an event in one repeat, in Kineto's layout."""
    event = dict(event)
    if event.get("ph") != "M" and isinstance(event.get("ts"), int | float):
        event["ts"] += repeat * span
    if str(event.get("name", "")).startswith("ProfilerStep#"):
        event["name"] = re.sub(r"\d+", lambda number: str(int(number[0]) + repeat * steps), event["name"], count=1)
    fresh = {name: number + repeat * top for name, number in ids(event).items()}
    arguments = event.pop("args", None)
    text = f"  {{\n    {json.dumps(event)[1:-1]}"
    if isinstance(arguments, dict):
        text += f',\n    "args": {{\n      {json.dumps(arguments | fresh)[1:-1]}\n    }}'
    return f"{text}\n  }}"


def cost(command, cpu_most=None):
    """Run a command and return its CPU seconds, its peak memory in MB, and its standard output; None if it was ended.

    Args:
        command: What to run.
        cpu_most: CPU seconds after which it is ended.
    """

    def limit():
        if cpu_most:
            resource.setrlimit(resource.RLIMIT_CPU, (cpu_most, cpu_most))

    with tempfile.TemporaryFile() as out:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        child = subprocess.Popen(command, stdout=out, env=environment, preexec_fn=limit)
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        shown = out.read()
    if cpu_most and child.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        shown = None
    elif child.returncode:
        sys.exit(f"{command[:4]} ended with {child.returncode}")
    return used.ru_utime + used.ru_stime, used.ru_maxrss / 1024, shown


def main():
    """Measure and print one line for each tool and size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", type=Path)
    parser.add_argument("--sizes", default="50,210,1000")
    parser.add_argument("--hta", type=Path, help="a Python in which HolisticTraceAnalysis is installed")
    parser.add_argument("--hta-most", type=int, default=1000, help="largest size in MB that it is given")
    parser.add_argument("--hta-cpu", type=int, default=300, help="CPU seconds that it is given")
    arguments = parser.parse_args()
    before, slopes = (0.0, 0.0), []
    with tempfile.TemporaryDirectory() as folder:
        source = arguments.source or elsewhere(own_trace, Path(folder))
        for size in map(int, arguments.sizes.split(",")):
            trace = Path(folder) / f"trace{size}.json"
            repeats = elsewhere(replicate, source, trace, size)
            megabytes = trace.stat().st_size / 1e6
            command = [sys.executable, "-m", "stepprobe", "trace", str(trace), "--json", "--out", folder]
            cpu, memory, shown = cost(command)
            figures = json.loads(shown)["figures"]
            slope = (cpu - before[0]) / (megabytes - before[1])
            ratio = f"{slope / slopes[-1]:.2f}x the slope before" if slopes else ""
            slopes += [slope] if before[1] else []
            before = cpu, megabytes
            print(
                f"stepprobe  {megabytes:7.0f} MB  {figures['trace.events']['value']:9.0f} events  {cpu:7.2f} CPU s"
                f"  {memory:6.0f} MB peak  {megabytes / cpu:6.0f} MB/CPU s"
                f"  {1000 * slope:.2f} ms for each more MB {ratio}"
                f"  ({repeats} repeats, idle {figures['trace.idle_share']['value']:.4f})",
                flush=True,
            )
            if arguments.hta and size <= arguments.hta_most:
                show_peer(cost([str(arguments.hta), "-c", HTA, str(trace)], arguments.hta_cpu), megabytes, cpu, memory)
            trace.unlink()


def show_peer(found, megabytes, cpu, memory):
    """Print what HolisticTraceAnalysis took for a trace, beside what we took."""
    theirs, peak, shown = found
    least = "" if shown is not None else "at least "
    ratios = f"{least}{theirs / cpu:.1f}x the CPU, {peak / memory:.1f}x the memory"
    ended = "" if shown is not None else " (ended before it was done)"
    print(
        f"HTA        {megabytes:7.0f} MB  {'':16}  {theirs:7.2f} CPU s  {peak:6.0f} MB peak  {ratios}{ended}",
        flush=True,
    )


def own_trace(folder):
    """Write a trace of our own making and return its path."""
    sys.path.insert(0, str(ROOT))
    from tests.fakes.traces import training

    path = folder / "own.json"
    path.write_bytes(training(400).text())
    return path


if __name__ == "__main__":
    main()
