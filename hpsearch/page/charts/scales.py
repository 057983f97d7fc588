"""From values to shares of an axis, and the marks on it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

_BEYOND = 4.0
"""Values farther from the best than this many times what three quarters of them span are left to an axis' edge."""

_WORTH = 1.5
"""So many times as long the axis must become by them; else they are on it, too."""

_ROOM = 0.03
"""Share of the axis that is left free at either end."""
FAR = 1e150
"""Beyond this, sums and differences of two values may be infinite; such values are outside every axis."""
_NEAR = 1e-300
"""Up to here a share of a difference may be no number any more."""
_APART = 0.07
"""Share of an axis from one mark to the next, where some are wanted before others."""
_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)


class Scale(Protocol):
    """One axis."""

    def fraction(self, value: object) -> float:
        """Return where a value lies: 0 at the beginning, 1 at the end."""
        ...

    def ticks(self, most: int = 6) -> list[tuple[object, str]]:
        """Return the values to mark, with their texts."""
        ...


@dataclass(frozen=True, slots=True)
class Linear:
    """Numbers; of a range without width the middle."""

    low: float
    high: float
    is_integer: bool = False
    """Only integers are marked."""

    def fraction(self, value: object) -> float:
        """Return where a number lies."""
        assert isinstance(value, int | float)
        span = self.high - self.low
        return (value - self.low) / span if span else 0.5

    def ticks(self, most: int = 6) -> list[tuple[object, str]]:
        """Mark round numbers."""
        span = self.high - self.low
        if span <= max(_NEAR, 1e-15 * max(abs(self.low), abs(self.high))):  # floats between them can't be distinguished
            return [(self.low, _text(self.low, abs(self.low)))]
        least = span / most
        power = 10.0 ** math.floor(math.log10(least))
        step = next(step * power for step in _STEPS if step * power >= least * (1 - 1e-9))
        step = max(1.0, math.ceil(step)) if self.is_integer else step
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [(index * step, _text(index * step, step)) for index in range(first, last + 1)]


@dataclass(frozen=True, slots=True)
class Log:
    """Numbers above 0 by their logarithm."""

    low: float
    high: float

    def fraction(self, value: object) -> float:
        """Return a number's position; a number without a logarithm is before every axis."""
        assert isinstance(value, int | float)
        if value <= 0:
            return -math.inf
        span = math.log(self.high) - math.log(self.low)
        return (math.log(value) - math.log(self.low)) / span if span else 0.5

    def ticks(self, most: int = 6) -> list[tuple[object, str]]:
        """Mark powers of ten, and their multiples where there are few."""
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
    """Another scale, on which some values are marked before others."""

    scale: Linear | Log
    marks: tuple[float, ...]
    """Marks by importance; one that overlaps with an earlier one is skipped."""

    def fraction(self, value: object) -> float:
        """Return where a number lies."""
        return self.scale.fraction(value)

    def ticks(self, most: int = 6) -> list[tuple[object, str]]:
        """Mark these, and between them round numbers."""
        first_marks = [(mark, f"{mark:.6g}") for mark in self.marks]
        by_fraction: dict[float, tuple[object, str]] = {}
        for mark, text in [*first_marks, *self.scale.ticks(most)]:
            fraction = self.fraction(mark)
            if 0 <= fraction <= 1 and all(abs(fraction - other) >= _APART for other in by_fraction):
                by_fraction[fraction] = mark, text
        return [by_fraction[fraction] for fraction in sorted(by_fraction)]


@dataclass(frozen=True, slots=True)
class Names:
    """Texts, evenly."""

    names: tuple[str, ...]

    def fraction(self, value: object) -> float:
        """Return a name's position."""
        return (self.names.index(str(value)) + 0.5) / len(self.names)

    def ticks(self, most: int = 6) -> list[tuple[object, str]]:
        """Mark every name; where there are more, some."""
        every = math.ceil(len(self.names) / max(most, 12))
        return [(name, name) for name in self.names[::every]]


def scale_of(values: Iterable[float], log: bool = False, is_integer: bool = False) -> Linear | Log:
    """Return a scale for values, with a margin at both ends, ignoring immense values.

    It is logarithmic if that is requested and all values are sufficiently above 0. Without values it is from 0 to 1.
    """
    finite: Sequence[float] = [value for value in values if abs(value) < FAR]
    low, high = (min(finite), max(finite)) if finite else (0.0, 1.0)
    if log and low > 1 / FAR:
        room = (high / low) ** _ROOM
        return Log(low / room, high * room)
    room = _ROOM * (high - low)
    return Linear(low - room, high + room, is_integer)


def between(low: float, high: float, log: bool = False, is_integer: bool = False) -> Linear | Log:
    """Return a scale between two ends, without margins; immense ends are replaced by smaller ones.

    It is logarithmic if that is requested and the lower end is above 0.
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
    """Return a scale, and the values that lie beyond it, the worst last.

    A few that are bad would else press all others into one line.

    Args:
        values: Finite ones, one at least.
        less_is_better: Whether the least is the best.
    """
    ordered = sorted(values, reverse=not less_is_better)
    span = abs(ordered[(len(ordered) - 1) * 3 // 4] - ordered[0])
    near = [value for value in ordered if abs(value - ordered[0]) <= _BEYOND * span]
    if abs(ordered[-1] - ordered[0]) <= _WORTH * _BEYOND * span or not span:
        near = ordered
    finite = [value for value in near if abs(value) < FAR]
    log = less_is_better and bool(finite) and finite[0] > 0 and finite[-1] > 20 * finite[0]
    return scale_of(finite, log), [value for value in near if abs(value) >= FAR] + ordered[len(near) :]
