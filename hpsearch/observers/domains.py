"""What each parameter may be, as dashboards show it: an interval or a list of values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from hpsearch.space import (
    Categorical,
    Constant,
    Distribution,
    IntUniform,
    LogIntUniform,
    LogNormal,
    LogUniform,
    Normal,
    Space,
    Uniform,
)
from hpsearch.trial import Value

__all__ = ["Choices", "Domain", "Interval", "domains_of"]


@dataclass(frozen=True, slots=True)
class Interval:
    """A number from `low` to `high`; infinite where there is no bound."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Choices:
    """One of these values."""

    values: tuple[Value, ...]


Domain = Interval | Choices


def domains_of(space: Space) -> Mapping[str, Domain]:
    """Give the domain of every parameter by its flat name, in the space's order."""
    return {parameter.name: _domain(parameter.distribution) for parameter in space.parameters}


def _domain(distribution: Distribution) -> Domain:
    match distribution:
        case Uniform() | LogUniform() | IntUniform() | LogIntUniform():
            return Interval(distribution.min, distribution.max)
        case Normal():
            return Interval(-math.inf, math.inf)
        case LogNormal():
            return Interval(0.0, math.inf)
        case Categorical(values=values):
            return Choices(tuple(values))
        case Constant(value=value):
            return Choices((value,))
    raise TypeError(f"a distribution must have a domain to be shown, got {type(distribution).__name__}")
