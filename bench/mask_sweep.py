"""The mask probe over every causal language model of the installed transformers, at its default config.

    python bench/mask_sweep.py [--write docs/mask-sweep.md] [--length 4096] [--seconds 120] [--jobs 2] [TYPE ...]

With TYPEs, ``--write`` puts their rows into the page that is there and leaves the others. Each type runs in a process
of its own, forked from one that has imported everything. Two batches are asked: plain, and packed with
``position_ids``. The last lines count what was measured, what was explained, and what was neither.
"""

import argparse
import json
import os
import select
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

KINDS = ("none", "packed")


def main() -> int:
    """Sweep, print a line a type, and write the table when asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("types", nargs="*", metavar="TYPE")
    parser.add_argument("--write", type=Path)
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seconds", type=int, default=120)
    arguments = parser.parse_args()
    import torch  # noqa: F401 - what every child needs
    import transformers
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    names = arguments.types or sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    probed("llama", 64)  # imports what each child would import again
    rows = list(swept(names, arguments.length, arguments.seconds, arguments.jobs))
    if arguments.types and arguments.write and arguments.write.is_file():
        rows += [row for row in read_back(arguments.write.read_text(encoding="utf-8")) if row["type"] not in names]
    rows.sort(key=lambda row: row["type"])
    summary = summarise(rows)
    print("\n".join(summary))
    if arguments.write:
        arguments.write.write_text(table(rows, summary, transformers.__version__, arguments.length), encoding="utf-8")
    return 0


def swept(names: list[str], length: int, seconds: int, jobs: int) -> Iterator[dict]:
    """Yield the row of each type, from children of which each may be killed; ``jobs`` of them at a time."""
    waiting, living = list(names), {}
    while waiting or living:
        while waiting and len(living) < jobs:
            child = Child(waiting.pop(0), length, seconds)
            living[child.pipe] = child
        for pipe in select.select(list(living), [], [], 1)[0]:
            living[pipe].read()
        for pipe, child in list(living.items()):
            if child.ended or time.monotonic() > child.end:
                del living[pipe]
                row = child.row()
                shown = " | ".join(f"{kind}: {row[kind]['headline']}" for kind in KINDS)
                print(f"{child.name:24} {time.monotonic() - child.began:6.1f} s  {shown}"[:240], flush=True)
                yield row


class Child:
    """A process that asks about one type."""

    def __init__(self, name: str, length: int, seconds: int) -> None:
        self.name, self.began = name, time.monotonic()
        self.end, self.content, self.ended = self.began + seconds, b"", False
        self.pipe, writing = os.pipe()
        self.process = os.fork()
        if not self.process:
            os.close(self.pipe)
            with os.fdopen(writing, "w") as pipe, open(os.devnull, "w") as nowhere:
                os.dup2(nowhere.fileno(), 2)
                pipe.write(json.dumps(probed(name, length)))
                pipe.flush()
            os._exit(0)
        os.close(writing)

    def read(self) -> None:
        """Take what has come."""
        part = os.read(self.pipe, 1 << 16)
        self.content, self.ended = self.content + part, not part

    def row(self) -> dict:
        """End the process and return its answer."""
        os.close(self.pipe)
        os.kill(self.process, signal.SIGKILL)
        os.waitpid(self.process, 0)
        if self.ended and self.content:
            return json.loads(self.content)
        return {"type": self.name, **unmeasured("no answer in time, or the process died")}


def probed(name: str, length: int) -> dict:
    """Return what the probe says of one type."""
    from stepprobe.errors import StepprobeError
    from stepprobe.instruments.attention import models

    try:
        with models.quiet():
            read, observed = built(name)
            told = {kind: asked(name, read, observed, kind, length) for kind in KINDS}
    except StepprobeError as error:
        told = unmeasured(str(error))
    except Exception as error:  # a default config that its own class refuses
        told = unmeasured(f"default config: {type(error).__name__}: {error}")
    return {"type": name, **told}


def unmeasured(why: str) -> dict:
    """Return the same reason for each kind of batch."""
    return {kind: {"verdict": "not measured", "headline": f"not measured: {why}"} for kind in KINDS}


def built(name: str) -> tuple:
    """Return the default config of a type and its model."""
    from transformers import CONFIG_MAPPING

    from stepprobe.instruments.attention.configs import Config
    from stepprobe.instruments.attention.observed import Observed

    config = CONFIG_MAPPING[name]()
    if hasattr(config, "is_decoder"):
        config.is_decoder = True
    read = Config(config)
    return read, Observed(read)


def asked(name: str, read: object, observed: object, kind: str, length: int) -> dict:
    """Return verdict, headline and figures for one kind of batch."""
    from stepprobe.instruments.attention import batches
    from stepprobe.instruments.attention.subject import as_evidence, clamp
    from stepprobe.probes import mask

    length, notes = clamp(read.text, length)
    batch = batches.make(kind, 1, length) | {"use_cache": False}
    capture = observed.capture(kind, batch, notes)
    report = mask.derive(as_evidence(capture, name, ""))
    figures = {key: held.value for key, held in report.figures.items() if key.startswith(("mask.", "twin."))}
    clamped = f" (length {length:,})" if notes else ""
    return {
        "verdict": report.verdict,
        "headline": report.headline + clamped,
        "figures": figures,
        "kinds": sorted({finding.kind for finding in report.findings}),
        "failed": capture.failed or report.headline,
    }


REASONS = (
    ("default config", "its default config builds no model"),
    ("could not be built", "its default config builds no model"),
    ("did not end", "its forward pass does not end on text alone"),
    ("no small model", "no small model of the class could be made"),
    ("twin was not run", "the twin does not take the batch"),
    ("modules made an attention call", "calls and layers of the config do not fit together"),
    ("declares no layer", "the config declares no layer that the probe knows"),
    ("did not fire", "a control did not fire"),
    ("no answer in", "no answer in time"),
)


def reason(headline: str) -> str:
    """Return the class of a reason; empty when it is none that we know."""
    return next((told for word, told in REASONS if word in headline), "")


def summarise(rows: list[dict]) -> list[str]:
    """Return counts: measured, explained, neither."""
    lines = []
    for kind in KINDS:
        verdicts = Counter(row[kind]["verdict"] for row in rows)
        unmeasured = [row for row in rows if row[kind]["verdict"] == "not measured"]
        why = Counter(reason(row[kind]["headline"]) or "unexplained" for row in unmeasured)
        told = ", ".join(f"{count} {verdict}" for verdict, count in verdicts.most_common())
        lines.append(f"{kind}: {len(rows) - len(unmeasured)} of {len(rows)} measured ({told})")
        lines += [f"  not measured, {count}: {words}" for words, count in why.most_common()]
    return lines


def table(rows: list[dict], summary: list[str], version: str, length: int) -> str:
    """Return the page."""
    import torch

    head = [
        "# The mask probe over every causal language model",
        "",
        f"Made by `python bench/mask_sweep.py --write docs/mask-sweep.md` with transformers {version} and torch "
        f"{torch.__version__.partition('+')[0]}: default configs, a row of {length:,} tokens, once plain, once packed "
        "with `position_ids`. Kernels are predicted for a100.",
        "",
        "```",
        *summary,
        "```",
        "",
        "| type | plain | packed |",
        "|---|---|---|",
    ]
    return (
        "\n".join([*head, *(f"| {row['type']} | {cell(row['none'])} | {cell(row['packed'])} |" for row in rows)]) + "\n"
    )


def read_back(page: str) -> Iterator[dict]:
    """Yield the rows of a page as it was written."""
    for line in page.splitlines():
        parts = [part.strip() for part in line.strip("|").replace("\\|", "\0").split("|")]
        if line.startswith("| ") and len(parts) == 1 + len(KINDS) and parts[0] != "type":
            cells = dict(zip(KINDS, (part.replace("\0", "\\|") for part in parts[1:]), strict=True))
            yield {
                "type": parts[0],
                **{
                    kind: {
                        "verdict": "not measured" if text.startswith("not measured") else text.partition(" · ")[0],
                        "headline": text,
                        "cell": text,
                    }
                    for kind, text in cells.items()
                },
            }


def cell(told: dict) -> str:
    """Return a verdict with what stands behind it."""
    if "cell" in told:
        return told["cell"]
    figures = told.get("figures", {})
    if told["verdict"] == "not measured":
        text = told["headline"].removeprefix("not measured: ").replace("|", "\\|").replace("\n", " ")
        return f"not measured: {' '.join(text.split())[:110].strip()}"
    layers, fast = int(figures.get("mask.layers", 0)), int(figures.get("mask.layers_fast", 0))
    leaks = int(figures.get("mask.leak_pairs", 0)) or int(figures.get("twin.leak_pairs", 0))
    kinds = ", ".join(told.get("kinds", ()))
    parts = [f"{told['verdict']}", f"fast {fast}/{layers}" if layers else "no attention layer"]
    return " · ".join([*parts, *([f"{leaks:,} pairs leak"] if leaks else []), *([kinds] if kinds else [])])


if __name__ == "__main__":
    sys.exit(main())
