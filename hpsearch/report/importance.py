"""How much each parameter of a study matters: fANOVA, Hutter et al., ICML 2014, through Optuna."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from hpsearch.objective import values_of
from hpsearch.report.study import Study

__all__ = ["Importance", "importance_of"]

_MOST_FITTED = 300
_LEAST_FITTED = 20


@dataclass(frozen=True, slots=True)
class Importance:
    """How much each parameter matters."""

    shares: Mapping[str, float] = field(default_factory=dict)
    """Of the variance that each parameter explains, the greatest first; none where that isn't known."""
    iteration: int = 0
    """At which trials are compared."""
    reached: int = 0
    """Trials that reached it."""
    fitted: int = 0
    """Those of them that were looked at."""
    missing: str = ""
    """Why there are no shares, in a sentence."""


def importance_of(study: Study, place: int = 0) -> Importance:
    """Say what mattered, by what was reported at the highest iteration that 20 trials reached: like with like.

    Args:
        study: Its trials are compared.
        place: Of the goal by which they are, among those of the sweep.
    """
    goals = study.sweep.objective.goals
    if not goals:
        return Importance(missing="The sweep names no metric.")
    name = goals[place].name
    curves = {
        trial: {iteration: value for iteration, score in scores if math.isfinite(value := values_of(score)[place])}
        for trial, scores in study.scores().items()
    }
    reached = Counter(iteration for curve in curves.values() for iteration in curve)
    iteration = max((one for one, count in reached.items() if count >= _LEAST_FITTED), default=None)
    if iteration is None:
        return Importance(missing=f"{_needed(name)}: {_had(reached)}.")
    rows = [row for row in study.trials if iteration in curves.get(row.number, {})]
    chosen = rows[:: math.ceil(len(rows) / _MOST_FITTED)]
    values = [curves[row.number][iteration] for row in chosen]
    if len(set(values)) < 2:
        return Importance(missing=f"The {len(chosen)} trials that reached iteration {iteration} have one {name}.")

    from hpsearch.report.optuna_importance import importances

    shares = importances(study.sweep, chosen, values)
    if not shares:
        missing = f"No parameter varies that all of the {len(chosen)} trials have that reached iteration {iteration}."
        return Importance(missing=missing)
    return Importance(shares, iteration, len(rows), len(chosen))


def _needed(name: str) -> str:
    return f"This takes {_LEAST_FITTED} trials with a finite {name} at one iteration"


def _had(reached: Mapping[int, int]) -> str:
    """Say at which iteration most trials have a value."""
    if not reached:
        return "so far none has any"
    iteration = min(reached, key=lambda one: (-reached[one], one))
    count = reached[iteration]
    return f"so far {count} {'has' if count == 1 else 'have'} one at iteration {iteration}, and no more at any other"
