"""Conversion of distributions to Optuna's, which are bounded and have scalar choices; and silencing Optuna's log."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpsearch.space import (
    Categorical,
    Constant,
    Derived,
    Distribution,
    IntUniform,
    LogIntUniform,
    LogNormal,
    LogUniform,
    Normal,
    Uniform,
)
from hpsearch.space.structures import Copies
from hpsearch.trial import Value

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

NORMAL_DEVIATIONS = 4.0
"""Half-width, in sigmas, of the range for an unbounded parameter."""

EXACT_INTEGERS = 2**53
"""Optuna's storages keep numbers as floats, which represent every integer exactly up to this one."""

MOST_STEPS = 1_000_000
"""Most steps of a range. With many more, rounding breaks Optuna's check that a value is on a step."""


@contextmanager
def quiet_optuna() -> Iterator[None]:
    """Silence Optuna's log and warnings within the block."""
    import optuna

    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        optuna.logging.set_verbosity(verbosity)


@dataclass(frozen=True, slots=True)
class OptunaParameter:
    """An Optuna distribution that contains all values of one parameter."""

    distribution: BaseDistribution
    as_json: bool = False
    """Whether values are stored as JSON strings. Optuna has no lists as values, and treats 1 and True as equal."""

    def value(self, value: Value) -> Value:
        """Return a value as Optuna stores it."""
        return json.dumps(value, ensure_ascii=False) if self.as_json else value


def optuna_parameter(distribution: Distribution, values: Sequence[Value]) -> OptunaParameter | None:
    """Return Optuna's equivalent of a distribution; None if Optuna would change the values.

    There is no equivalent for integers beyond 2**53, and for derived values, which aren't searched. A logarithmic range
    loses its step, as Optuna doesn't support both together. A range with very many steps also loses its step. A normal
    distribution is bounded at four sigmas, or at the values if they are further out.

    Args:
        distribution: Our distribution.
        values: Values of the study's trials.
    """
    from optuna.distributions import FloatDistribution, IntDistribution

    match distribution:
        case IntUniform(min=low, max=high) | LogIntUniform(min=low, max=high) if max(-low, high) > EXACT_INTEGERS:
            return None
        case Uniform(min=low, max=high, steps=steps):
            if steps is None or steps.count > MOST_STEPS:
                return OptunaParameter(FloatDistribution(low, high))
            # Our steps count from 0, Optuna's from `low`.
            low, high = steps.value(steps.first), steps.value(steps.last)
            return OptunaParameter(FloatDistribution(low, high, step=steps.size))
        case LogUniform(min=low, max=high):
            return OptunaParameter(FloatDistribution(low, high, log=True))
        case IntUniform(steps=steps) if steps is not None:
            low, high = int(steps.value(steps.first)), int(steps.value(steps.last))
            return OptunaParameter(IntDistribution(low, high, step=int(steps.size)))
        case LogIntUniform(min=low, max=high):
            return OptunaParameter(IntDistribution(low, high, log=True))
        case Normal() | LogNormal():
            ends = [distribution.at_deviations(sigmas) for sigmas in (-NORMAL_DEVIATIONS, NORMAL_DEVIATIONS)]
            low, high = min(*ends, *values), max(*ends, *values)
            # A step may round a value down to zero, which a logarithmic range can't contain.
            is_log = isinstance(distribution, LogNormal) and low > 0
            return OptunaParameter(FloatDistribution(low, high, log=is_log))
        case Copies(min=low):
            return OptunaParameter(IntDistribution(low, max([low, *values])))
        case Derived():
            return None
        case Categorical(values=choices):
            return _choices(choices)
        case Constant(value=value):
            return _choices([value])
    raise TypeError(f"a distribution must have a counterpart in Optuna, got {type(distribution).__name__}")


def _choices(values: Sequence[Value]) -> OptunaParameter:
    from optuna.distributions import CategoricalDistribution

    plain = all(value is None or isinstance(value, bool | int | float | str) for value in values)
    if plain and len(set(values)) == len(values):
        return OptunaParameter(CategoricalDistribution(tuple(values)))
    texts = dict.fromkeys(json.dumps(value, ensure_ascii=False) for value in values)
    return OptunaParameter(CategoricalDistribution(tuple(texts)), as_json=True)
