"""Trials as Optuna has them. Importing this imports Optuna, which takes half a second."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from optuna.distributions import BaseDistribution
from optuna.trial import FrozenTrial, TrialState, create_trial

from hpsearch.objective import excesses_of, values_of
from hpsearch.trial import JointScore, Score

__all__ = ["mirrored", "score_of"]


class _Shared(FrozenTrial):
    """A trial that isn't changed any more, so that the studies that hold it may share what it holds.

    A study copies each trial that is added to it, deeply, which is most of what a suggestion would take.
    """

    def __deepcopy__(self, memo: object) -> _Shared:
        return copy.copy(self)


def mirrored(
    params: Mapping[str, Any],
    score: Score | None,
    distributions: Mapping[str, BaseDistribution],
    attributes: Mapping[str, Any],
) -> FrozenTrial:
    """Give a trial for a study in memory.

    Args:
        params: As Optuna has them.
        score: None where it is under way.
        distributions: Of the params.
        attributes: What its sampler wrote to it.
    """
    made = create_trial(
        state=TrialState.RUNNING if score is None else TrialState.COMPLETE,
        values=None if score is None else values_of(score),
        params=dict(params),
        distributions=dict(distributions),
        system_attrs=dict(attributes),
    )
    for place, excess in enumerate(() if score is None else excesses_of(score)):
        made.set_constraint(str(place), excess)
    made.__class__ = _Shared
    return made


def score_of(trial: FrozenTrial) -> Score | None:
    """Give back the score of such a trial; None of any other, and of one that is under way."""
    if trial.state != TrialState.COMPLETE:
        return None
    if len(trial.values) > 1 or trial.constraints:
        return JointScore(tuple(trial.values), tuple(trial.constraints.values()))
    return float(trial.values[0])
