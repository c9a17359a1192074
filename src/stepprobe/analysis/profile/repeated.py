"""Medians of repetitions and their ratios, each with an interval, and whether it decides anything."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stepprobe.analysis.distributions import t_quantile
from stepprobe.analysis.statistics import CONFIDENCE, median

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

REPETITIONS_FEWEST = 3
"""Repetitions below which there is no interval."""
DRAWS = 400


@dataclass(frozen=True)
class Middle:
    """A median and half its 95 % interval; None where there were too few repetitions."""

    value: float
    half: float | None
    n: int

    @property
    def low(self) -> float | None:
        """Lower end; nothing here can be negative."""
        return None if self.half is None else max(0.0, self.value - self.half)

    @property
    def high(self) -> float | None:
        """Upper end."""
        return None if self.half is None else self.value + self.half

    def decides(self, against: float = 1.0) -> bool:
        """Return whether the interval leaves a value out."""
        return self.low is not None and self.high is not None and not self.low <= against <= self.high


def middle(values: Sequence[float]) -> Middle:
    """Return the median of repetitions."""
    return _resampled([values], lambda drawn: drawn[0])


def paired(above: Mapping[int, float], below: Mapping[int, float]) -> Middle | None:
    """Return the median of the ratios of what was measured in the same blocks; None where no block holds both."""
    shared = sorted(above.keys() & below.keys())
    return middle([above[block] / below[block] for block in shared if below[block]]) if shared else None


def ratio(above: Sequence[float], below: Sequence[float]) -> Middle:
    """Return the ratio of two medians that were not measured side by side."""
    return _resampled([above, below], lambda drawn: drawn[0] / drawn[1])


def _resampled(
    series: Sequence[Sequence[float]],
    combine: "Callable[[list[NDArray[np.float64]]], NDArray[np.float64]]",
) -> Middle:
    import numpy as np

    value = float(combine([np.array([median(values)]) for values in series])[0])
    fewest = min(len(values) for values in series)
    if fewest < REPETITIONS_FEWEST:
        return Middle(value, None, fewest)
    random = np.random.default_rng(0)
    drawn = [
        np.median(np.array(values)[random.integers(0, len(values), (DRAWS, len(values)))], axis=1) for values in series
    ]
    half = t_quantile((1 + CONFIDENCE) / 2, fewest - 1) * float(combine(drawn).std(ddof=1))
    return Middle(value, half, fewest)
