"""A space as a model of ours has it: shares from 0 to 1, and features whose distances mean something."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from hpsearch.seeds import DRAW_BITS
from hpsearch.space.choices import Categorical, Ordinal
from hpsearch.space.distribution import Numeric, own_copy
from hpsearch.space.parameter import Parameter
from hpsearch.space.space import Space
from hpsearch.trial import Params, Value

__all__ = ["UnitSpace"]

Floats = NDArray[np.float64]

_FEW = 100
"""Values of a number that are told apart by a model; of more, their places are enough."""


class UnitSpace:
    """A point is a share of each parameter that isn't constant.

    A number's share is that of the draws which give it, and so is its feature; of few values it is the place on their
    own scale. A choice's share says which of the list it is; its features are a column for each value, so that any two
    unlike ones are at distance 1. A parameter that doesn't apply has the middle of its scale, or no choice, as its
    features, so that points without it don't differ in it.

    Raises:
        InvalidKey: The space's parameters have no end.
    """

    def __init__(self, space: Space) -> None:
        self._space = space
        searched = ((p.name, p.distribution) for p in space.parameters if p.distribution.searched)
        self._axes: dict[str, _Axis] = {name: _axis_of(distribution) for name, distribution in searched}

    @property
    def searches(self) -> bool:
        """Whether there is a parameter of more than one value."""
        return any(axis.values is None or len(axis.values) > 1 for axis in self._axes.values())

    @cached_property
    def choices(self) -> NDArray[np.bool_]:
        """[axes]: which are choices."""
        return np.array([isinstance(axis, _Choice) for axis in self._axes.values()], dtype=np.bool_)

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """[axes]: the first column of each among the features."""
        return np.cumsum([0, *(axis.columns for axis in self._axes.values())][:-1])

    def encode(self, params: Params) -> Floats | None:
        """Give the shares; None for a point that is never drawn: a choice of probability 0 was named."""
        try:
            shares = [axis.share(params[name]) if name in params else 0.5 for name, axis in self._axes.items()]
            return np.array(shares, dtype=np.float64)
        except LookupError:
            return None

    def decode(self, shares: Floats) -> dict[str, Value]:
        """Give a point as the space would have drawn it.

        Raises:
            Broken: It breaks a constraint.
        """
        return self._space.build(self._values(shares))

    def _values(self, shares: Floats) -> Callable[[Parameter], Value]:
        share_of = dict(zip(self._axes, shares.tolist(), strict=True))

        def value(parameter: Parameter) -> Value:
            axis = self._axes.get(parameter.name)
            return parameter.distribution.draw(0) if axis is None else axis.value(share_of[parameter.name])

        return value

    def features(self, shares: Floats) -> Floats:
        """Give [n, columns] of points [n, axes], as they are after they are decoded."""
        found = np.concatenate([axis.features(shares[:, place]) for place, axis in enumerate(self._axes.values())], 1)
        if not self._space.conditional:
            return found
        points = [self._space.applied(self._values(row)) for row in shares]
        applies = np.array([[name in point for name in self._axes] for point in points])
        widths = [axis.columns for axis in self._axes.values()]
        nothing = np.repeat(np.where(self.choices, 0.0, 0.5), widths)
        seen: Floats = np.where(np.repeat(applies, widths, axis=1), found, nothing)
        return seen


@dataclass(frozen=True)
class _Axis:
    """One parameter."""

    columns = 1

    @cached_property
    def values(self) -> list[Value] | None:
        """All that there are, where they are few."""
        return None

    def share(self, value: Value) -> float:
        raise NotImplementedError

    def value(self, share: float) -> Value:
        raise NotImplementedError

    def features(self, shares: Floats) -> Floats:
        return shares[:, None]


@dataclass(frozen=True)
class _Number(_Axis):
    """A number, of more values than are told apart."""

    ours: Numeric

    def share(self, value: Value) -> float:
        return self.ours.share(value)

    def value(self, share: float) -> Value:
        return self.ours.draw(min(int(share * 2**DRAW_BITS), 2**DRAW_BITS - 1))


@dataclass(frozen=True)
class _Few(_Number):
    """A number of few values: the one whose place is the nearest."""

    listed: tuple[Value, ...]

    @cached_property
    def values(self) -> list[Value]:
        return list(self.listed)

    def share(self, value: Value) -> float:
        return min(max(self.ours.place(value), 0.0), 1.0)

    @cached_property
    def _places(self) -> Floats:
        return np.array([self.share(value) for value in self.listed])

    def value(self, share: float) -> Value:
        return self.listed[int(np.abs(self._places - share).argmin())]

    def features(self, shares: Floats) -> Floats:
        nearest = np.abs(self._places[None, :] - shares[:, None]).argmin(axis=1)
        columns: Floats = self._places[nearest][:, None]
        return columns


@dataclass(frozen=True)
class _Rank(_Axis):
    """One of a list in order: its place there, from 0 to 1."""

    ours: Ordinal

    @cached_property
    def values(self) -> list[Value]:
        return self.ours.every_value()

    def share(self, value: Value) -> float:
        return self.ours.share(value)

    def _places(self, shares: Floats) -> NDArray[np.int64]:
        return np.minimum((shares * len(self.values)).astype(np.int64), len(self.values) - 1)

    def value(self, share: float) -> Value:
        return own_copy(self.values[int(self._places(np.array([share]))[0])])

    def features(self, shares: Floats) -> Floats:
        columns: Floats = (self._places(shares) / max(len(self.values) - 1, 1))[:, None]
        return columns


@dataclass(frozen=True)
class _Choice(_Axis):
    """One of a list."""

    ours: Categorical

    @cached_property
    def values(self) -> list[Value]:
        return self.ours.every_value()

    @cached_property
    def _order(self) -> Mapping[str, int]:
        return {json.dumps(value, sort_keys=True): place for place, value in enumerate(self.values)}

    @property
    def columns(self) -> int:  # type: ignore[override]
        return len(self.values)

    def share(self, value: Value) -> float:
        return (self._order[json.dumps(value, sort_keys=True)] + 0.5) / len(self.values)

    def _places(self, shares: Floats) -> NDArray[np.int64]:
        return np.minimum((shares * len(self.values)).astype(np.int64), len(self.values) - 1)

    def value(self, share: float) -> Value:
        return own_copy(self.values[int(self._places(np.array([share]))[0])])

    def features(self, shares: Floats) -> Floats:
        columns: Floats = np.zeros((len(shares), len(self.values)))
        columns[np.arange(len(shares)), self._places(shares)] = 1 / np.sqrt(2.0)
        return columns


def _axis_of(ours: object) -> _Axis:
    if isinstance(ours, Ordinal):
        return _Rank(ours)
    if isinstance(ours, Categorical):
        return _Choice(ours)
    if not isinstance(ours, Numeric):
        raise TypeError(f"a distribution must have a place in the unit cube, got {type(ours).__name__}")
    values = ours.every_value() if _is_of_few(ours) else None
    return _Number(ours) if values is None else _Few(ours, tuple(values))


def _is_of_few(ours: Numeric) -> bool:
    if ours.steps is None:
        return False
    # Not their count: a normal's multiples go on far beyond those that are ever drawn.
    least, greatest = map(ours.steps.multiple, ours.ends)
    return greatest - least < _FEW
