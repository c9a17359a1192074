"""Lengths straight from Arrow columns, without a Python object for each row."""

from typing import TYPE_CHECKING, Any, NamedTuple

from stepprobe.instruments.dataset.columns import NO_IDS, Span
from stepprobe.instruments.dataset.records import Problems
from stepprobe.model.lengths import IGNORED

if TYPE_CHECKING:
    import numpy as np
    import pyarrow
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]


class Counted(NamedTuple):
    """Rows of a block: which were kept, and their lengths."""

    kept: "NDArray[np.bool_]"
    lengths: "Ints"
    labelled: "Ints | None"
    padded: int
    span: Span = NO_IDS
    """Of token ids, padding included."""
    labels: Span = NO_IDS
    """Of labels, those of tokens without loss left out."""


def lengths(column: "pyarrow.Array", place: str, first_row: int, problems: Problems) -> Counted:
    """Return the lengths in a column of numbers; what is no length is refused or left out.

    Raises:
        NotObserved: A value is null, negative or no whole number, and rows may not be left out.
    """
    import numpy as np

    null = np.asarray(column.is_null())
    values = np.asarray(column.fill_null(0) if column.null_count else column)
    if values.dtype.kind not in "iuf":
        null, values = np.ones(len(values), bool), np.zeros(len(values), np.int64)
    bad = null | (values < 0)
    if values.dtype.kind == "f":
        bad |= (values != np.floor(values)) | ~np.isfinite(values)
    for row in np.flatnonzero(bad)[: None if problems.skip else 1]:
        shown = "null" if null[row] else values[row].item()
        problems.add(
            f"{place}, row {first_row + int(row)}", f"length {shown} is not a whole number of tokens, 0 or more"
        )
    kept = ~bad
    return Counted(kept, (values[kept] if bad.any() else values).astype(np.int64, copy=False), None, 0)


def are_plain(batch: "pyarrow.RecordBatch", column: str) -> bool:
    """Tell whether token ids, their mask and their labels are lists of whole numbers without a hole, equally long.

    Then they can be counted as columns; all else is read row by row, which names what is broken.
    """
    import pyarrow.compute as pc
    from pyarrow import types

    whole = pc.list_value_length(batch.column(column)) if _is_list(batch.column(column).type) else None
    for name in (column, *(one for one in ("attention_mask", "labels") if one in batch.schema.names)):
        lists = batch.column(name)
        if whole is None or not _is_list(lists.type) or lists.null_count or lists.flatten().null_count:
            return False
        held = lists.type.value_type
        if not (types.is_integer(held) and not types.is_uint64(held)) and not types.is_boolean(held):
            return False
        if types.is_boolean(held) and name != "attention_mask":
            return False
        if name == "attention_mask" and not pc.list_value_length(lists).cast("int64").equals(whole.cast("int64")):
            return False
    return True


def _is_list(held: "pyarrow.DataType") -> bool:
    from pyarrow import types

    return bool(types.is_list(held) or types.is_large_list(held) or types.is_fixed_size_list(held))


def ids(batch: "pyarrow.RecordBatch", column: str, pad: int | None) -> Counted:
    """Return the lengths of lists of token ids, without padding inside them, and their labelled tokens."""
    import numpy as np
    import pyarrow.compute as pc

    lists = batch.column(column)
    whole = np.asarray(pc.fill_null(pc.list_value_length(lists), 0)).astype(np.int64)
    names = batch.schema.names
    if "attention_mask" in names:
        real = _count(batch.column("attention_mask"), lambda flat: flat != 0)
        real = np.minimum(real, whole)
    elif pad is not None:
        real = whole - _pad_runs(lists, whole, pad)
    else:
        real = whole
    labelled = (
        np.minimum(_count(batch.column("labels"), lambda flat: flat != IGNORED), real) if "labels" in names else real
    )
    padded = int((real < whole).sum())
    labels = _span(batch.column("labels"), without=IGNORED) if "labels" in names else NO_IDS
    return Counted(np.ones(len(whole), bool), real, labelled, padded, _span(lists), labels)


def _span(lists: "pyarrow.Array", without: int | None = None) -> Span:
    import pyarrow.compute as pc

    flat = lists.flatten()
    found = pc.min_max(flat if without is None else flat.filter(pc.not_equal(flat, without))).as_py()
    return NO_IDS if found["max"] is None else (min(int(found["min"]), 0), int(found["max"]))


def _count(lists: "pyarrow.Array", wanted: Any) -> "Ints":  # noqa: ANN401 - a function of an array
    import numpy as np
    import pyarrow.compute as pc

    ends = np.cumsum(np.asarray(pc.fill_null(pc.list_value_length(lists), 0)).astype(np.int64))
    reached = np.concatenate(([0], np.cumsum(wanted(np.asarray(lists.flatten())))))
    return np.diff(reached[ends], prepend=0)


def _pad_runs(lists: "pyarrow.Array", whole: "Ints", pad: int) -> "Ints":
    """Return how many pad tokens end each row, one spared."""
    import numpy as np

    ends = np.cumsum(whole)
    real = np.flatnonzero(np.asarray(lists.flatten()) != pad)
    before = np.searchsorted(real, ends)
    last = np.where(before > 0, real[np.maximum(before - 1, 0)] if len(real) else -1, -1)
    run = ends - 1 - np.maximum(last, ends - whole - 1)
    return np.where(run > 1, run - 1, 0)


def sources(batch: "pyarrow.RecordBatch", column: str) -> tuple[list[str], "Ints"]:
    """Return the distinct sources of a block, and the place of each row's among them."""
    import numpy as np

    coded = batch.column(column)
    if not hasattr(coded, "dictionary"):
        coded = coded.dictionary_encode()
    names = [str(name) for name in coded.dictionary.to_pylist()]
    indices = coded.indices
    if indices.null_count:
        indices, names = indices.fill_null(len(names)), [*names, "none"]
    return names, np.asarray(indices).astype(np.int64)
