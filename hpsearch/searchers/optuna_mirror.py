"""Conversion of trials to Optuna's frozen trials. Importing this module imports Optuna, which takes half a second."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from optuna.distributions import BaseDistribution
from optuna.trial import FrozenTrial, TrialState, create_trial

from hpsearch.objective import excesses_of, values_of
from hpsearch.trial import JointScore, Score


class _Shared(FrozenTrial):
    """A trial that no longer changes, so that studies can share it without a copy.

    Optuna deep-copies each trial that is added to a study, which would take most of the time of a suggestion.
    """

    def __deepcopy__(self, memo: object) -> _Shared:
        return copy.copy(self)


def mirrored(
    params: Mapping[str, Any],
    score: Score | None,
    distributions: Mapping[str, BaseDistribution],
    attributes: Mapping[str, Any],
) -> FrozenTrial:
    """Return a frozen trial for an in-memory study.

    Args:
        params: Optuna's params.
        score: None if the trial is running.
        distributions: The distributions of the params.
        attributes: The system attributes that its sampler wrote.
    """
    trial = create_trial(
        state=TrialState.RUNNING if score is None else TrialState.COMPLETE,
        values=None if score is None else values_of(score),
        params=dict(params),
        distributions=dict(distributions),
        system_attrs=dict(attributes),
    )
    for index, excess in enumerate(() if score is None else excesses_of(score)):
        trial.set_constraint(str(index), excess)
    trial.__class__ = _Shared
    return trial


def score_of(trial: FrozenTrial) -> Score | None:
    """Return the score of a frozen trial; None if the trial isn't complete."""
    if trial.state != TrialState.COMPLETE:
        return None
    if len(trial.values) > 1 or trial.constraints:
        return JointScore(tuple(trial.values), tuple(trial.constraints.values()))
    return float(trial.values[0])
