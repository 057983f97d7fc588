"""Parameter importance by fANOVA (Hutter et al., ICML 2014), through Optuna."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hpsearch.config.checks import is_number
from hpsearch.config.import_paths import installing, is_installed
from hpsearch.objective import values_of
from hpsearch.results.optuna_distributions import OptunaParameter, optuna_parameter, quiet_optuna
from hpsearch.results.study import Study
from hpsearch.space import ZeroOrLogUniform
from hpsearch.sweep.sweep import Sweep
from hpsearch.trial import TrialRow, Value

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

_MOST_FITTED = 300
_LEAST_FITTED = 20

_TREES = 32
"""Number of trees: half of Optuna's default, in half of the time."""


@dataclass(frozen=True, slots=True)
class Importance:
    """Importance of each parameter."""

    shares: Mapping[str, float] = field(default_factory=dict)
    """Share of the variance that each parameter explains, largest first; empty if unknown."""
    iteration: int = 0
    """Iteration at which trials are compared."""
    reached: int = 0
    """Number of trials that reached the iteration."""
    fitted: int = 0
    """Number of trials that were compared."""
    missing: str = ""
    """Why there are no shares, in a sentence; empty if there are."""


def importance_of(study: Study, index: int = 0) -> Importance:
    """Return the importances, computed from values at the highest iteration that 20 trials reached.

    Args:
        study: The study.
        index: Index of the goal in the sweep.
    """
    goals = study.sweep.objective.goals
    if not goals:
        return Importance(missing="The sweep names no metric.")
    name = goals[index].name
    curves = {
        trial: {iteration: value for iteration, score in scores if math.isfinite(value := values_of(score)[index])}
        for trial, scores in study.scores().items()
    }
    reached = Counter(iteration for curve in curves.values() for iteration in curve)
    iteration = max((at for at, count in reached.items() if count >= _LEAST_FITTED), default=None)
    if iteration is None:
        needed = f"This takes {_LEAST_FITTED} trials with a finite {name} at one iteration"
        return Importance(missing=f"{needed}: {_had(reached)}.")
    if not is_installed("sklearn"):
        return Importance(missing=f"This needs scikit-learn, which isn't installed: {installing('design')}.")
    rows = [row for row in study.trials if iteration in curves.get(row.number, {})]
    chosen = rows[:: math.ceil(len(rows) / _MOST_FITTED)]
    values = [curves[row.number][iteration] for row in chosen]
    if len(set(values)) < 2:
        return Importance(missing=f"The {len(chosen)} trials that reached iteration {iteration} have one {name}.")

    shares = _shares_of(study.sweep, chosen, values)
    if not shares:
        missing = f"No parameter varies that all of the {len(chosen)} trials have that reached iteration {iteration}."
        return Importance(missing=missing)
    return Importance(shares, iteration, len(rows), len(chosen))


def _had(reached: Mapping[int, int]) -> str:
    """Return a description of the iteration at which most trials have a value."""
    if not reached:
        return "so far none has any"
    iteration = min(reached, key=lambda one: (-reached[one], one))
    count = reached[iteration]
    return f"so far {count} {'has' if count == 1 else 'have'} one at iteration {iteration}, and no more at any other"


def _shares_of(sweep: Sweep, rows: Sequence[TrialRow], values: Sequence[float]) -> dict[str, float]:
    """Return the share of the variance that each parameter explains, largest first.

    Only parameters that vary and that are active in all of these trials are used. Equal trials give equal shares.

    Args:
        sweep: Sweep that defines the parameters.
        rows: The trials.
        values: Value of each trial.
    """
    import optuna
    from optuna.distributions import FloatDistribution
    from optuna.importance import FanovaImportanceEvaluator, get_param_importances

    common = set.intersection(*(set(row.params) for row in rows))
    names = [name for name in sweep.parameters.columns(row.params for row in rows) if name in common]
    columns: dict[str, tuple[BaseDistribution, Sequence[Value]]] = {}
    for name in names:
        parameter, column = sweep.parameters.find(name), [row.params[name] for row in rows]
        if parameter is None or all(value == column[0] for value in column):
            continue
        ours = parameter.distribution
        if isinstance(ours, ZeroOrLogUniform) and all(is_number(value) and value >= 0 for value in column):
            columns[name] = FloatDistribution(0.0, 1.0), [ours.share(value) for value in column]
        elif (counterpart := optuna_parameter(ours, column)) is not None:
            columns[name] = _scale(counterpart, column)
    if not columns or len(set(values)) < 2:
        return {}
    with quiet_optuna():
        study = optuna.create_study()
        distributions = {name: distribution for name, (distribution, _) in columns.items()}
        for index, value in enumerate(_shares(values)):
            params = {name: scaled[index] for name, (_, scaled) in columns.items()}
            study.add_trial(optuna.trial.create_trial(params=params, distributions=distributions, value=value))
        evaluator = FanovaImportanceEvaluator(n_trees=_TREES, seed=0)
        importances = get_param_importances(study, evaluator=evaluator, params=list(columns))
    return dict(sorted(importances.items(), key=lambda item: -item[1]))


def _scale(parameter: OptunaParameter, values: Sequence[Value]) -> tuple[BaseDistribution, Sequence[Value]]:
    """Scale numbers to fractions of their range. The trees stay the same.

    Trees use 32-bit floats, which can't represent 1e300, or distinguish 1e9 from 1e9 + 1.
    """
    from optuna.distributions import FloatDistribution, IntDistribution

    distribution = parameter.distribution
    if isinstance(distribution, FloatDistribution | IntDistribution):
        beyond = (distribution.step or 0) / 2  # so that each step covers the same width
        numbers = [distribution.low - beyond, distribution.high + beyond, *map(float, values)]
        shares = _shares([math.log(number) for number in numbers] if distribution.log else numbers)
        return FloatDistribution(0.0, 1.0), shares[2:]
    return parameter.distribution, [parameter.value(value) for value in values]


def _shares(values: Sequence[float]) -> list[float]:
    """Scale numbers to the range 0 to 1, from the smallest to the largest."""
    low, high = min(values), max(values)
    half = (high / 2 - low / 2) or 1.0
    return [min(max((value / 2 - low / 2) / half, 0.0), 1.0) for value in values]
