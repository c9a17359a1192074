"""Rows by their name: each name is looked at once, and only the names that the rows in question have.

A trace of many short steps has as many names that nothing else has: the marks of its steps.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from stepprobe.model.trace import Columns

if TYPE_CHECKING:
    from stepprobe.model.trace import Ints, Mask


def names_of(columns: Columns, rows: "Ints | Mask") -> "Ints":
    """Return the names that these rows have, as places in ``header.names``."""
    import numpy as np

    held = np.zeros(len(columns.header.names), bool)
    held[columns.name[rows]] = True
    return np.flatnonzero(held)


def names_with(columns: Columns, rows: "Ints | Mask", wanted: Callable[[str], object]) -> "Mask":
    """Tell of each name whether one of these rows has it and it is wanted."""
    import numpy as np

    names, found = columns.header.names, np.zeros(len(columns.header.names), bool)
    found[[name for name in names_of(columns, rows).tolist() if wanted(names[name])]] = True
    return found


def named(columns: Columns, rows: "Mask", wanted: Callable[[str], object]) -> "Mask":
    """Return those of the rows whose name is wanted."""
    found: Mask = rows & names_with(columns, rows, wanted)[columns.name] if rows.any() else rows
    return found
