"""Conversion of distributions to Optuna's, which are bounded and have scalar choices; and silencing Optuna's log."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpsearch.config.checks import InvalidKey, is_number
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
    ZeroOrLogUniform,
)
from hpsearch.space.distribution import Numeric
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
    distribution is bounded at four sigmas, or at the values if they are further out. If trials have values outside of
    the distribution, as after a change of the space, it is widened, and loses its step.

    Args:
        distribution: Our distribution.
        values: Values of the study's trials.
    """
    outside = [value for value in values if not _accepts(distribution, value)]
    if outside and not isinstance(distribution, Derived):
        return _spanning(distribution, values)
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
        case ZeroOrLogUniform(max=high):
            return OptunaParameter(FloatDistribution(0.0, high))  # Optuna's logarithmic ranges can't contain 0
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


def _accepts(distribution: Distribution, value: Value) -> bool:
    try:
        distribution.accept(value)
    except InvalidKey:
        return False
    return True


def _spanning(distribution: Distribution, values: Sequence[Value]) -> OptunaParameter | None:
    """Return Optuna's equivalent of a distribution that doesn't contain all values, widened to them."""
    from optuna.distributions import FloatDistribution, IntDistribution

    listed = distribution.every_value() if isinstance(distribution, Categorical | Constant) else None
    if isinstance(distribution, Categorical) or not all(map(is_number, values)):
        distinct = {json.dumps(value, sort_keys=True): value for value in [*(listed or ()), *values]}
        return _choices([*distinct.values()])
    ends = distribution.ends if isinstance(distribution, Numeric) else listed or ()
    low, high = min([*ends, *values]), max([*ends, *values])
    if max(-low, high) > EXACT_INTEGERS and any(isinstance(value, int) for value in values):
        return None
    log = low > 0 and isinstance(distribution, LogUniform | LogIntUniform | LogNormal)
    if all(isinstance(value, int) for value in (low, high, *values)):
        return OptunaParameter(IntDistribution(low, high, log=log))
    return OptunaParameter(FloatDistribution(low, high, log=log))


def _choices(values: Sequence[Value]) -> OptunaParameter:
    from optuna.distributions import CategoricalDistribution

    plain = all(value is None or isinstance(value, bool | int | float | str) for value in values)
    if plain and len(set(values)) == len(values):
        return OptunaParameter(CategoricalDistribution(tuple(values)))
    texts = dict.fromkeys(json.dumps(value, ensure_ascii=False) for value in values)
    return OptunaParameter(CategoricalDistribution(tuple(texts)), as_json=True)
