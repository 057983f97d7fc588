"""How much each parameter of a study matters: fANOVA, Hutter et al., ICML 2014, through Optuna."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from hpsearch.report.study import Study

__all__ = ["Importance", "importance_of"]

_MOST_FITTED = 300
_LEAST_FITTED = 20


@dataclass(frozen=True, slots=True)
class Importance:
    """How much each parameter matters."""

    shares: Mapping[str, float]
    """Of the variance that each parameter explains, the greatest first."""
    iteration: int
    """At which trials are compared."""
    reached: int
    """Trials that reached it."""
    fitted: int
    """Those of them that were looked at."""


def importance_of(study: Study) -> Importance | None:
    """Say what mattered, by what was reported at the highest iteration that 20 trials reached: like with like.

    None where several goals decide or none does, where fewer trials have values, or where all parameters are alike.
    """
    if len(study.sweep.objective.goals) != 1:
        return None
    curves = {trial: dict(curve) for trial, curve in study.curves().items()} if study.trials else {}
    curves = {trial: {i: y for i, y in curve.items() if math.isfinite(y)} for trial, curve in curves.items()}
    lasts = sorted((max(curve) for curve in curves.values() if curve), reverse=True)
    if len(lasts) < _LEAST_FITTED:
        return None
    # Whoever came as far has a value there, but where it was NaN: then fewer iterations give enough trials.
    reached = (
        i for i in range(lasts[_LEAST_FITTED - 1], 0, -1) if sum(i in c for c in curves.values()) >= _LEAST_FITTED
    )
    if (iteration := next(reached, None)) is None:
        return None
    rows = [row for row in study.trials if iteration in curves.get(row.number, {})]
    chosen = rows[:: math.ceil(len(rows) / _MOST_FITTED)]

    from hpsearch.report.optuna_importance import importances

    shares = importances(study.sweep, chosen, [curves[row.number][iteration] for row in chosen])
    return Importance(shares, iteration, len(rows), len(chosen)) if shares else None
