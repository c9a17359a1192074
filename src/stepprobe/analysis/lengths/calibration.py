"""From a tokenised sample to the lengths of all rows: characters of every row, tokens of some, and how sure that is.

Rows of one source and about the same size share how their tokens depart from a line over characters, so each row that
was not tokenised is taken as the mixture of what the sampled rows of its class would give. The classes are cut by the
characters of all rows, never by the sample, so every figure is a smooth function of the sample and the jackknife holds.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from stepprobe.analysis.distributions import t_quantile
from stepprobe.model.estimate import Estimate, Unit, exact
from stepprobe.model.lengths import Lengths

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]
    Line = Callable[[Ints], Floats]

GROUPS = 40
"""Parts of the sample that are left out in turn."""
CLASS_ROWS = 40
"""Sampled rows of a class, about."""
FEWEST = 8
"""A class with fewer sampled rows takes those of its source, and a source with fewer those of all."""


@dataclass(frozen=True)
class Counts:
    """Rows by source and length, and the same with each part of the sample left out."""

    cells: "Ints"
    """Columns source, length, rows."""
    replicates: "tuple[tuple[Ints, Floats], ...]" = ()
    """(lengths, rows) of all sources together; empty where every row is known."""
    sampled: int = 0
    """Rows in the random sample."""
    share: float = 1.0
    """Part of the rows that may be sampled which was: what is left to chance shrinks with it."""
    labelled_share: "Estimate | None" = None
    """Labelled tokens over tokens; None where it was not observed."""
    by_length: "tuple[Ints, Ints]" = field(init=False)
    """(lengths, rows) of all sources together."""

    def __post_init__(self) -> None:
        import numpy as np

        lengths, places = np.unique(self.cells[:, 1], return_inverse=True)
        rows = np.bincount(places, weights=self.cells[:, 2], minlength=len(lengths))
        object.__setattr__(self, "by_length", (lengths, np.rint(rows).astype(np.int64)))


def counts(lengths: Lengths) -> Counts:
    """Return the rows of all lengths, estimated where only a sample was tokenised."""
    import numpy as np

    if not lengths.sampled:
        known = np.concatenate((lengths.cells, *(_rows(part) for part in (lengths.sample, lengths.longest))))
        return Counts(_summed(known), labelled_share=_labelled(lengths))
    parts, replicates = _imputed(lengths)
    known = np.concatenate((lengths.cells, _rows(lengths.sample), _rows(lengths.longest)))
    cells = _summed(np.concatenate((known, *(_whole_rows(*part) for part in parts))))
    rest = int(lengths.chars[:, 2].sum())
    return Counts(
        cells,
        tuple(_with_known(known, one) for one in replicates),
        len(lengths.sample),
        len(lengths.sample) / (len(lengths.sample) + rest),
        _labelled(lengths),
    )


def estimate(
    known: Counts, figure: "Callable[[Ints, Ints | Floats], float]", unit: Unit, method: str, n: int
) -> Estimate:
    """Return a figure of the (lengths, rows) with the interval that the sample gives it."""
    value = figure(*known.by_length)
    if not known.replicates:
        return exact(value, unit, n, method)
    half = half_width(known, [figure(*one) for one in known.replicates])
    return Estimate(
        value=value,
        unit=unit,
        low=value - half,
        high=value + half,
        n=known.sampled,
        method=f"{method}; from {known.sampled:,} tokenised rows and the characters of all, jackknife interval",
    )


def half_width(known: Counts, values: list[float]) -> float:
    """Return half of the 95 % interval from a figure's values with each part of the sample left out."""
    centre = sum(values) / len(values)
    variance = (len(values) - 1) / len(values) * sum((value - centre) ** 2 for value in values)
    return t_quantile(0.975, len(values) - 1) * math.sqrt(variance / (1 - known.share))


def _rows(part: "Ints") -> "Ints":
    import numpy as np

    return np.column_stack((part[:, 0], part[:, 2], np.ones(len(part), np.int64)))


def _summed(cells: "Ints") -> "Ints":
    """Return cells with each (source, length) once, in order."""
    import numpy as np

    pairs, places = np.unique(cells[:, :2], axis=0, return_inverse=True)
    rows = np.bincount(places.reshape(-1), weights=cells[:, 2], minlength=len(pairs))
    return np.column_stack((pairs, np.rint(rows).astype(np.int64)))


def _whole_rows(source: int, lengths: "Ints", rows: "Floats") -> "Ints":
    """Return cells of whole rows whose running sum stays within half a row of the estimated one."""
    import numpy as np

    whole = np.diff(np.rint(np.cumsum(rows)).astype(np.int64), prepend=0)
    kept = whole > 0
    return np.column_stack((np.full(int(kept.sum()), source), lengths[kept], whole[kept]))


def _with_known(known: "Ints", part: "tuple[Ints, Floats]") -> "tuple[Ints, Floats]":
    import numpy as np

    lengths, places = np.unique(np.concatenate((known[:, 1], part[0])), return_inverse=True)
    rows = np.bincount(places, weights=np.concatenate((known[:, 2], part[1])), minlength=len(lengths))
    return lengths, rows.astype(np.float64)


def _imputed(lengths: Lengths) -> "tuple[list[tuple[int, Ints, Floats]], list[tuple[Ints, Floats]]]":
    """Return (source, lengths, rows) of the rows that were not tokenised, and their sum without each part in turn."""
    import numpy as np

    parts: list[tuple[int, Ints, Floats]] = []
    without: list[list[Floats]] = [[] for _ in range(GROUPS)]
    found: list[Ints] = []
    for source, cells, donors, line in _classes(lengths):
        ratios = donors[:, 2] / line(donors[:, 1])
        predicted = np.rint(np.outer(ratios, line(cells[:, 1]))).astype(np.int64)
        distinct, places = np.unique(predicted, return_inverse=True)
        places = places.reshape(predicted.shape)
        groups = np.random.default_rng(len(donors)).permutation(len(donors)) % GROUPS
        total = np.bincount(places.reshape(-1), np.tile(cells[:, 2], len(donors)), len(distinct))
        parts.append((source, distinct, total / len(donors)))
        # the line took two more degrees of freedom than a mean does
        lost = ((len(donors) - 1) / max(1, len(donors) - 3)) ** 0.5
        found.append(distinct)
        for group in range(GROUPS):
            out = np.flatnonzero(groups == group)
            if not len(out) or len(out) == len(donors):
                without[group].append(total / len(donors))
                continue
            left = np.bincount(places[out].reshape(-1), np.tile(cells[:, 2], len(out)), len(distinct))
            changed = (total - left) / (len(donors) - len(out)) - total / len(donors)
            without[group].append(total / len(donors) + changed * lost)
    every, places_of = np.unique(np.concatenate(found), return_inverse=True)
    sums = [(every, np.bincount(places_of, np.concatenate(one), len(every)).astype(float)) for one in without]
    return parts, sums


def _line(drawn: "Ints") -> "Line":
    """Return tokens as a straight line over characters: a template adds the same tokens to every row of a source."""
    import numpy as np

    chars, tokens = np.maximum(drawn[:, 1], 1).astype(float), drawn[:, 2].astype(float)
    weights = chars**-0.5  # the scatter of tokens grows with the length
    design = np.column_stack((np.ones(len(chars)), chars))
    (start, slope), *_ = np.linalg.lstsq(design * weights[:, None], tokens * weights, rcond=None)
    if start < 0 or slope <= 0:
        start, slope = 0.0, max(float(tokens.sum() / chars.sum()), 1e-6)
    return lambda characters: np.maximum(start + slope * characters, 1e-6)


def _classes(lengths: Lengths) -> "Iterator[tuple[int, Ints, Ints, Line]]":
    """Yield (source, cells of characters, sampled rows that stand for them, tokens by characters)."""
    import numpy as np

    every = lengths.sample if len(lengths.sample) else lengths.longest
    for source in np.unique(lengths.chars[:, 0]):
        cells = lengths.chars[lengths.chars[:, 0] == source]
        drawn = lengths.sample[lengths.sample[:, 0] == source]
        if len(drawn) < FEWEST:
            yield int(source), cells, every, _line(every)
            continue
        line = _line(drawn)
        reached = np.cumsum(cells[:, 2])
        cuts = max(1, len(drawn) // CLASS_ROWS)
        edges = cells[np.searchsorted(reached, reached[-1] * np.arange(1, cuts) / cuts), 1]
        of_cells, of_drawn = (np.searchsorted(edges, part[:, 1], side="left") for part in (cells, drawn))
        for place in np.unique(of_cells):
            near = drawn[of_drawn == place]
            yield int(source), cells[of_cells == place], near if len(near) >= FEWEST else drawn, line


def _labelled(lengths: Lengths) -> Estimate | None:
    """Return labelled tokens over tokens; from a sample with the error of a ratio."""
    import numpy as np

    if lengths.sampled:
        tokens, labelled = (lengths.sample[:, column].astype(float) for column in (2, 3))
        if not tokens.sum():
            return None
        ratio = float(labelled.sum() / tokens.sum())
        error = float(np.sqrt(((labelled - ratio * tokens) ** 2).sum()) / tokens.sum())
        half = t_quantile(0.975, max(1, len(tokens) - 1)) * error
        low, high = max(0.0, ratio - half), min(1.0, ratio + half)
        method = "labelled tokens over tokens of the sampled rows"
        return Estimate(value=ratio, unit="1", low=low, high=high, n=len(tokens), method=method)
    tokens = np.concatenate(
        (lengths.labelled[:, 0] * lengths.labelled[:, 2], lengths.sample[:, 2], lengths.longest[:, 2])
    )
    labelled = np.concatenate(
        (lengths.labelled[:, 1] * lengths.labelled[:, 2], lengths.sample[:, 3], lengths.longest[:, 3])
    )
    if not tokens.sum():
        return None
    return exact(float(labelled.sum() / tokens.sum()), "1", lengths.about.rows, "labelled tokens over tokens, counted")
