"""The axes of parallel coordinates: each spans what the search space has, on its scale, or names what there is."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hpsearch.page.charts import Names, Scale, between
from hpsearch.results.study import Study
from hpsearch.space import Categorical, Distribution, LogIntUniform, LogNormal, LogUniform, Normal
from hpsearch.space.distribution import Numeric
from hpsearch.space.expressions import ABSENT
from hpsearch.space.structures import Copies, RepeatedStructure
from hpsearch.tables.formats import param_cell
from hpsearch.tables.wording import number
from hpsearch.trial import Value

__all__ = ["Axis", "axis_of", "display_name", "range_text", "varies"]

_MOST_NAMES = 12
_DEVIATIONS = 3.0
"""Sigmas that an axis spans at either side where a range has no ends."""
_FOOT = 0.15
"""Share of an axis of numbers that is kept for trials that have none."""
_NEAR = 0.06
"""Fraction of an axis: a mark nearer to an end than this would overlap with the end's mark."""


@dataclass(frozen=True)
class _Span:
    """A numeric axis over the parameter's range, with a position below it for trials without a value."""

    scale: Scale
    low: float
    high: float
    absent: str
    """Label of that position; empty if each trial has a number."""

    def fraction(self, value: object) -> float:
        if value == self.absent:
            return 0.0
        fraction = min(max(self.scale.fraction(value), 0.0), 1.0)
        return _FOOT + (1 - _FOOT) * fraction if self.absent else fraction

    def ticks(self, most: int = 6) -> list[tuple[object, str]]:
        """Return the marks: both ends, and marks between them that don't overlap."""
        ends: list[tuple[object, str]] = [(end, number(end)) for end in dict.fromkeys((self.low, self.high))]
        marks = self.scale.ticks(most)
        inside = [(value, text) for value, text in marks if _NEAR < self.scale.fraction(value) < 1 - _NEAR]
        if len(ends) == 1:
            inside = []  # it is centred
        return [*ends, *inside, *([(self.absent, self.absent)] if self.absent else [])]


@dataclass(frozen=True)
class Axis:
    """One axis."""

    name: str
    scale: Scale
    values: Sequence[float | str]
    """Value of each trial that has one; trials without a value have none on a goal's axis."""


def varies(name: str, points: Sequence[Mapping[str, Value]]) -> bool:
    """Return whether trials differ in a parameter, however little."""
    return len({_exactly(point.get(name, ABSENT)) for point in points}) > 1


def display_name(name: str, study: Study) -> str:
    """Return a parameter's label; for a repeated structure it says that the value is the number of parts."""
    parameter = study.sweep.parameters.find(name)
    is_count = parameter is not None and isinstance(parameter.holder, RepeatedStructure)
    return f"{name} (count)" if is_count else name


def axis_of(name: str, distribution: Distribution | None, points: Sequence[Mapping[str, Value]]) -> Axis | None:
    """Return an axis with each trial's value on it; None if there are too many categories.

    Args:
        name: The parameter's name.
        distribution: Its distribution; None: unknown.
        points: The params of each trial, which may lack this one.
    """
    values = [point.get(name, ABSENT) for point in points]
    listed = distribution.values if isinstance(distribution, Categorical) else ()
    numeric = [float(value) for value in values if _is_number(value)]
    has_absent = ABSENT in values
    if not 0 < len(listed) <= _MOST_NAMES and len(numeric) + values.count(ABSENT) == len(values):
        span = _span(distribution, numeric, "absent" if has_absent else "")
        return Axis(name, span, [float(value) if _is_number(value) else span.absent for value in values])
    unlisted = sorted({_exactly(value): value for value in values}.items())
    every = {_exactly(value): value for value in listed} | dict(unlisted)
    if len(every) > _MOST_NAMES:
        return None
    texts = dict(zip(every, _apart(list(every.values())), strict=True))
    return Axis(name, Names(tuple(texts.values())), [texts[_exactly(value)] for value in values])


def range_text(axis: Axis, best: int) -> str:
    """Describe the range of the best trials, or their values."""
    values = axis.values[:best]
    if isinstance(axis.scale, Names):
        return f"{axis.name} {', '.join(sorted(set(map(str, values)), key=axis.scale.names.index))}"
    numbers = [value for value in values if not isinstance(value, str)]
    ranges = [_range(min(numbers), max(numbers))] if numbers else []
    absent = ["absent"] if len(numbers) < len(values) else []
    return f"{axis.name} {' or '.join([*ranges, *absent])}"


def _span(distribution: Distribution | None, values: Sequence[float], absent: str) -> _Span:
    """Return an axis over the distribution's range; over the sampled values if that is unbounded."""
    ends = [*values, *(float(end) for end in _ends(distribution) if _is_number(end))]
    low, high = min(ends), max(ends)
    log = isinstance(distribution, LogUniform | LogIntUniform | LogNormal)
    is_integer = isinstance(distribution, Numeric) and distribution.is_integer
    return _Span(between(low, high, log, is_integer), low, high, absent)


def _ends(distribution: Distribution | None) -> Sequence[Value]:
    match distribution:
        case Normal() | LogNormal():
            return [distribution.at_deviations(sigmas) for sigmas in (-_DEVIATIONS, _DEVIATIONS)]
        case Copies():
            return [distribution.min]  # there may be any number
        case Numeric():
            return list(distribution.ends)
        case Categorical():
            return list(distribution.values)
    return []


def _is_number(value: Value) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer that no float is near
        return False


def _exactly(value: Value) -> str:
    """Return a text that differs wherever values do: 1, 1.0, "1" and true are four."""
    return "" if value is ABSENT else json.dumps(value)


def _apart(values: Sequence[Value]) -> list[str]:
    """Return a readable text for each value; values that would look the same are in JSON."""
    texts = ["absent" if value is ABSENT else param_cell(value) for value in values]
    return [
        text if texts.count(text) == 1 else "(absent)" if value is ABSENT else _exactly(value)
        for value, text in zip(values, texts, strict=True)
    ]


def _range(least: float, greatest: float) -> str:
    low, high = number(least), number(greatest)
    return low if low == high else f"{low} to {high}"
