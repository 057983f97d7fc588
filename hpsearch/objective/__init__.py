"""The objective of a search: metrics, outcome constraints, ranking, and the Pareto front."""

from __future__ import annotations

from hpsearch.objective.fronts import Fronts, hypervolume
from hpsearch.objective.objective import (
    Metric,
    Objective,
    OutcomeConstraint,
    SortKey,
    excesses_of,
    is_valid,
    values_of,
    without_targets,
)

__all__ = [
    "Fronts",
    "Metric",
    "Objective",
    "OutcomeConstraint",
    "SortKey",
    "excesses_of",
    "hypervolume",
    "is_valid",
    "values_of",
    "without_targets",
]
