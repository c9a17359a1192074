"""Numbers as a person reads them: as many digits as the interval or the size deserves, thousands apart, − for minus."""

import math
from collections.abc import Sequence
from typing import TypeGuard

import msgspec

from stepprobe.model.estimate import Estimate
from stepprobe.model.report import Cell, Report

_UNIT_WORDS = {"1": "", "count": "", "count/step": "per step", "steps": "steps"}
_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_PREFIXED = ("FLOP", "FLOP/s", "bytes/s")
_DECIMAL = ("", "k", "M", "G", "T", "P", "E")
NBSP = "\N{NO-BREAK SPACE}"
"""Stands between a number and its unit, so that a line never breaks there."""
UNEVEN = 1.25
"""Ratio of the sides of an interval above which ``±`` would hide that they differ."""
MISSING = "–"
"""Stands for a number that is absent or is not a number."""


def decimals(size: float, digits: int = 4) -> int:
    """Return how many decimals (at most 9) show a number of this size with so many significant digits."""
    if not math.isfinite(size) or size == 0:
        return 0
    return min(9, max(0, digits - 1 - math.floor(math.log10(abs(size)))))


def number(value: float | None, places: int) -> str:
    """Return ``value`` with thousands separators and exactly ``places`` decimals."""
    if not is_number(value):
        return MISSING
    written = f"{value:,.{places}f}"
    if written.startswith("-"):
        return "−" + written[1:] if any(digit in written for digit in "123456789") else written[1:]
    return written


def percent(share: float | None, places: int = 1) -> str:
    """Return a share (0..1) in percent, without the sign; a share too small to show reads ``<0.1``."""
    if not is_number(share):
        return MISSING
    smallest = 10.0**-places
    if 0 < 100 * share < smallest / 2:
        return f"<{smallest:.{places}f}"
    return number(100 * share, places)


def size(count: float) -> str:
    """Return bytes in the binary unit that leaves at most four digits before the point."""
    power = 0
    while abs(count) >= 1024 and power < len(_BINARY) - 1:
        count, power = count / 1024, power + 1
    return f"{number(count, 0 if power == 0 else 1)}{NBSP}{_BINARY[power]}"


def amount(value: float | None, unit: str) -> str:
    """Return one number with its unit, each with the digits that its own size deserves."""
    if not is_number(value):
        return MISSING
    if unit == "bytes":
        return size(value)
    if unit == "1":
        return f"{percent(value)}{NBSP}%" if -1 <= value <= 1 else number(value, 2)
    if unit in _PREFIXED and abs(value) >= 1000:
        power = min(len(_DECIMAL) - 1, math.floor(math.log10(abs(value)) / 3))
        scaled = value / 1000**power
        return f"{number(scaled, decimals(scaled, 4 if abs(scaled) >= 100 else 3))}{NBSP}{_DECIMAL[power]}{unit}"
    places = 0 if float(value).is_integer() and unit != "ms" else decimals(value, 4 if abs(value) >= 100 else 3)
    return f"{number(value, places)}{NBSP}{_UNIT_WORDS.get(unit, unit)}".rstrip()


def is_number(value: float | None) -> TypeGuard[float]:
    """Tell whether there is a number to draw: not absent, not infinite, not NaN."""
    return value is not None and math.isfinite(value)


def has_interval(estimate: Estimate) -> bool:
    """Tell whether the estimate was sampled and knows how sure it is."""
    return is_number(estimate.low) and is_number(estimate.high) and estimate.low < estimate.high


def interval(estimate: Estimate) -> str:
    """Return ``low to high`` with digits that tell the ends apart; empty where there is no interval."""
    if not has_interval(estimate) or estimate.low is None or estimate.high is None:
        return ""
    low, high = estimate.low, estimate.high
    places = min(decimals(max(abs(low), abs(high)), 5), max(0, 1 - math.floor(math.log10(high - low))))
    return f"{number(low, places)} to {number(high, places)}"


def figure(estimate: Estimate) -> str:
    """Return the value in the estimate's own unit, for the table of figures: four significant digits, counts exact."""
    counted = (
        estimate.unit not in ("ms", "s", "1") and math.isfinite(estimate.value) and float(estimate.value).is_integer()
    )
    return number(estimate.value, 0 if counted else decimals(estimate.value))


def spans_zero(estimate: Estimate | None) -> bool:
    """Tell whether the interval leaves open if there is a gain or a loss."""
    return estimate is not None and has_interval(estimate) and (estimate.low or 0.0) < 0.0 <= (estimate.high or 0.0)


def step_wall(report: Report) -> Estimate | None:
    """Return the wall time that gains are shares of: the observed step's, else the traced step's; None without one."""
    return report.figures.get("step.wall", report.figures.get("trace.step_wall"))


def gain(saved: Estimate | None, wall: Estimate | None) -> str:
    """Return what saving ``saved`` (ms) does to the step.

    ``−29 % ± 1``, ``−18 to −28 %`` where the interval is uneven, ``up to −29 %`` where only a ceiling is known,
    ``undecided`` where the sign is open; a dash where nothing can be predicted.
    """
    if saved is None or not math.isfinite(saved.value):
        return MISSING
    if spans_zero(saved):
        return "undecided"
    if saved.bound:
        most = saved.value if saved.high is None else saved.high
        return f"up to{NBSP}{gain(msgspec.structs.replace(saved, value=most, low=None, high=None, bound=False), wall)}"
    if wall is None or not wall.value > 0:
        return f"{_signed(-saved.value, decimals(saved.value, 3))}{NBSP}ms"
    change = -100 * saved.value / wall.value
    if not has_interval(saved) or saved.low is None or saved.high is None:
        return f"{_signed(change, 0 if abs(change) >= 10 else 1)}{NBSP}%"
    sides = [100 * side / wall.value for side in (saved.high - saved.value, saved.value - saved.low)]
    places = 0 if max(sides) >= 1 or abs(change) >= 20 else 1
    if max(sides) <= UNEVEN * min(sides):
        return NBSP.join((_signed(change, places), "%", "±", number(max(*sides, 10.0**-places), places)))
    ends = (_signed(-100 * end / wall.value, places) for end in (saved.low, saved.high))
    return f"{' to '.join(ends)}{NBSP}%".replace(" ", NBSP)


def _signed(value: float, places: int) -> str:
    written = number(value, places)
    return f"+{written}" if written[0] in "0123456789" and any(digit in written for digit in "123456789") else written


def column(cells: Sequence[Cell], unit: str) -> list[str]:
    """Return the cells of one column as text, numbers with one count of decimals so that their points align.

    Numbers without a unit may be of unlike things: where the smallest would lose its digits, each has its own.
    """
    numbers = [float(cell) for cell in cells if isinstance(cell, int | float) and math.isfinite(cell)]
    integral = all(value.is_integer() for value in numbers) and unit != "ms"
    places = 0 if integral else decimals(max(map(abs, numbers), default=0.0))
    if not unit and not integral and max(map(_own_places, numbers)) > places + 1:
        return [_cell(cell, unit, _own_places(cell)) for cell in cells]
    return [_cell(cell, unit, places) for cell in cells]


def _own_places(cell: Cell) -> int:
    return 0 if isinstance(cell, str) or cell is None or float(cell).is_integer() else decimals(cell)


def _cell(cell: Cell, unit: str, places: int) -> str:
    if isinstance(cell, str):
        return cell
    if cell is None or not math.isfinite(cell):
        return MISSING
    if unit == "1":
        return f"{percent(cell)}{NBSP}%"
    if unit == "count" and 0 < cell < 0.5 * 10.0**-places:
        return f"<{10.0**-places:.{places}f}"
    return size(cell) if unit == "bytes" else number(cell, places)
