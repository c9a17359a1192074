"""What a change would gain, with the part that it cannot touch.

A step never shrinks in proportion to its tokens: calls, launches, the optimizer and the data stay. So no gain here is
tokens over tokens; each carries its fixed term, or an interval from nothing to the proportional gain where that term
is not known.
"""

import math
from dataclasses import dataclass, replace

from stepprobe.analysis.statistics import Mean
from stepprobe.model.estimate import Estimate

FULL = 0.9
"""Part of a step in which a card works from which it is what the step waits for."""


def fixed_share(gain: float, ratio: float) -> float:
    """Return the part of the old step that did not shrink, from a gain and the ratio of tokens: 1/G = f + (1−f)/R.

    Raises:
        ValueError: The number of tokens did not change, so nothing can be told.
    """
    if ratio == 1:
        raise ValueError("tokens before and after are the same: what does not shrink with them cannot be told")
    return (1 / gain - 1 / ratio) / (1 - 1 / ratio)


def gain(ratio: float, fixed: float) -> float:
    """Return the gain where ``fixed`` of the old step stays and the rest shrinks with the tokens."""
    return 1 / (fixed + (1 - fixed) / ratio)


def gain_interval(ratio: float, fixed: float | None = None) -> tuple[float, float]:
    """Return the ends of the gain: without a known fixed part anything from none to what the tokens say."""
    if fixed is None:
        return 1.0, ratio
    found = gain(ratio, fixed)
    return found, found


def recoverable(host_ms: float, device_ms: float) -> float:
    """Return the most that is won when the host no longer waits for the device: they run beside each other then.

    Waiting took as long as the device did; without it the step takes as long as the slower of the two.
    """
    return min(host_ms, device_ms)


@dataclass(frozen=True)
class Span:
    """A number and half its 95 % interval; ``half`` is None where no interval can be given."""

    value: float
    half: float | None

    @classmethod
    def of(cls, mean: Mean) -> "Span":
        """Return a mean as a span."""
        return cls(mean.value, mean.half_width)

    @property
    def known(self) -> float:
        """Half-width, 0 where none is known."""
        return self.half or 0.0

    def plus(self, other: "Span") -> "Span":
        """Return the sum of two spans whose errors have nothing to do with each other."""
        half = None if self.half is None else math.hypot(self.half, other.known)
        return Span(self.value + other.value, half)


@dataclass(frozen=True)
class Step:
    """The step of now, in ms."""

    wall: Span
    compute: Span
    """Forward and backward, recomputation included."""
    waits: float
    """Host waiting for results (synchronising, copies to the host); 0 on the CPU."""
    device: float | None
    """Work of the card in a step; None on the CPU, where the host is what computes."""
    n: int
    launches: float = 0.0
    """What a card's micro-steps take however few tokens they hold: the host's launches."""

    @property
    def host(self) -> float:
        """What the host does in a step beside waiting.

        Where the card is busy all the time, a host that runs ahead of it is held in its launches, and the ledger books
        that as forward and backward: then only what launches take by themselves is the host's.
        """
        own = max(0.0, self.wall.value - self.waits)
        if self.device is not None and self.device > FULL * self.wall.value:
            own = max(0.0, own - max(0.0, self.compute.value - self.launches))
        return own

    def times(self, ratio: Span) -> "Step":
        """Return the step whose forward and backward take ``ratio`` times as long."""
        saved = self.shrunk(ratio).value
        compute = Span(self.compute.value * ratio.value, self.compute.known * ratio.value)
        device = None if self.device is None else self.device * ratio.value
        return replace(self, wall=Span(self.wall.value - saved, self.wall.half), compute=compute, device=device)

    def shrunk(self, ratio: Span, stays: float = 0.0) -> Span:
        """Return the ms that are saved when the work of forward and backward shrinks to a part of itself.

        Args:
            ratio: Work afterwards over work now.
            stays: Of its ms, those that do not shrink with it.
        """
        part = 1 - ratio.value
        if self.device is not None:
            before, after = max(self.host, self.device), max(self.host, self.device * ratio.value)
            return Span(before - after, self.device * ratio.known)
        work = self.compute.value - stays
        return Span(work * part, math.hypot(self.compute.known * part, work * ratio.known))


@dataclass(frozen=True)
class Forecast:
    """What one change would do to the step."""

    remedy: str
    """Name in the figure: ``forecast.<remedy>``."""
    action: str
    """The change, as an instruction."""
    saved: Estimate
    """ms of a step; below zero the change costs."""
    same_rows: bool = True
    """False: the optimizer step holds more rows afterwards; what is forecast is the time for the rows of one now."""
    on_top: Estimate | None = None
    """Of ``saved``, what it adds to another change that it takes for granted; None where it stands alone."""
    tried: float | None = None
    """Micro-step with the change over the one without it, where both were measured in turn."""

    def step(self, now: Step) -> Estimate:
        """Return the ms that the rows of one step would take."""
        saved, wall = self.saved, now.wall
        method = f"{wall.value:.4g} ms now, less what is saved: {saved.method}"
        if saved.low is None or saved.high is None:
            return Estimate(value=wall.value - saved.value, unit="ms", n=saved.n, method=method)
        if saved.bound:
            low, high = wall.value - saved.high, wall.value - saved.low
        else:
            # the lengths that make steps uneven now make shorter steps less uneven
            own = wall.known * max(0.0, 1 - saved.value / wall.value)
            low = wall.value - saved.value - math.hypot(own, saved.high - saved.value)
            high = wall.value - saved.value + math.hypot(own, saved.value - saved.low)
        return Estimate(
            value=wall.value - saved.value,
            unit="ms",
            low=max(0.0, low),
            high=high,
            n=saved.n,
            method=method,
            bound=saved.bound,
        )


def saving(span: Span, n: int, method: str) -> Estimate:
    """Return saved ms as an estimate."""
    low, high = (None, None) if span.half is None else (span.value - span.half, span.value + span.half)
    return Estimate(value=span.value, unit="ms", low=low, high=high, n=n, method=method)


def saving_up_to(most: float, n: int, method: str, least: float = 0.0) -> Estimate:
    """Return a saving of which only the ends are known."""
    return Estimate(
        value=(least + most) / 2, unit="ms", low=least, high=most, n=n, method=f"between the ends: {method}", bound=True
    )
