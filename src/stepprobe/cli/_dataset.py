"""The DATA argument and everything about how it is read and batched: shared by ``padding`` and ``bucket``."""

import argparse
import os
import sys
import threading
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from stepprobe.cli._packages import need_numpy
from stepprobe.cli._parser import positive
from stepprobe.errors import EvidenceError, UsageError

if TYPE_CHECKING:
    from stepprobe.instruments.dataset.counting import Settings
    from stepprobe.instruments.dataset.subject import Dataset
    from stepprobe.model.evidence import Evidence
    from stepprobe.session import Result

BATCH_SIZE = 8
"""Rows of a batch where nobody says: of every command, and of ``TrainingArguments`` in transformers too."""
MODEL = "model.json"
_HIDDEN = argparse.SUPPRESS
_MORE = (
    "column loss-mask template skip-broken model fit world-size accumulation pad-to-multiple-of pack-to workers sample"
)


def add_dataset(parser: argparse.ArgumentParser, *, more: str = "") -> None:
    """Add DATA and the options of every command that reads a dataset.

    Args:
        parser: The parser of the command.
        more: Options beyond these that are kept out of the help.
    """
    keys = ", ".join([*_MORE.split(), *more.split()])
    parser.epilog = (
        "DATA is JSONL, JSON, Parquet, CSV, text, a folder of them, or a saved dataset; lengths, input_ids, text or "
        f"chat messages; gz and zst too. More options, here or in stepprobe.toml: {keys}."
    )
    parser.add_argument("data", nargs="*", metavar="DATA", help="files or folders; - reads standard input")
    parser.add_argument("--tokenizer", metavar="T", help="folder, tokenizer.json, or model in the local cache")
    parser.add_argument("--max-length", type=positive, metavar="N", help="tokens after which a row is cut")
    parser.add_argument("--batch-size", type=positive, metavar="N", help=f"rows a device takes (default: {BATCH_SIZE})")
    parser.add_argument("--source", metavar="COL", help="column that names the source of a row")
    parser.add_argument("--full", action="store_true", help="tokenise every row, not a sample")
    parser.add_argument("--out", type=Path, default=Path("stepprobe-runs"), metavar="DIR", help="where run folders go")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_reading(parser)
    parser.add_argument("--model", help=_HIDDEN)
    parser.add_argument("--fit", type=Path, help=_HIDDEN)
    parser.add_argument("--accumulation", type=positive, default=1, help=_HIDDEN)
    parser.add_argument("--pad-to-multiple-of", type=positive, default=1, help=_HIDDEN)
    parser.add_argument("--pack-to", type=positive, help=_HIDDEN)
    parser.add_argument("--workers", type=positive, default=1, help=_HIDDEN)


def add_reading(parser: argparse.ArgumentParser) -> None:
    """Add the options about how rows are read, which the help leaves out."""
    parser.add_argument("--column", help=_HIDDEN)
    parser.add_argument("--loss-mask", choices=("auto", "all", "assistant", "completion"), default="auto", help=_HIDDEN)
    parser.add_argument("--template", type=Path, help=_HIDDEN)
    parser.add_argument("--skip-broken", action="store_true", help=_HIDDEN)
    parser.add_argument("--sample", type=positive, default=2000, help=_HIDDEN)


def ask(arguments: argparse.Namespace, probe: str, options: Mapping[str, str], more: Mapping[str, bytes]) -> "Result":
    """Read the dataset, keep its lengths and report on them.

    Args:
        arguments: The command line.
        probe: The probe that reports.
        options: What it needs to know beside the options of batching.
        more: Evidence beside the lengths.

    Raises:
        UsageError: There is no DATA, or something on the command line does not fit it.
        NotObserved: It cannot be read.
    """
    from stepprobe import session

    subject = _subject(arguments, probe, options, more)
    name = Path(arguments.data[0]).name if arguments.data and arguments.data[0] != "-" else "stdin"
    with _Watch(subject):
        return session.ask(subject, probe, out=arguments.out, name=name, argv=("stepprobe", probe, *arguments.data))


def _subject(
    arguments: argparse.Namespace, probe: str, options: Mapping[str, str], more: Mapping[str, bytes]
) -> "Dataset":
    if not arguments.data:
        raise UsageError(f"name a dataset, or - for standard input; see stepprobe {probe} --help")
    need_numpy("counting lengths")
    from stepprobe.instruments.dataset.subject import Dataset

    return Dataset(
        sources=tuple(arguments.data),
        planned=planned(arguments, probe, options),
        settings=reading(arguments, arguments.tokenizer),
        workers=arguments.workers,
        cache=cache(),
        more=more,
    )


def reading(arguments: argparse.Namespace, tokenizer: str | None) -> "Settings":
    """Return how rows are read.

    Args:
        arguments: The command line.
        tokenizer: Name of what counts tokens; None where rows say their lengths.

    Raises:
        UsageError: There is no such tokenizer or template.
    """
    from stepprobe.instruments.dataset import tokenizer as tokenizers
    from stepprobe.instruments.dataset.counting import Settings

    return Settings(
        tokenizer=tokenizers.load(tokenizer, arguments.template) if tokenizer else None,
        column=arguments.column,
        source=arguments.source,
        loss_mask=arguments.loss_mask,
        full=arguments.full,
        skip_broken=arguments.skip_broken,
        sample=arguments.sample,
    )


def planned(arguments: argparse.Namespace, probe: str, options: Mapping[str, str]) -> "Evidence":
    """Return what is known before the dataset is read."""
    from stepprobe.instruments.environment import environment
    from stepprobe.model.evidence import Evidence

    batching = {
        "batch_size": arguments.batch_size or BATCH_SIZE,
        "batch_size_from": "--batch-size" if arguments.batch_size else "the default",
        "max_length": arguments.max_length or "",
        "ranks": arguments.world_size,
        "accumulation": arguments.accumulation,
        "multiple": arguments.pad_to_multiple_of,
        "pack_to": arguments.pack_to or "",
    }
    return Evidence(
        probe=probe,
        command=probe,
        subject=" ".join(arguments.data) or "no dataset",
        environment=environment(),
        files={},
        options={**{name: str(value) for name, value in batching.items()}, **options},
    )


def model_files(arguments: argparse.Namespace) -> dict[str, bytes]:
    """Return a model's config and a fit of cost as evidence files.

    Raises:
        UsageError: One of them cannot be read.
    """
    found = {}
    if arguments.model:
        found[MODEL] = _decoder_file(arguments.model)
    if arguments.fit:
        found["fit.json"] = _fit(arguments.fit)
    return found


def _decoder_file(model: str) -> bytes:
    """Return the config of a model whose sizes can be read."""
    from stepprobe.analysis.lengths.cost import model_sizes

    content = config_file(model)
    try:
        model_sizes({MODEL: content})
    except EvidenceError as error:
        said = str(error).removeprefix(f"{MODEL}: ")
        raise UsageError(f"--model {model}: {said}; name the config.json of a decoder, or leave it out") from error
    return content


def config_file(model: str) -> bytes:
    """Return a model's ``config.json``, or the one that a run folder kept of its model.

    Raises:
        UsageError: There is none.
        EvidenceError: What the run kept is damaged.
    """
    if (Path(model) / "manifest.json").is_file():
        return _config_of_run(Path(model))
    return _read(_config_of(model), "--model")


def _fit(path: Path) -> bytes:
    """Return a fit from its file, or from the run folder of a profile."""
    if not path.is_dir():
        from stepprobe.analysis.lengths.cost import FIT, choose

        content = _read(path, "--fit")
        try:
            choose({FIT: content})
        except EvidenceError as error:
            raise UsageError(f"--fit {path}: {error}; or name the run folder of a profile") from error
        return content
    from stepprobe import session

    return session.fit(path)


def _config_of(model: str) -> Path:
    path = Path(model)
    if path.is_dir() and not (path / "config.json").is_file():
        adapter = " but an adapter; name its base model" if (path / "adapter_config.json").is_file() else ""
        raise UsageError(
            f"{model} is a folder without config.json{adapter}; name a model's folder, its config.json, or a hub id in "
            "the local cache"
        )
    if path.is_dir():
        return path / "config.json"
    if path.is_file():
        return path
    try:
        from huggingface_hub import try_to_load_from_cache

        cached = try_to_load_from_cache(model, "config.json")
    except (ImportError, ValueError):
        cached = None
    if not isinstance(cached, str):
        raise UsageError(
            f"no model at {model!r}: neither a folder, a config.json, nor a model in the local cache; name another, or "
            f"fetch it once with: hf download {model} config.json"
        )
    return Path(cached)


def _config_of_run(folder: Path) -> bytes:
    from stepprobe.model.first_calls import read_first_calls

    kept = read_first_calls({path.name: path.read_bytes() for path in folder.glob("batches-*.jsonl")})
    if not kept or not kept[0].model.config:
        raise UsageError(f"{folder} is a run that kept no config of its model; name a folder with a config.json")
    return kept[0].model.config.encode()


def _read(path: Path, option: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}; name another file with {option}") from error


def cache() -> Path:
    """Return the folder that keeps what was counted in full."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "stepprobe" / "lengths"


class _Watch(AbstractContextManager[None]):
    """Shows how many rows have been read, on a terminal only and only when it takes a while."""

    def __init__(self, subject: "Dataset", every_s: float = 0.5) -> None:
        self._subject, self._every_s, self._stop = subject, every_s, threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> None:
        if sys.stderr is not None and sys.stderr.isatty():
            self._thread = threading.Thread(target=self._show, daemon=True)
            self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread:
            self._thread.join()
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    def _show(self) -> None:
        while not self._stop.wait(self._every_s):
            count = self._subject.count
            if count is not None:
                said = f"\rstepprobe: {count.seen:,} rows read, {count.tokenised:,} tokenised"
                print(said, end="", file=sys.stderr, flush=True)


def finish(result: "Result", arguments: argparse.Namespace) -> int:
    """Show the report and say where it lies; return the exit code."""
    from stepprobe.cli._console import show, shown_path, tell

    code = show(result.report, as_json=arguments.json, stream=sys.stdout)
    for problem in result.problems:
        tell(problem)
    tell(f"kept, with report.html, in {shown_path(result.folder)}")
    return code
