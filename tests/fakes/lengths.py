"""Datasets for tests: seeded lengths, and evidence of them."""

import msgspec
import numpy as np

from stepprobe.model.evidence import Evidence
from stepprobe.model.lengths import About, build, encode


def cells_of(lengths, sources=None):
    sources = np.zeros(len(lengths), np.int64) if sources is None else np.asarray(sources)
    pairs, rows = np.unique(np.column_stack((sources, lengths)).astype(np.int64), axis=0, return_counts=True)
    return np.column_stack((pairs, rows))


def evidence_of(probe, lengths, sources=None, **options):
    cells = cells_of(lengths, sources)
    names = tuple(f"s{number}" for number in range(int(cells[:, 0].max(initial=0)) + 1))
    about = About(sources=names, rows=len(lengths))
    return Evidence(
        probe=probe,
        command=probe,
        subject="a test",
        environment={},
        files=encode(build(about, {"cells": cells})),
        options={name: str(value) for name, value in options.items()},
    )


def chat_mix(rows, seed=0, most=4096):
    """Short chats, long answers, reasoning and documents; the kind is the source."""
    random = np.random.default_rng(seed)
    kind = random.choice(4, rows, p=[0.45, 0.35, 0.15, 0.05])
    middle, spread = np.log([180, 550, 1400, 5000])[kind], np.array([0.7, 0.6, 0.7, 0.8])[kind]
    return np.clip(random.lognormal(middle, spread).astype(np.int64), 8, most), kind


def with_options(evidence, **options):
    return msgspec.structs.replace(evidence, options={name: str(value) for name, value in options.items()})
