"""Scales that map values to positions on an axis, and their tick marks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

_BEYOND = 4.0
"""Values can be moved to the axis's edge if their distance from the best value is more than this multiple of the range
of the best three quarters."""

_WORTH = 1.5
"""Such values stay on the axis unless they would make it longer by more than this factor."""

_ROOM = 0.03
"""Margin at both ends of the axis, as a fraction of it."""
FAR = 1e150
"""Largest absolute value on an axis. With larger values, sums and differences could be infinite."""
_NEAR = 1e-300
"""Smallest range of an axis. In smaller ranges, fractions may underflow."""
_APART = 0.07
"""Smallest distance between marks on a `Marked` scale, as a fraction of the axis."""
_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)


class Scale(Protocol):
    """The scale of an axis."""

    def fraction(self, value: object) -> float:
        """Return a value's position on the axis: 0 at the start, 1 at the end."""
        ...

    def ticks(self, most: int = 6) -> list[tuple[object, str]]:
        """Return the values of tick marks, with their labels."""
        ...


@dataclass(frozen=True, slots=True)
class Linear:
    """A linear scale. If its range has no width, all values are in the middle."""

    low: float
    high: float
    is_integer: bool = False
    """Whether only integers get tick marks."""

    def fraction(self, value: object) -> float:
        """Return a number's position."""
        assert isinstance(value, int | float)
        span = self.high - self.low
        return (value - self.low) / span if span else 0.5

    def ticks(self, most: int = 6) -> list[tuple[object, str]]:
        """Return round numbers."""
        span = self.high - self.low
        if span <= max(_NEAR, 1e-15 * max(abs(self.low), abs(self.high))):  # too few floats in between
            return [(self.low, _text(self.low, abs(self.low)))]
        least = span / most
        power = 10.0 ** math.floor(math.log10(least))
        step = next(step * power for step in _STEPS if step * power >= least * (1 - 1e-9))
        step = max(1.0, math.ceil(step)) if self.is_integer else step
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [(index * step, _text(index * step, step)) for index in range(first, last + 1)]


@dataclass(frozen=True, slots=True)
class Log:
    """A logarithmic scale for numbers above 0."""

    low: float
    high: float

    def fraction(self, value: object) -> float:
        """Return a number's position. Numbers that aren't above 0 are before the start of the axis."""
        assert isinstance(value, int | float)
        if value <= 0:
            return -math.inf
        span = math.log(self.high) - math.log(self.low)
        return (math.log(value) - math.log(self.low)) / span if span else 0.5

    def ticks(self, most: int = 6) -> list[tuple[object, str]]:
        """Return powers of ten, and multiples of them if there are few."""
        low, high = math.log10(self.low), math.log10(self.high)
        for factors in ((1, 2, 3, 5, 7), (1, 2, 5), (1, 3), (1,)):
            marks = [
                factor * 10.0**power
                for power in range(math.floor(low), math.ceil(high) + 1)
                for factor in factors
                if self.low * (1 - 1e-9) <= factor * 10.0**power <= self.high * (1 + 1e-9)
            ]
            if len(marks) <= most:
                break
        marks = marks[:: math.ceil(len(marks) / most)] if marks else [self.low, self.high]
        return [(mark, f"{mark:.4g}") for mark in dict.fromkeys(marks)]


@dataclass(frozen=True, slots=True)
class Marked:
    """Another scale with tick marks at given values."""

    scale: Linear | Log
    marks: tuple[float, ...]
    """Values to mark, by importance. A mark that overlaps with an earlier one is skipped."""

    def fraction(self, value: object) -> float:
        """Return a number's position."""
        return self.scale.fraction(value)

    def ticks(self, most: int = 6) -> list[tuple[object, str]]:
        """Return the given marks, and round numbers between them."""
        first_marks = [(mark, f"{mark:.6g}") for mark in self.marks]
        by_fraction: dict[float, tuple[object, str]] = {}
        for mark, text in [*first_marks, *self.scale.ticks(most)]:
            fraction = self.fraction(mark)
            if 0 <= fraction <= 1 and all(abs(fraction - other) >= _APART for other in by_fraction):
                by_fraction[fraction] = mark, text
        return [by_fraction[fraction] for fraction in sorted(by_fraction)]


@dataclass(frozen=True, slots=True)
class Names:
    """A scale of evenly spaced texts."""

    names: tuple[str, ...]

    def fraction(self, value: object) -> float:
        """Return a name's position."""
        return (self.names.index(str(value)) + 0.5) / len(self.names)

    def ticks(self, most: int = 6) -> list[tuple[object, str]]:
        """Return all names; if there are too many, only some of them."""
        every = math.ceil(len(self.names) / max(most, 12))
        return [(name, name) for name in self.names[::every]]


def scale_of(values: Iterable[float], log: bool = False, is_integer: bool = False) -> Linear | Log:
    """Return a scale for values, with a margin at both ends. Immense values are ignored.

    The scale is logarithmic if this is requested and all values are sufficiently above 0. Without values its range is 0
    to 1.
    """
    finite: Sequence[float] = [value for value in values if abs(value) < FAR]
    low, high = (min(finite), max(finite)) if finite else (0.0, 1.0)
    if log and low > 1 / FAR:
        room = (high / low) ** _ROOM
        return Log(low / room, high * room)
    room = _ROOM * (high - low)
    return Linear(low - room, high + room, is_integer)


def between(low: float, high: float, log: bool = False, is_integer: bool = False) -> Linear | Log:
    """Return a scale between two ends, without margins. Immense ends are replaced by smaller ones.

    The scale is logarithmic if this is requested and the lower end is above 0.
    """
    low, high = (min(max(end, -FAR), FAR) for end in (low, high))
    return Log(low, high) if log and low > 0 else Linear(low, high, is_integer)


def _text(value: float, step: float) -> str:
    if value == 0:
        return "0"
    if 1e-4 <= abs(value) < 1e6:
        digits = max(0, -math.floor(math.log10(step) + 1e-9)) if step else 4
        text = f"{value:.{min(digits + (step * 10**digits % 1 > 1e-6), 10)}f}"
        return text.rstrip("0").rstrip(".") if "." in text else text
    return f"{value:.4g}"


def scale_of_good(values: Sequence[float], less_is_better: bool) -> tuple[Linear | Log, Sequence[float]]:
    """Return a scale that shows the good values well, and the values beyond the scale, the worst last.

    Otherwise a few bad values would compress all others into one line.

    Args:
        values: Finite values, at least one.
        less_is_better: Whether lower is better.
    """
    ordered = sorted(values, reverse=not less_is_better)
    span = abs(ordered[(len(ordered) - 1) * 3 // 4] - ordered[0])
    near = [value for value in ordered if abs(value - ordered[0]) <= _BEYOND * span]
    if abs(ordered[-1] - ordered[0]) <= _WORTH * _BEYOND * span or not span:
        near = ordered
    finite = [value for value in near if abs(value) < FAR]
    log = less_is_better and bool(finite) and finite[0] > 0 and finite[-1] > 20 * finite[0]
    return scale_of(finite, log), [value for value in near if abs(value) >= FAR] + ordered[len(near) :]
