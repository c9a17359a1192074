"""How the user batches: the options of ``padding`` and ``bucket``, as the evidence keeps them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stepprobe.analysis.lengths.batching import Distribution
from stepprobe.analysis.lengths.calibration import Counts
from stepprobe.errors import UsageError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]


_WIDE = ("fp32", "float32", "float64")


@dataclass(frozen=True, kw_only=True)
class Options:
    """How rows become batches."""

    batch_size: int = 8
    """Rows a rank takes at once."""
    batch_size_given: bool = True
    """Somebody asked for it; False: it is the default."""
    max_length: int | None = None
    """Tokens after which a row is cut; None cuts nothing."""
    ranks: int = 1
    accumulation: int = 1
    multiple: int = 1
    """Batches are padded to a multiple of this."""
    pack_to: int | None = None
    """Tokens of a pack; None takes ``max_length``, or the longest row."""
    trained_head: bool = True
    dtype: str = "bf16"
    """``bf16``, for any type of 16 bits, or ``fp32``."""
    budget: int | None = None
    """Bytes that the loss may take."""

    @property
    def step_rows(self) -> int:
        """Rows of one optimizer step."""
        return self.batch_size * self.ranks * self.accumulation


def read_options(options: Mapping[str, str]) -> Options:
    """Return options from the texts in the evidence.

    Raises:
        UsageError: One is no whole number.
    """
    whole = {}
    names = {"batch_size": 8, "max_length": 0, "ranks": 1, "accumulation": 1, "multiple": 1, "pack_to": 0, "budget": 0}
    for name, usual in names.items():
        text = options.get(name) or str(usual)
        if not text.isdigit() or (int(text) < 1 and usual):
            raise UsageError(f"the option {name} is {text!r}; it must be a whole number of at least 1")
        whole[name] = int(text)
    return Options(
        batch_size=whole["batch_size"],
        batch_size_given=not options.get("batch_size_from", "").startswith("the default"),
        max_length=whole["max_length"] or None,
        ranks=whole["ranks"],
        accumulation=whole["accumulation"],
        multiple=whole["multiple"],
        pack_to=whole["pack_to"] or None,
        budget=whole["budget"] or None,
        trained_head=options.get("frozen_head", "") != "yes",
        dtype="fp32" if options.get("dtype") in _WIDE else "bf16",
    )


@dataclass(frozen=True)
class Cut:
    """The rows as the batches see them, and what cutting took away."""

    known: Distribution
    cells: "Ints"
    """Columns source, length (uncut), rows; rows of no token left out."""
    tokens: int
    """Tokens before cutting."""
    empty: int
    """Rows of no token."""
    cut_rows: int
    cut_tokens: int
    longest: int
    """Longest row before cutting."""

    @property
    def truncated_share(self) -> float:
        """Tokens that are cut off, over all."""
        return self.cut_tokens / self.tokens if self.tokens else 0.0


def cut(known: Counts, options: Options) -> Cut | None:
    """Cut rows to the longest that is allowed and leave out those of no token; None where no token is left."""
    filled = known.cells[known.cells[:, 1] > 0]
    empty = int(known.cells[:, 2].sum() - filled[:, 2].sum())
    if not len(filled):
        return None
    lengths, rows = known.by_length
    lengths, rows = (part[lengths > 0] for part in (lengths, rows))
    tokens, longest = int((lengths * rows).sum()), int(lengths[-1])
    distribution = shortened(lengths, rows, options.max_length, options.multiple)
    over = lengths > (options.max_length or longest)
    lost = tokens - distribution.tokens
    return Cut(distribution, filled, tokens, empty, int(rows[over].sum()), lost, longest)


def shortened(lengths: "Ints", rows: "Ints | Floats", longest: int | None, multiple: int = 1) -> Distribution:
    """Return the distribution of rows that are cut to ``longest``."""
    import numpy as np

    if longest is None or longest >= lengths[-1]:
        return Distribution(lengths, rows, multiple)
    inside = int(np.searchsorted(lengths, longest))
    if not inside:
        return Distribution(np.array([longest]), np.array([rows.sum()]), multiple)
    return Distribution(np.append(lengths[:inside], longest), np.append(rows[:inside], rows[inside:].sum()), multiple)
