"""The mask probe over every causal language model of the installed transformers, at its default config.

    python bench/mask_sweep.py [--write docs/mask-sweep.md] [--length 4096] [--seconds 120] [TYPE ...]

Each type runs in a process of its own, forked from one that has imported everything. Two batches are asked: plain, and
packed with ``position_ids``. The last lines count what was measured, what was explained, and what was neither.
"""

import argparse
import json
import os
import select
import signal
import sys
import time
from collections import Counter
from pathlib import Path

KINDS = ("none", "packed")


def main() -> int:
    """Sweep, print a line a type, and write the table when asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("types", nargs="*", metavar="TYPE")
    parser.add_argument("--write", type=Path)
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--seconds", type=int, default=120)
    arguments = parser.parse_args()
    import torch  # noqa: F401 - what every child needs
    import transformers
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    names = arguments.types or sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    rows = []
    for name in names:
        began = time.monotonic()
        rows.append(in_child(name, arguments.length, arguments.seconds))
        shown = " | ".join(f"{kind}: {rows[-1][kind]['verdict']} {rows[-1][kind]['headline']}" for kind in KINDS)
        print(f"{name:24} {time.monotonic() - began:6.1f} s  {shown}"[:260], flush=True)
    summary = summarise(rows)
    print("\n".join(summary))
    if arguments.write:
        arguments.write.write_text(table(rows, summary, transformers.__version__, arguments.length), encoding="utf-8")
    return 0


def in_child(name: str, length: int, seconds: int) -> dict:
    """Return the row of one type, from a child that may be killed."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        with os.fdopen(writing, "w") as pipe, open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), 2)
            pipe.write(json.dumps(probed(name, length)))
            pipe.flush()
        os._exit(0)
    os.close(writing)
    content, end = b"", time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0 and select.select([reading], [], [], left)[0]:
        part = os.read(reading, 1 << 16)
        if not part:
            break
        content += part
    os.close(reading)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    if content:
        return json.loads(content)
    reason = {"verdict": "not measured", "headline": f"not measured: no answer in {seconds} s, or the process died"}
    return {"type": name, **{kind: reason for kind in KINDS}}


def probed(name: str, length: int) -> dict:
    """Return what the probe says of one type."""
    return {"type": name, **{kind: asked(name, kind, length) for kind in KINDS}}


def asked(name: str, kind: str, length: int) -> dict:
    """Return verdict, headline and figures for one kind of batch."""
    from transformers import CONFIG_MAPPING

    from stepprobe.errors import StepprobeError
    from stepprobe.instruments.attention import batches, models
    from stepprobe.instruments.attention.configs import Config
    from stepprobe.instruments.attention.subject import as_evidence, clamp, observe
    from stepprobe.probes import mask

    try:
        with models.quiet():
            config = CONFIG_MAPPING[name]()
            if hasattr(config, "is_decoder"):
                config.is_decoder = True
            length, notes = clamp(config.get_text_config(), length)
            batch = batches.make(kind, 1, length) | {"use_cache": False}
            capture = observe(Config(config), kind, batch, notes=notes)
        report = mask.derive(as_evidence(capture, name, ""))
    except StepprobeError as error:
        return {"verdict": "not measured", "headline": f"not measured: {error}"}
    except Exception as error:  # a default config that its own class refuses
        return {"verdict": "not measured", "headline": f"not measured: default config: {type(error).__name__}: {error}"}
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
        f"{torch.__version__.partition('+')[0]}: default configs, one row of {length:,} tokens, once plain, once packed "
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


def cell(told: dict) -> str:
    """Return a verdict with what stands behind it."""
    figures = told.get("figures", {})
    if told["verdict"] == "not measured":
        text = told["headline"].removeprefix("not measured: ").replace("|", "\\|").replace("\n", " ")
        return f"not measured: {' '.join(text.split())[:110]}"
    layers, fast = int(figures.get("mask.layers", 0)), int(figures.get("mask.layers_fast", 0))
    leaks = int(figures.get("mask.leak_pairs", 0)) or int(figures.get("twin.leak_pairs", 0))
    kinds = ", ".join(told.get("kinds", ()))
    parts = [f"{told['verdict']}", f"fast {fast}/{layers}" if layers else "no attention layer"]
    return " · ".join([*parts, *([f"{leaks:,} pairs leak"] if leaks else []), *([kinds] if kinds else [])])


if __name__ == "__main__":
    sys.exit(main())
