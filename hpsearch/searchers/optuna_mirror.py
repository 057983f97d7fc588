"""Trials as Optuna has them. Importing this imports Optuna, which takes half a second."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from optuna.distributions import BaseDistribution
from optuna.trial import FrozenTrial, TrialState, create_trial

__all__ = ["mirrored"]


class _Shared(FrozenTrial):
    """A trial that isn't changed any more, so that the studies that hold it may share what it holds.

    A study copies each trial that is added to it, deeply, which is most of what a suggestion would take.
    """

    def __deepcopy__(self, memo: object) -> _Shared:
        return copy.copy(self)


def mirrored(
    params: Mapping[str, Any],
    value: float | None,
    distributions: Mapping[str, BaseDistribution],
    attributes: Mapping[str, Any],
) -> FrozenTrial:
    """Give a trial for a study in memory.

    Args:
        params: As Optuna has them.
        value: None where it is under way.
        distributions: Of the params.
        attributes: What its sampler wrote to it.
    """
    made = create_trial(
        state=TrialState.RUNNING if value is None else TrialState.COMPLETE,
        value=value,
        params=dict(params),
        distributions=dict(distributions),
        system_attrs=dict(attributes),
    )
    made.__class__ = _Shared
    return made
