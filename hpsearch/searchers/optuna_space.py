"""A space as Optuna's samplers have it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from hpsearch.seeds import DRAW_BITS
from hpsearch.space import Categorical, Constant, Distribution, IntUniform, LogIntUniform, LogUniform, Space, Uniform
from hpsearch.space.distribution import Numeric, own_copy
from hpsearch.trial import Params, Value

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

__all__ = ["OptunaSpace"]

_EXACT_INTEGERS = 2**53
"""Optuna keeps numbers as floats, which hold every integer up to here."""

_MOST_STEPS = 1_000_000
"""With many more, Optuna's test whether a value is on a step fails by rounding."""


class OptunaSpace:
    """Optuna's distributions of a space's parameters, and points from one to the other.

    Ranges become ranges of Optuna's, with their steps, integers and logarithms; a choice becomes its place in the list,
    so that lists, mappings and equal values stay what they are. What Optuna has no distribution for (normals, integers
    beyond 2**53) becomes its place on the parameter's own scale, from 0 to 1. Constants aren't searched.
    """

    def __init__(self, space: Space) -> None:
        self._space = space
        searched = ((p.name, p.distribution) for p in space.parameters if not isinstance(p.distribution, Constant))
        self._codecs: dict[str, _Codec] = {name: _codec(distribution) for name, distribution in searched}

    @property
    def dimensions(self) -> int:
        """Number of parameters that are searched."""
        return len(self._codecs)

    @cached_property
    def distributions(self) -> dict[str, BaseDistribution]:
        """Optuna's, by flat name."""
        return {name: codec.theirs for name, codec in self._codecs.items()}

    @property
    def numbers(self) -> dict[str, BaseDistribution]:
        """Those that aren't choices, and have more than one value."""
        codecs = self._codecs
        return {
            name: theirs
            for name, theirs in self.distributions.items()
            if not isinstance(codecs[name], _Choice) and not theirs.single()
        }

    def encode(self, params: Params) -> dict[str, Any] | None:
        """Give a point as Optuna has it; None for one that is never drawn: a choice of probability 0 was named."""
        try:
            return {name: codec.encode(params[name]) for name, codec in self._codecs.items()}
        except LookupError:
            return None

    def decode(self, point: Mapping[str, Any]) -> dict[str, Value]:
        """Give a point of Optuna's as the space would have drawn it."""
        return self._space.check({name: codec.decode(point[name]) for name, codec in self._codecs.items()})


@dataclass(frozen=True)
class _Codec:
    """One parameter: Optuna's distribution, and values from one to the other."""

    ours: Any

    @cached_property
    def theirs(self) -> Any:
        raise NotImplementedError

    def encode(self, value: Value) -> Any:
        raise NotImplementedError

    def decode(self, value: Any) -> Value:
        raise NotImplementedError


class _Range(_Codec):
    """A range of numbers that Optuna has, too."""

    ours: Uniform | LogUniform | IntUniform | LogIntUniform

    @cached_property
    def theirs(self) -> Any:
        from optuna.distributions import FloatDistribution, IntDistribution

        match self.ours:
            case IntUniform(steps=steps) if steps is not None:
                first, last = int(steps.value(steps.first)), int(steps.value(steps.last))
                return IntDistribution(first, last, step=int(steps.size))
            case LogIntUniform(min=low, max=high):
                return IntDistribution(low, high, log=True)
            case Uniform(steps=steps) if steps is not None and steps.count <= _MOST_STEPS:
                # Ours count from 0, Optuna's from `low`.
                lowest, highest = steps.value(steps.first), steps.value(steps.last)
                return FloatDistribution(lowest, highest, step=steps.size)
            case other:
                return FloatDistribution(other.min, other.max, log=other.logarithmic)

    def encode(self, value: Value) -> Any:
        # A multiple may lie beside the end by which Optuna's range was rounded.
        return min(max(value, self.theirs.low), self.theirs.high)

    def decode(self, value: Any) -> Value:
        return self.ours.snap(int(value) if self.ours.whole else float(value))


class _Place(_Codec):
    """A place from 0 to 1 on the parameter's own scale."""

    ours: Numeric

    @cached_property
    def theirs(self) -> Any:
        from optuna.distributions import FloatDistribution

        return FloatDistribution(0.0, 1.0)

    def encode(self, value: Value) -> float:
        return min(max(self.ours.place(value), 0.0), 1.0)

    def decode(self, value: Any) -> Value:
        return self.ours.draw(min(int(value * 2**DRAW_BITS), 2**DRAW_BITS - 1))


class _Choice(_Codec):
    """A place in a list of choices."""

    ours: Categorical

    @cached_property
    def _values(self) -> list[Value]:
        return self.ours.every_value()

    @cached_property
    def _places(self) -> dict[str, int]:
        return {json.dumps(value, sort_keys=True): place for place, value in enumerate(self._values)}

    @cached_property
    def theirs(self) -> Any:
        from optuna.distributions import CategoricalDistribution

        return CategoricalDistribution(tuple(range(len(self._values))))

    def encode(self, value: Value) -> int:
        return self._places[json.dumps(value, sort_keys=True)]

    def decode(self, value: Any) -> Value:
        return own_copy(self._values[value])


def _codec(ours: Distribution) -> _Codec:
    match ours:
        case Categorical():
            return _Choice(ours)
        case IntUniform(min=low, max=high) | LogIntUniform(min=low, max=high) if max(-low, high) > _EXACT_INTEGERS:
            return _Place(ours)
        case Uniform() | LogUniform() | IntUniform() | LogIntUniform():
            return _Range(ours)
        case Numeric():
            return _Place(ours)
    raise TypeError(f"a distribution must have a counterpart in Optuna, got {type(ours).__name__}")
