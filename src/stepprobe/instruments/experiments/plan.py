"""What is asked for, and what is known of the job before anything is asked."""

import dataclasses
from collections.abc import Mapping
from typing import Any

Point = tuple[int, int]
"""(rows, slots of each row)."""


@dataclasses.dataclass(frozen=True)
class Plan:
    """The limits of the experiments, and the shapes that the run really had."""

    seconds: float = 120.0
    """Wall seconds that measurements may take, warm-ups included; ceilings and counts before them take some more."""
    anyway: bool = False
    """Measure on a busy machine, too."""
    points: tuple[Point, ...] = ()
    """Points of the scaling fit that the user names; none: they are chosen."""
    seed: int = 0
    """Of the order inside the blocks, and of what the step draws."""
    batches: tuple[tuple[int, ...], ...] = ()
    """Real tokens of each row of each micro-batch that was seen."""
    longest: int | None = None
    """Slots of a row that the model allows."""
    vocabulary: int | None = None
    zeroed: bool = False
    """The user's loop leaves gradients of zeros instead of none, so that its first micro-step adds to them."""

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> "Plan":
        """Return the plan of a JSON object; what it does not name stays as it is by default.

        Raises:
            ValueError: A key is unknown, or a point is no pair of positive numbers.
        """
        unknown = set(settings) - {field.name for field in dataclasses.fields(cls)}
        if unknown:
            raise ValueError(f"a plan has no {', '.join(sorted(unknown))}")
        given = dict(settings)
        for name in ("points", "batches"):
            given[name] = tuple(tuple(int(one) for one in item) for item in given.get(name) or ())
        if any(len(point) != 2 or min(point) < 1 for point in given["points"]):
            raise ValueError("a point is (rows, length), both 1 or more, such as 1,128")
        return cls(**given)
