"""A dataset as something that can be observed: read once, kept as histograms."""

import hashlib
import os
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from stepprobe.errors import EvidenceError, NotObserved
from stepprobe.instruments.dataset.counting import Count, Settings
from stepprobe.instruments.dataset.records import BLOCK_ROWS, Block, from_dataset, read
from stepprobe.instruments.dataset.stream import STANDARD_INPUT, expand
from stepprobe.model.evidence import Evidence
from stepprobe.model.lengths import ABOUT, ARRAYS, About, Lengths, build, decode, encode

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(kw_only=True)
class Dataset:
    """Files, folders, standard input or an object with rows (a ``model.harness.Subject``)."""

    sources: Sequence[Any]
    """Paths, ``-`` for standard input, or objects such as a ``datasets.Dataset``."""
    planned: Evidence
    """Everything about the evidence but its files."""
    settings: Settings = field(default_factory=Settings)
    workers: int = 1
    """Processes that read files whose lengths are known."""
    cache: Path | None = None
    """Folder that keeps what was counted in full, by content."""
    more: Mapping[str, bytes] = field(default_factory=dict)
    """Evidence of other instruments that belongs to the same report."""
    block_rows: int = BLOCK_ROWS
    count: Count | None = None
    """What has been counted so far, for who watches."""

    def observe(self) -> Evidence:
        """Read everything once.

        Raises:
            UsageError: A source cannot be opened, or its columns do not fit the settings.
            NotObserved: It holds no rows, or a broken one.
        """
        files = [part for source in self.sources for part in (expand(source) if isinstance(source, str) else [source])]
        key = self._key(files)
        kept = self._cached(key)
        if kept is None:
            kept, note = self._store(key, encode(self._read(files)))
            if note:
                kept = _with_note(kept, note)
        return msgspec.structs.replace(self.planned, files={**kept, **self.more}, status="finished")

    def _read(self, files: Sequence[Any]) -> Lengths:
        origins = _origins(files)
        if self.workers > 1 and len(files) > 1 and self.settings.tokenizer is None:
            return self._read_together(files, origins)
        count = self.count = Count(self.settings, twice=_twice(files))
        for file, origin in zip(files, origins, strict=True):
            blocks = read(file, count.problems, self.block_rows) if isinstance(file, str) else from_dataset(file)
            _add_all(count, blocks, origin)
        return _finished(count)

    def _read_together(self, files: Sequence[Any], origins: Sequence[str]) -> Lengths:
        import multiprocessing
        from concurrent.futures import ProcessPoolExecutor

        count = self.count = Count(self.settings, twice=_twice(files))
        tasks = [(file, origin, self.settings, self.block_rows) for file, origin in zip(files, origins, strict=True)]
        with ProcessPoolExecutor(self.workers, multiprocessing.get_context("spawn")) as pool:
            for part in pool.map(_count_one, tasks):
                count.merge(part)
        return _finished(count)

    def _key(self, files: Sequence[Any]) -> str:
        """Return the content hash under which a full count is kept; empty where nothing is kept."""
        if self.cache is None or not self.settings.full or self.settings.tokenizer is None:
            return ""
        wanted = self.settings
        digest = hashlib.sha256(f"3|{self.settings.tokenizer.sha256}|{wanted.column}|{wanted.source}".encode())
        digest.update(f"|{wanted.loss_mask}|{wanted.skip_broken}|{_origins(files)}".encode())
        for file in files:
            if not isinstance(file, str) or file == STANDARD_INPUT or not Path(file).is_file():
                return ""
            with open(file, "rb") as stream:
                digest.update(hashlib.file_digest(stream, "sha256").digest())
        return digest.hexdigest()

    def _cached(self, key: str) -> dict[str, bytes] | None:
        if not key or self.cache is None:
            return None
        try:
            files = {name: (self.cache / f"{key}-{name}").read_bytes() for name in (ARRAYS, ABOUT)}
            return files if decode(files) else None
        except (OSError, EvidenceError):  # absent, or cut short by a full disk: count again
            return None

    def _store(self, key: str, files: dict[str, bytes]) -> tuple[dict[str, bytes], str]:
        if not key or self.cache is None:
            return files, ""
        try:
            self.cache.mkdir(parents=True, exist_ok=True)
            for name, content in files.items():
                part = self.cache / f"{key}-{name}.{os.getpid()}.part"
                try:
                    part.write_bytes(content)
                    os.replace(part, self.cache / f"{key}-{name}")
                finally:
                    part.unlink(missing_ok=True)
        except OSError as error:
            return files, f"The count could not be cached in {self.cache} ({error.strerror}); the next one starts anew."
        return files, ""


def _count_one(task: tuple[Any, str, Settings, int]) -> Count:
    file, origin, settings, block_rows = task
    count = Count(settings)
    _add_all(count, read(file, count.problems, block_rows), origin)
    if count.chars.rows:
        raise NotObserved(f"{file} holds text: count it with a tokenizer (--tokenizer T)")
    count.sampler = None
    return count


def _add_all(count: Count, blocks: Generator[Block, None, None], origin: str) -> None:
    with closing(blocks):
        for block in blocks:
            count.add(block, origin)


def _origins(files: Sequence[Any]) -> list[str]:
    """Return the source of rows that name none: the file's name where there are several files, else ``all``."""
    if len(files) < 2:
        return ["all"]
    names = [Path(file).name.partition(".")[0] if isinstance(file, str) else "dataset" for file in files]
    return [name if names.count(name) == 1 else str(file) for name, file in zip(names, files, strict=True)]


def _twice(files: Sequence[Any]) -> tuple[str, ...]:
    """Return the files that are named more than once, by whatever path."""
    real = [os.path.realpath(file) for file in files if isinstance(file, str) and file != STANDARD_INPUT]
    return tuple(dict.fromkeys(file for file in real if real.count(file) > 1))


def _finished(count: Count) -> Lengths:
    arrays: dict[str, NDArray[np.int64]] = {}
    sources, names = count.tally, count.tally.names()
    if count.sampler is not None and count.sampler.rows:
        sample, longest = count.sampler.drawn()
        arrays["sample"], arrays["longest"] = count.tokenise_kept(sample), count.tokenise_kept(longest)
        arrays["chars"] = count.chars.cells()
        arrays["chars"] = arrays["chars"][arrays["chars"][:, 2] > 0]
        names = count.chars.names()
    arrays["cells"], arrays["labelled"] = sources.cells(), count.pairs.cells()
    rows = int(arrays["cells"][:, 2].sum()) + sum(
        int(arrays[name][:, 2].sum()) if name == "chars" else len(arrays[name])
        for name in ("chars", "sample", "longest")
        if name in arrays
    )
    if not rows:
        left_out = f" ({count.problems.rows} broken rows were left out)" if count.problems.rows else ""
        header = "" if left_out else " (the first line of a CSV is its header)"
        raise NotObserved(f"the dataset holds no row{left_out}{header}; name one with rows")
    return build(_about(count, names, rows), arrays)


def _about(count: Count, names: tuple[str, ...], rows: int) -> About:
    tokenizer = count.settings.tokenizer
    return About(
        sources=names,
        rows=rows,
        tokenised=count.tokenised,
        kind=", ".join(sorted(count.kinds)),
        tokenizer=f"{tokenizer.name} ({tokenizer.sha256[:12]})" if tokenizer else "",
        vocabulary=tokenizer.vocabulary if tokenizer else 0,
        loss_mask=count.settings.loss_mask,
        unmasked_rows=count.unmasked,
        padded_rows=count.padded,
        skipped_rows=count.problems.rows,
        skipped=tuple(count.problems.first),
        notes=tuple(_notes(count)),
        largest_id=max(count.ids[1], tokenizer.seen.largest if tokenizer else -1),
        smallest_id=count.ids[0],
        largest_label=count.labels[1],
        smallest_label=count.labels[0],
        tokenizer_top=tokenizer.top if tokenizer else -1,
    )


def _notes(count: Count) -> Iterable[str]:
    for file in count.twice:
        yield f"{Path(file).name} is named more than once: its rows are counted each time."
    tokenizer = count.settings.tokenizer
    if tokenizer is None:
        return
    if tokenizer.pad is None:
        yield "The tokenizer has no pad token: a collator will refuse to pad until one is set."
    if count.settings.loss_mask == "assistant" and not tokenizer.marks_assistant:
        yield (
            "The chat template has no {% generation %} part, so its assistant mask is all zeros: training on assistant "
            "tokens alone would learn nothing. Use a template that marks them."
        )


def _with_note(files: Mapping[str, bytes], note: str) -> dict[str, bytes]:
    lengths = decode(files)
    if lengths is None:
        return dict(files)
    about = msgspec.structs.replace(lengths.about, notes=(*lengths.about.notes, note))
    arrays = {name: getattr(lengths, name) for name in ("cells", "labelled", "chars", "sample", "longest")}
    return encode(build(about, arrays))
