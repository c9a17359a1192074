"""What the length probes cost: CPU seconds, peers timed in the same run, each measurement in a process of its own.

    python bench/lengths.py                    # packing, sweep, reports
    python bench/lengths.py --parquet 1e8      # and a Parquet file of that many rows, made in a temporary folder
    python bench/lengths.py --corpus FOLDER --tokenizer T    # a corpus estimated, and in full beside encode_batch alone

TRL's packer is timed where trl is installed, Axolotl's where axolotl and numba are. Ratios are what to read.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SMALL, LARGE, CAP = 1_000_000, 10_000_000, 4096
SIZES = (1, 2, 4, 8, 16, 32, 50, 64, 128, 256, 512, 1024)


def chat_mix(rows, cap=CAP, seed=0):
    """Short chats, long answers, reasoning and documents; the kind is the source."""
    import numpy as np

    random = np.random.default_rng(seed)
    kind = random.choice(4, rows, p=[0.45, 0.35, 0.15, 0.05]).astype(np.int32)
    middle, spread = np.log([180, 550, 1400, 5000])[kind], np.array([0.7, 0.6, 0.7, 0.8])[kind]
    return np.clip(np.exp(random.normal(middle, spread)).astype(np.int32), 8, cap), kind


def pack_ours(rows):
    """Histogram, best-fit-decreasing and the bin of every row: cold, the first call of the process."""
    import numpy as np

    lengths, _ = chat_mix(rows)
    begun = time.process_time()
    from stepprobe.analysis.lengths.packing import assign, best_fit_decreasing

    counted = np.bincount(lengths)
    distinct = np.flatnonzero(counted)
    packing = best_fit_decreasing(distinct.tolist(), counted[distinct].tolist(), CAP)
    assign(packing, lengths)
    return {"cpu_s": time.process_time() - begun, "bins": packing.bins}


def pack_trl(rows):
    """TRL's own packer on the whole set; one byte a token, so that copying tokens costs next to nothing."""
    import numpy as np
    import pyarrow as pa
    from trl.data_utils import (
        _pack_bfd,
        _SegmentTree,  # noqa: F401 - imported, like numba below, before the clock runs
    )

    lengths, _ = chat_mix(rows)
    offsets = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
    ids = pa.LargeListArray.from_arrays(offsets, pa.array(np.zeros(offsets[-1], np.int8)))
    table = pa.table({"input_ids": ids})
    begun = time.process_time()
    bins = len(_pack_bfd(table, CAP))
    return {"cpu_s": time.process_time() - begun, "bins": bins}


def pack_axolotl(rows):
    """Axolotl's packer, compiled before the clock runs."""
    import importlib.util

    import numpy as np

    place = importlib.util.find_spec("axolotl").submodule_search_locations[0]
    source = (Path(place) / "utils" / "samplers" / "multipack.py").read_text()
    # its package imports the whole of axolotl; the packer itself needs numba alone
    names = {"__name__": "multipack"}
    kept = source.split("class MultipackBatchSampler")[0].replace("from axolotl", "# from axolotl")
    exec(compile(kept.replace("LOG = ", "LOG = None # "), "multipack.py", "exec"), names)
    lengths, _ = chat_mix(rows)
    lengths = lengths.astype(np.int64)
    names["pack_group"](lengths[:1000], 0, CAP, 100_000, 200, True)
    begun, bins = time.process_time(), 0
    for start in range(0, rows, 100_000):
        bins += len(names["pack_group"](lengths[start : start + 100_000], start, CAP, 100_000, 200, True))
    return {"cpu_s": time.process_time() - begun, "bins": bins}


def sweep_ours(rows):
    """The closed form for twelve bucket sizes, from the lengths on."""
    import numpy as np

    from stepprobe.analysis.lengths import batching

    lengths, _ = chat_mix(rows)
    begun = time.process_time()
    counted = np.bincount(lengths)
    distinct = np.flatnonzero(counted)
    known = batching.Distribution(distinct, counted[distinct])
    for size in SIZES:
        batching.padded_tokens(known, batching.rows_at_least(known, 8, 8 * size))
    return {"cpu_s": time.process_time() - begun}


def report_ours(rows):
    """Counting an array of lengths, both probes with their controls: everything but drawing the pages."""
    import numpy as np

    from stepprobe.instruments.dataset.tally import Tally
    from stepprobe.model.evidence import Evidence
    from stepprobe.model.lengths import About, build, encode
    from stepprobe.probes import bucket, padding

    lengths, kinds = chat_mix(rows)
    begun = time.process_time()
    tally = Tally()
    for name in "abcd":
        tally.number(name)
    tally.add(kinds.astype(np.int64), lengths.astype(np.int64))
    files = encode(build(About(sources=tally.names(), rows=rows), {"cells": tally.cells()}))
    options = {"batch_size": "8", "max_length": str(CAP)}
    for name, probe in (("padding", padding), ("bucket", bucket)):
        evidence = Evidence(probe=name, command=name, subject="", environment={}, files=files, options=options)
        assert probe.derive(evidence).verdict == "ok"
    return {"cpu_s": time.process_time() - begun}


def read_parquet(rows, path):
    """A Parquet file of lengths and sources, read into its histogram."""
    from stepprobe.instruments.dataset.subject import Dataset
    from stepprobe.model.evidence import Evidence
    from stepprobe.model.lengths import decode

    planned = Evidence(probe="padding", command="padding", subject="", environment={}, files={})
    begun, wall = time.process_time(), time.perf_counter()
    found = decode(Dataset(sources=[path], planned=planned).observe().files)
    assert found.about.rows == rows
    return {"cpu_s": time.process_time() - begun, "wall_s": time.perf_counter() - wall, "peak_mib": peak_mib()}


def count_full(_, folder, tokenizer):
    """A corpus tokenised in full, and the same texts through encode_batch alone."""
    from stepprobe.instruments.dataset import tokenizer as loading
    from stepprobe.instruments.dataset.columns import choose
    from stepprobe.instruments.dataset.counting import BATCH, Settings, Text, _render, _value
    from stepprobe.instruments.dataset.records import Problems, read
    from stepprobe.instruments.dataset.stream import expand
    from stepprobe.instruments.dataset.subject import Dataset
    from stepprobe.model.evidence import Evidence

    loaded = loading.load(tokenizer)
    texts = []
    for file in expand(folder):
        for block in read(file, Problems()):
            for place, record in block.records:
                fields = choose(list(record), None, None)
                texts.append(_render(loaded, Text(place, fields.kind, _value(record, fields)), marks=False)[0])
    begun, wall = time.process_time(), time.perf_counter()
    for start in range(0, len(texts), BATCH):
        loaded.backend.encode_batch(texts[start : start + BATCH])
    alone, alone_wall = time.process_time() - begun, time.perf_counter() - wall
    planned = Evidence(probe="padding", command="padding", subject="", environment={}, files={})
    begun, wall = time.process_time(), time.perf_counter()
    Dataset(sources=[folder], planned=planned, settings=Settings(tokenizer=loaded, full=True)).observe()
    used = {"cpu_s": time.process_time() - begun, "wall_ratio": (time.perf_counter() - wall) / alone_wall}
    return {"encode_batch_cpu_s": alone, **used}


def peak_mib():
    """Peak resident memory of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def write_parquet(path, rows):
    """Write lengths and sources in blocks."""
    import numpy as np
    import pyarrow as pa
    from pyarrow import parquet

    schema = pa.schema({"length": pa.int32(), "source": pa.int16()})
    with parquet.ParquetWriter(path, schema) as writer:
        for start in range(0, rows, 5_000_000):
            lengths, kinds = chat_mix(min(5_000_000, rows - start), 32768, start)
            writer.write_table(pa.table([pa.array(lengths), pa.array(kinds.astype(np.int16))], schema=schema))


def alone(name, *words, python=sys.executable):
    """Run one measurement in a process of its own; None where its peer is not installed."""
    command = [python, __file__, "--one", name, *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"{name:14s} not measured: {(done.stderr.strip().splitlines() or ['?'])[-1]}", flush=True)
        return None
    return json.loads(done.stdout.splitlines()[-1])


def main():
    """Measure and print."""
    parser = argparse.ArgumentParser(description="What the length probes cost.")
    parser.add_argument("--parquet", type=lambda text: int(float(text)), default=0, metavar="ROWS")
    parser.add_argument("--corpus")
    parser.add_argument("--tokenizer")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--python", default=sys.executable, help="an interpreter that has axolotl and numba")
    parser.add_argument("--one", nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        name, rows, *rest = arguments.one
        print(json.dumps(globals()[name](int(rows), *rest)))
        return
    packing(arguments)
    for rows in (SMALL, LARGE):
        best = min(alone("sweep_ours", rows)["cpu_s"] for _ in range(arguments.repeat))
        print(f"sweep of {len(SIZES)} bucket sizes at {rows:,} lengths: {best:.3f} s CPU", flush=True)
        best = min(alone("report_ours", rows)["cpu_s"] for _ in range(arguments.repeat))
        print(f"both reports at {rows:,} lengths: {best:.3f} s CPU", flush=True)
    if arguments.parquet:
        parquet_file(arguments.parquet)
    if arguments.corpus:
        corpus(arguments)


def packing(arguments):
    """Time the packers, ours in turn with the others."""
    ours = [alone("pack_ours", SMALL) for _ in range(arguments.repeat)]
    best = min(one["cpu_s"] for one in ours)
    print(
        f"packing {SMALL:,} lengths into {CAP}, every row assigned: {best:.4f} s CPU, {ours[0]['bins']:,} bins",
        flush=True,
    )
    for name, python in (("pack_trl", sys.executable), ("pack_axolotl", arguments.python)):
        if found := alone(name, SMALL, python=python):
            again = alone("pack_ours", SMALL)["cpu_s"]
            print(
                f"{name:14s} {found['cpu_s']:.3f} s CPU, {found['bins']:,} bins: {found['cpu_s'] / again:.0f}x ours "
                f"({again:.4f} s in a new process right after)",
                flush=True,
            )


def parquet_file(rows):
    """Time reading a large file."""
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/lengths.parquet"
        write_parquet(path, rows)
        found = alone("read_parquet", rows, path)
        print(
            f"{rows:,} rows of Parquet: {found['cpu_s']:.1f} s CPU, {found['wall_s']:.1f} s wall, peak "
            f"{found['peak_mib']:.0f} MiB",
            flush=True,
        )


def corpus(arguments):
    """Time a corpus: estimated from the command line, and in full."""
    command = [sys.executable, "-m", "stepprobe", "padding", arguments.corpus, "--tokenizer", arguments.tokenizer]
    with tempfile.TemporaryDirectory() as folder:
        before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        subprocess.run([*command, "--json", "--out", folder], check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(
        f"corpus estimated from the command line: {used:.1f} s CPU, {time.perf_counter() - begun:.1f} s wall",
        flush=True,
    )
    found = alone("count_full", 0, arguments.corpus, arguments.tokenizer)
    alone_s = found["encode_batch_cpu_s"]
    ratio = found["cpu_s"] / alone_s
    said = f"{ratio:.2f}x in CPU seconds, {found['wall_ratio']:.2f}x in wall time of the same run"
    print(f"corpus in full: {found['cpu_s']:.1f} s CPU, encode_batch alone {alone_s:.1f} s: {said}", flush=True)


if __name__ == "__main__":
    main()
