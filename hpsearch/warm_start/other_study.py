"""Trials of another study of hpsearch, with all that they reported."""

from __future__ import annotations

from collections.abc import Sequence

from hpsearch.errors import SweepError
from hpsearch.results.study import Study
from hpsearch.sweep.sweep import Sweep
from hpsearch.trial import Score, TrialRow, TrialState
from hpsearch.warm_start.found import Found, LeftOut, Source

__all__ = ["from_study"]


def from_study(study: Study, sweep: Sweep) -> Source:
    """Return the trials of a study, running or not.

    Raises:
        SweepError: Its metric or its direction differs.
    """
    there, here = study.sweep.objective, sweep.objective
    if set(there.names) != set(here.names) or there.several != here.several:
        raise SweepError(
            f"--from {study.directory}: expected a study that is decided by {_told(here.names)}, as the sweep is, got "
            f"one by {_told(there.names)}. Name the metrics of both alike, or give a table (`hpsearch trials DIR "
            "--metrics --format csv`) if that study reported them, too"
        )
    goals = {goal.name: goal.goal for goal in there.goals}
    for goal in here.goals:
        if goals.get(goal.name) != goal.goal:
            raise SweepError(
                f"--from {study.directory}: expected a study whose goal is to {goal.goal} {goal.name}, got "
                f"{goals.get(goal.name, 'none')}"
            )
    rows = study.trials
    curves = study.scores(here)
    trials = [_found(row, curves.get(row.number, []), study.sweep) for row in rows]
    return Source(str(study.directory), trials)


def _told(names: Sequence[str]) -> str:
    return " and ".join(map(repr, names))


def _found(row: TrialRow, curve: list[tuple[int, Score]], sweep: Sweep) -> Found:
    if row.state is TrialState.FAILED:
        return Found({}, {}, left_out=LeftOut("failed"))
    whole = row.state is TrialState.COMPLETE
    # One that returned before its last iteration had got all that there was for it.
    return Found(row.params, dict(curve), sweep.iterations if whole else row.iterations, whole)
