"""Our distributions as Optuna's, which are bounded and hold plain choices only."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import TYPE_CHECKING

from hpsearch.space import (
    Categorical,
    Constant,
    Distribution,
    IntUniform,
    LogIntUniform,
    LogNormal,
    LogUniform,
    Normal,
    Uniform,
)
from hpsearch.trial import Value

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

__all__ = ["OptunaParameter", "optuna_parameter"]

NORMAL_DEVIATIONS = 4.0
"""Half-width, in sigmas, of the range that stands for an unbounded parameter."""

EXACT_INTEGERS = 2**53
"""Optuna's storages keep numbers as floats, which hold every integer up to here."""

MOST_STEPS = 1_000_000
"""With many more, Optuna's test whether a value is on a step fails by rounding."""


@dataclass(frozen=True, slots=True)
class OptunaParameter:
    """A distribution of Optuna's that holds all values of one parameter."""

    distribution: BaseDistribution
    as_json: bool = False
    """Values are stored as JSON strings: Optuna holds no lists, and takes 1 and True for the same choice."""

    def value(self, value: Value) -> Value:
        """Give a value as Optuna stores it."""
        return json.dumps(value, ensure_ascii=False) if self.as_json else value


def optuna_parameter(distribution: Distribution, values: Sequence[Value]) -> OptunaParameter | None:
    """Give Optuna's counterpart of a distribution; None where Optuna would give back other values.

    That is so of ranges with integers beyond 2**53. A logarithmic range loses its step (Optuna has one or the other),
    and so does one with very many. A normal distribution is bounded by four sigmas, or as far out as the values go.

    Args:
        distribution: Ours.
        values: Those that the study's trials have.
    """
    from optuna.distributions import FloatDistribution, IntDistribution

    match distribution:
        case IntUniform(min=low, max=high) | LogIntUniform(min=low, max=high) if max(-low, high) > EXACT_INTEGERS:
            return None
        case Uniform(min=low, max=high, step=step):
            if step is None or (high - low) / step > MOST_STEPS:
                return OptunaParameter(FloatDistribution(low, high))
            low, high = _multiples(low, high, step)
            return OptunaParameter(FloatDistribution(low, high, step=step))
        case LogUniform(min=low, max=high):
            return OptunaParameter(FloatDistribution(low, high, log=True))
        case IntUniform(min=low, max=high, step=step):
            low, high = _multiples(low, high, step or 1)
            return OptunaParameter(IntDistribution(int(low), int(high), step=step or 1))
        case LogIntUniform(min=low, max=high):
            return OptunaParameter(IntDistribution(low, high, log=True))
        case Normal(mu=mu, sigma=sigma):
            reach = (mu - NORMAL_DEVIATIONS * sigma, mu + NORMAL_DEVIATIONS * sigma)
            return OptunaParameter(FloatDistribution(min(*reach, *values), max(*reach, *values)))
        case LogNormal(mu=mu, sigma=sigma):
            return OptunaParameter(_log_normal(mu, sigma, values))
        case Categorical(values=choices):
            return _choices(choices)
        case Constant(value=value):
            return _choices([value])
    raise TypeError(f"a distribution must have a counterpart in Optuna, got {type(distribution).__name__}")


def _log_normal(mu: float, sigma: float, values: Sequence[float]) -> BaseDistribution:
    from optuna.distributions import FloatDistribution

    reach = [_exp(mu - NORMAL_DEVIATIONS * sigma), _exp(mu + NORMAL_DEVIATIONS * sigma)]
    low, high = min(*reach, *values), max(*reach, *values)
    # A step may have rounded a value down to zero, where no logarithmic range reaches.
    return FloatDistribution(low, high, log=low > 0)


def _exp(exponent: float) -> float:
    return math.exp(min(max(exponent, -700.0), 700.0))


def _multiples(low: float, high: float, step: float) -> tuple[float, float]:
    """Give the first and last multiple of a step in a range: ours count from 0, Optuna's from `low`."""
    exact = Decimal(repr(step))
    first = (Decimal(repr(low)) / exact).to_integral_value(ROUND_CEILING)
    last = (Decimal(repr(high)) / exact).to_integral_value(ROUND_FLOOR)
    return float(first * exact), float(last * exact)


def _choices(values: Sequence[Value]) -> OptunaParameter:
    from optuna.distributions import CategoricalDistribution

    plain = all(value is None or isinstance(value, bool | int | float | str) for value in values)
    if plain and len(set(values)) == len(values):
        return OptunaParameter(CategoricalDistribution(tuple(values)))
    texts = dict.fromkeys(json.dumps(value, ensure_ascii=False) for value in values)
    return OptunaParameter(CategoricalDistribution(tuple(texts)), as_json=True)
