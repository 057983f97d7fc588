"""How much each parameter matters, by Optuna's fANOVA."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpsearch.report.optuna_distributions import OptunaParameter, optuna_parameter
from hpsearch.sweep.sweep import Sweep
from hpsearch.trial import TrialRow, Value

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

__all__ = ["importances"]

_TREES = 32
"""Half of Optuna's default, which takes half of the time."""


def importances(sweep: Sweep, rows: Sequence[TrialRow], values: Sequence[float]) -> dict[str, float]:
    """Give the share of the variance that each parameter explains, the greatest first.

    Only parameters that all of these trials have, and that vary, are looked at. Equal trials give equal shares.

    Args:
        sweep: Says what the parameters are.
        rows: Trials.
        values: Of each.
    """
    import warnings

    import optuna
    from optuna.importance import FanovaImportanceEvaluator, get_param_importances

    common = set.intersection(*(set(row.params) for row in rows))
    names = [name for name in sweep.parameters.columns(row.params for row in rows) if name in common]
    known: dict[str, _Known] = {}
    for name in names:
        parameter, own = sweep.parameters.find(name), [row.params[name] for row in rows]
        if parameter is None or all(value == own[0] for value in own):
            continue
        if (counterpart := optuna_parameter(parameter.distribution, own)) is not None:
            known[name] = _known(counterpart, own)
    if not known or len(set(values)) < 2:
        return {}
    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            study = optuna.create_study()
            distributions = {name: one.distribution for name, one in known.items()}
            for place, value in enumerate(_shares(values)):
                params = {name: one.values[place] for name, one in known.items()}
                study.add_trial(optuna.trial.create_trial(params=params, distributions=distributions, value=value))
            evaluator = FanovaImportanceEvaluator(n_trees=_TREES, seed=0)
            found = get_param_importances(study, evaluator=evaluator, params=list(known))
    finally:
        optuna.logging.set_verbosity(level)
    return dict(sorted(found.items(), key=lambda item: -item[1]))


@dataclass(frozen=True, slots=True)
class _Known:
    """A parameter as the trees see it."""

    distribution: BaseDistribution
    values: Sequence[Value]
    """Of each trial."""


def _known(parameter: OptunaParameter, values: Sequence[Value]) -> _Known:
    """Give numbers as shares of their range, or as steps from its lower end, which changes nothing that trees find.

    Trees take 32-bit floats, which hold neither 1e300 nor what tells 1e9 and 1e9 + 1 apart.
    """
    from optuna.distributions import FloatDistribution, IntDistribution

    distribution = parameter.distribution
    if isinstance(distribution, FloatDistribution | IntDistribution) and (
        distribution.log or distribution.step is None
    ):
        beyond = 0.5 if isinstance(distribution, IntDistribution) else 0.0  # an integer has as much room as others
        ends = [distribution.low - beyond, distribution.high + beyond]
        numbers = [*ends, *(float(value) for value in values)]
        shares = _shares([math.log(number) for number in numbers] if distribution.log else numbers)
        return _Known(FloatDistribution(0.0, 1.0), shares[2:])
    if isinstance(distribution, FloatDistribution | IntDistribution):
        step = distribution.step or 1
        last = round((distribution.high - distribution.low) / step)
        places = [min(max(round((value - distribution.low) / step), 0), last) for value in values]
        return _Known(IntDistribution(0, last), places)
    return _Known(parameter.distribution, [parameter.value(value) for value in values])


def _shares(values: Sequence[float]) -> list[float]:
    """Give where numbers lie between the least and the greatest of them, from 0 to 1."""
    low, high = min(values), max(values)
    half = (high / 2 - low / 2) or 1.0
    return [min(max((value / 2 - low / 2) / half, 0.0), 1.0) for value in values]
