"""Encodings of configurations for surrogate models: unit scale, and features with meaningful distances."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpsearch.space.choices import Categorical, Ordinal
from hpsearch.space.distribution import Numeric, own_copy
from hpsearch.space.parameter import Parameter
from hpsearch.space.space import Space
from hpsearch.trial import Params, Value

Floats = NDArray[np.float64]

_FEW = 100
"""Maximum number of values of a number for which a model distinguishes each value."""


class UnitSpace:
    """Encodes a configuration as a number in [0, 1] for each searched parameter.

    A number is encoded as its position on the unit scale of the draws, which is also its feature. If it has few values,
    that is its position on the distribution's own scale. A choice is encoded as its position in the list. Its features
    are one-hot columns, scaled so that two different values are at distance 1. Inactive parameters have the middle of
    the scale, or no choice, as features, so that configurations without them do not differ there.

    Raises:
        InvalidKey: The number of parameters is unbounded.
    """

    def __init__(self, space: Space) -> None:
        self._space = space
        searched = ((p.name, p.distribution) for p in space.parameters if p.distribution.searched)
        self._axes: dict[str, _Axis] = {name: _axis_of(distribution) for name, distribution in searched}

    @property
    def searches(self) -> bool:
        """Whether there is a parameter with more than one value."""
        return any(axis.values is None or len(axis.values) > 1 for axis in self._axes.values())

    @cached_property
    def choices(self) -> NDArray[np.bool_]:
        """Array [axes]: whether each axis is a choice."""
        return np.array([isinstance(axis, _Choice) for axis in self._axes.values()], dtype=np.bool_)

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """Array [axes]: the first feature column of each axis."""
        return np.cumsum([0, *(axis.columns for axis in self._axes.values())][:-1])

    def encode(self, params: Params) -> Floats | None:
        """Return the encoding [axes]; None if a value has probability 0."""
        try:
            shares = [axis.share(params[name]) if name in params else 0.5 for name, axis in self._axes.items()]
            return np.array(shares, dtype=np.float64)
        except LookupError:
            return None

    def decode(self, shares: Floats) -> dict[str, Value]:
        """Return the configuration of an encoding.

        Raises:
            Broken: The configuration breaks a constraint.
        """
        return self._space.build(self._values(shares))

    def _values(self, shares: Floats) -> Callable[[Parameter], Value]:
        share_of = dict(zip(self._axes, shares.tolist(), strict=True))

        def value(parameter: Parameter) -> Value:
            axis = self._axes.get(parameter.name)
            return parameter.distribution.draw(0) if axis is None else axis.value(share_of[parameter.name])

        return value

    def features(self, shares: Floats) -> Floats:
        """Return the features [n, columns] of the configurations of encodings [n, axes]."""
        columns = np.concatenate([axis.features(shares[:, i]) for i, axis in enumerate(self._axes.values())], 1)
        if not self._space.conditional:
            return columns
        points = [self._space.applied(self._values(row)) for row in shares]
        active = np.array([[name in point for name in self._axes] for point in points])
        widths = [axis.columns for axis in self._axes.values()]
        inactive_features = np.repeat(np.where(self.choices, 0.0, 0.5), widths)
        features: Floats = np.where(np.repeat(active, widths, axis=1), columns, inactive_features)
        return features


@dataclass(frozen=True)
class _Axis:
    """A parameter. This base class is a number with many values."""

    distribution: Any
    columns = 1

    @cached_property
    def values(self) -> list[Value] | None:
        """All values, if they are few."""
        return None

    def share(self, value: Value) -> float:
        return float(self.distribution.share(value))

    def value(self, fraction: float) -> Value:
        return self.distribution.quantile(fraction)

    def features(self, shares: Floats) -> Floats:
        return shares[:, None]


class _Few(_Axis):
    """A number with few values: decoded as the nearest of them."""

    @cached_property
    def values(self) -> list[Value]:
        return list(self.distribution.every_value())

    def share(self, value: Value) -> float:
        return float(min(max(self.distribution.position(value), 0.0), 1.0))

    @cached_property
    def _positions(self) -> Floats:
        return np.array([self.share(value) for value in self.values])

    def value(self, fraction: float) -> Value:
        return self.values[int(np.abs(self._positions - fraction).argmin())]

    def features(self, shares: Floats) -> Floats:
        nearest = np.abs(self._positions[None, :] - shares[:, None]).argmin(axis=1)
        columns: Floats = self._positions[nearest][:, None]
        return columns


class _Listed(_Axis):
    """A value of a list."""

    @cached_property
    def values(self) -> list[Value]:
        return list(self.distribution.every_value())

    def share(self, value: Value) -> float:
        return (int(self.distribution.index(value)) + 0.5) / len(self.values)

    def _indices(self, shares: Floats) -> NDArray[np.int64]:
        return np.minimum((shares * len(self.values)).astype(np.int64), len(self.values) - 1)

    def value(self, fraction: float) -> Value:
        return own_copy(self.values[int(self._indices(np.array([fraction]))[0])])


class _Rank(_Listed):
    """An ordinal value: its index, scaled to [0, 1]."""

    def features(self, shares: Floats) -> Floats:
        columns: Floats = (self._indices(shares) / max(len(self.values) - 1, 1))[:, None]
        return columns


class _Choice(_Listed):
    """A categorical value."""

    @property
    def columns(self) -> int:  # type: ignore[override]
        return len(self.values)

    def features(self, shares: Floats) -> Floats:
        columns: Floats = np.zeros((len(shares), len(self.values)))
        columns[np.arange(len(shares)), self._indices(shares)] = 1 / np.sqrt(2.0)
        return columns


def _axis_of(distribution: object) -> _Axis:
    if isinstance(distribution, Ordinal):
        return _Rank(distribution)
    if isinstance(distribution, Categorical):
        return _Choice(distribution)
    if not isinstance(distribution, Numeric):
        raise TypeError(f"a distribution must be numeric or categorical, got {type(distribution).__name__}")
    return (_Few if _is_of_few(distribution) else _Axis)(distribution)


def _is_of_few(distribution: Numeric) -> bool:
    if distribution.steps is None:
        return False
    # Not `steps.count`: the multiples of a normal distribution extend far beyond the values that can be sampled.
    least, greatest = map(distribution.steps.multiple, distribution.ends)
    return greatest - least < _FEW and distribution.every_value() is not None
