"""The objective of a search: metrics, outcome constraints, ranking, and the Pareto front."""

from __future__ import annotations

from hpsearch.objective.fronts import Fronts
from hpsearch.objective.hypervolume import hypervolume
from hpsearch.objective.metric import Metric, without_targets
from hpsearch.objective.objective import Objective, SortKey, excesses_of, is_valid, values_of
from hpsearch.objective.outcome_constraint import OutcomeConstraint

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
