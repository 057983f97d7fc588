"""Conversion of a space to Optuna's distributions."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from hpsearch.space import (
    Categorical,
    Distribution,
    IntUniform,
    LogIntUniform,
    LogUniform,
    Ordinal,
    Parameter,
    Space,
    Uniform,
)
from hpsearch.space._decimals import Multiples
from hpsearch.space.distribution import Numeric, own_copy
from hpsearch.trial import Params, Value

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

_MOST_STEPS = 1_000_000
"""Optuna's gp enumerates the integers of a range; ranges with more steps are searched as a share from 0 to 1."""

_NARROW = 1e-9
"""Below this, the logarithms of a range's ends are too close for Optuna's samplers."""

_LARGEST = 1e30
"""Above this, differences and squares overflow in Optuna's samplers."""


class OptunaSpace:
    """Optuna's distributions of a space's parameters, with conversions in both directions.

    Ranges of floats or integers, linear or logarithmic, become Optuna's ranges. A range with a step becomes a range of
    multiples of the step. A choice becomes its index in the list, so that lists, mappings and equal values are
    preserved. Distributions that Optuna doesn't have (normal, very large ranges) become a share from 0 to 1 on the
    parameter's own scale. Constants and derived values aren't searched.

    Args:
        space: The space.
        all_params: Every configuration has all parameters, inactive ones with their median. For samplers that only
            support parameters that all configurations have. False: a configuration has its active parameters only.
    """

    def __init__(self, space: Space, all_params: bool = True) -> None:
        self._space = space
        self._all_params = all_params
        self._codecs: dict[str, _Codec] = {}
        for parameter in space.parameters if space.bounded else ():
            if parameter.distribution.searched:
                self._codec(parameter)

    def _codec(self, parameter: Parameter) -> _Codec:
        name = parameter.name
        if name not in self._codecs:
            self._codecs[name] = _codec(parameter.distribution)
        return self._codecs[name]

    @property
    def dimensions(self) -> int:
        """Number of parameters with more than one value; 1 if the number of parameters has no bound."""
        if not self._space.bounded:
            return 1
        return sum(not _is_single(codec.distribution) for codec in self._codecs.values())

    @property
    def distributions(self) -> dict[str, BaseDistribution]:
        """Flat name to Optuna's distribution."""
        return {name: codec.optuna_distribution for name, codec in self._codecs.items()}

    @property
    def numbers(self) -> dict[str, BaseDistribution]:
        """The distributions of numbers and ordered choices with more than one value."""
        codecs = self._codecs
        return {
            name: distribution
            for name, distribution in self.distributions.items()
            if not codecs[name].is_choice and not distribution.single()
        }

    @property
    def choices(self) -> list[str]:
        """Names of the unordered choices with more than one value."""
        numbers = self.numbers
        return [
            name
            for name, distribution in self.distributions.items()
            if name not in numbers and not distribution.single()
        ]

    def encode(self, params: Params) -> dict[str, Any] | None:
        """Return a configuration as Optuna's params; None if it has a choice of probability 0."""
        try:
            if self._all_params:
                return {name: codec.encode(params.get(name, codec.middle)) for name, codec in self._codecs.items()}
            active = [parameter for name in params if (parameter := self._space.find(name)) is not None]
            return {p.name: self._codec(p).encode(params[p.name]) for p in active if p.distribution.searched}
        except LookupError:
            return None

    def build(self, value: Callable[[str, BaseDistribution], Any]) -> dict[str, Value]:
        """Return the configuration with the values that a function returns for each active parameter.

        Args:
            value: Returns Optuna's value for a parameter's flat name and Optuna's distribution.

        Raises:
            Broken: The configuration violates a constraint.
        """

        def choose(parameter: Parameter) -> Value:
            if not parameter.distribution.searched:
                return parameter.distribution.draw(0)
            codec = self._codec(parameter)
            return parameter.distribution.accept(codec.decode(value(parameter.name, codec.optuna_distribution)))

        return self._space.build(choose)


@dataclass(frozen=True)
class _Codec:
    """Optuna's distribution of one parameter, with conversions of values in both directions."""

    distribution: Any
    make: Callable[[Any], BaseDistribution]
    """Makes Optuna's distribution from the module `optuna.distributions`, which takes long to import."""
    encode: Callable[[Value], Any]
    decode: Callable[[Any], Value]
    is_choice: bool = False
    """Whether values have no order."""

    @cached_property
    def middle(self) -> Value:
        """The median."""
        return self.distribution.quantile(0.5)

    @cached_property
    def optuna_distribution(self) -> BaseDistribution:
        """Optuna's distribution."""
        from optuna import distributions

        return self.make(distributions)


def _codec(distribution: Distribution) -> _Codec:
    match distribution:
        case Categorical():
            return _of_choices(distribution)
        case LogIntUniform() if distribution.max <= _MOST_STEPS:
            low, high = distribution.min, distribution.max
            return _Codec(
                distribution, lambda optuna: optuna.IntDistribution(low, high, log=True), int, distribution.snap
            )
        case IntUniform(steps=steps) | Uniform(steps=steps) if steps is not None and steps.count <= _MOST_STEPS:
            return _of_multiples(distribution, steps)
        case LogUniform() if math.log(distribution.max) - math.log(distribution.min) > _NARROW:
            return _of_floats(distribution)
        case Uniform() if max(-distribution.min, distribution.max) < _LARGEST:
            return _of_floats(distribution)
        case Numeric():
            share = partial(_share, distribution)
            return _Codec(distribution, lambda optuna: optuna.FloatDistribution(0.0, 1.0), share, distribution.quantile)
    raise TypeError(f"a distribution must have a counterpart in Optuna, got {type(distribution).__name__}")


def _of_choices(distribution: Categorical) -> _Codec:
    """Return the codec that encodes a choice as its index."""
    values = distribution.every_value()
    is_choice = not isinstance(distribution, Ordinal)

    def make(optuna: Any) -> Any:
        if is_choice:
            return optuna.CategoricalDistribution(tuple(range(len(values))))
        return optuna.IntDistribution(0, len(values) - 1)

    return _Codec(distribution, make, distribution.index, lambda index: own_copy(values[index]), is_choice)


def _of_multiples(distribution: Numeric, steps: Multiples) -> _Codec:
    """Return the codec that encodes a number by its number of steps from the lowest value.

    Optuna's own steps and large integers lose digits.
    """

    def encode(value: Value) -> int:
        return min(max(steps.multiple(value) - steps.first, 0), steps.count - 1)

    return _Codec(
        distribution,
        lambda optuna: optuna.IntDistribution(0, steps.count - 1),
        encode,
        lambda value: steps.value(steps.first + int(value)),
    )


def _of_floats(distribution: Uniform | LogUniform) -> _Codec:
    """Return the codec of a float, which stays the same; if it has a step, the scale is logarithmic."""
    low, high = distribution.min, distribution.max

    def encode(value: Value) -> float:
        return min(max(float(value), low), high)  # a rounding error may put a multiple outside of the range

    return _Codec(
        distribution,
        lambda optuna: optuna.FloatDistribution(low, high, log=distribution.logarithmic),
        encode,
        lambda value: distribution.snap(float(value)),
    )


def _share(distribution: Numeric, value: Value) -> float:
    """Return the middle of the interval of shares, on the parameter's own scale, that decode to a value."""
    if not isinstance(distribution, LogIntUniform):
        return distribution.share(value)
    steps = distribution.steps
    assert steps is not None
    above = 2 * (steps.multiple(value) - steps.first) + 1
    position = math.log1p(above / (2 * steps.first)) / math.log1p(steps.count / steps.first)
    return min(max(position, 0.0), 1.0)


def _is_single(distribution: Distribution) -> bool:
    if isinstance(distribution, Categorical):
        return len(distribution.every_value()) == 1
    return isinstance(distribution, Numeric) and distribution.steps is not None and distribution.steps.count == 1
