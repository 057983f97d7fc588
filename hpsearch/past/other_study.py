"""Trials of another study of hpsearch, with all that they reported."""

from __future__ import annotations

from hpsearch.errors import SweepError
from hpsearch.past.found import Found, LeftOut, Source
from hpsearch.report.study import Study
from hpsearch.sweep.sweep import Sweep
from hpsearch.trial import TrialRow, TrialState

__all__ = ["from_study"]


def from_study(study: Study, sweep: Sweep) -> Source:
    """Give the trials of a study, running or not.

    Raises:
        SweepError: It decides by another metric, or goes the other way.
    """
    there, here = study.sweep.metric, sweep.metric
    if there.name != here.name:
        raise SweepError(
            f"--from {study.directory}: expected a study that is decided by {here.name!r}, the sweep's metric, got "
            f"one by {there.name!r}. Name the metric of both alike, or give a table (`hpsearch trials DIR --metrics "
            "--format csv`) if that study reported it, too"
        )
    if there.goal != here.goal:
        raise SweepError(
            f"--from {study.directory}: expected a study whose goal is to {here.goal} {here.name}, got {there.goal}"
        )
    rows = study.trials
    curves = study.curves() if any(row.value is not None or row.metrics for row in rows) else {}
    trials = [_found(row, curves.get(row.number, []), study.sweep) for row in rows]
    return Source(str(study.directory), trials)


def _found(row: TrialRow, curve: list[tuple[int, float]], sweep: Sweep) -> Found:
    if row.state is TrialState.FAILED:
        return Found({}, {}, left_out=LeftOut("failed"))
    whole = row.state is TrialState.COMPLETE
    # One that returned before its last iteration had got all that there was for it.
    return Found(row.params, dict(curve), sweep.iterations if whole else row.iterations, whole)
