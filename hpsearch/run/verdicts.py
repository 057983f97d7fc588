"""What follows from the end of an attempt: a pure function of how it ended, of its trial, and of the sweep's rules."""

from __future__ import annotations

from dataclasses import dataclass

from hpsearch.backends.base import Gone, Result, TimedOut
from hpsearch.errors import HpsearchError, StorageError
from hpsearch.events import Dropped, Event, Failed, Finished, Lost, Reverted
from hpsearch.study.standing import Standing
from hpsearch.sweep.sweep import Sweep
from hpsearch.trial import Failure
from hpsearch.widths.divergence import diverged
from hpsearch.worker.job import SegmentResult

__all__ = ["MOST_LOSSES", "Rules", "Verdict", "verdict"]

MOST_LOSSES = 5
"""Attempts of one segment that may vanish with their worker in a row before the trial is said to kill its workers."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What the verdict goes by, beside the attempt and its trial."""

    sweep: Sweep
    proven: bool = True
    """A segment of the sweep has come to its end, so its contract can be kept."""
    ending: bool = False
    """The sweep ends: what is lost now runs again in the next run."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What follows."""

    events: tuple[Event, ...]
    said: str = ""
    """What the user should read."""
    mistake: HpsearchError | None = None
    """Why the sweep must end."""


def verdict(ended: Result | TimedOut | Gone, standing: Standing, rules: Rules) -> Verdict:
    """Say what follows from the end of an attempt.

    Args:
        ended: How.
        standing: Where its trial stands, with this attempt running.
        rules: Of the sweep.
    """
    trial, attempt = ended.trial, ended.attempt
    match ended:
        case TimedOut(failure=failure, seconds=seconds):
            return Verdict((Failed(trial, attempt, failure, False, (), seconds),))
        case Gone():
            return _of_loss(ended, standing, rules)
    result = ended.result
    harm = _harm(result, standing, rules)
    if harm is not None:
        return _go_back(ended, standing, harm, result.seconds, result.checkpoint)
    if result.failure is None:
        return Verdict(
            (Finished(trial, attempt, result.iteration, result.checkpoint, result.reports, result.cut, result.seconds),)
        )
    return _of_failure(ended, result.failure, standing, rules)


def _of_failure(ended: Result, failure: Failure, standing: Standing, rules: Rules) -> Verdict:
    trial, attempt, seconds = ended.trial, ended.attempt, ended.result.seconds
    lost = Lost(trial, attempt, failure.message, innocent=True, seconds=seconds)
    if failure.kind == "checkpoint":
        said = f"trial {trial} starts again from zero: {failure.message}"
        return Verdict((lost, Dropped(trial, failure.message)), said)
    if failure.kind == "storage":
        return Verdict((lost,), mistake=StorageError(failure.message))
    limits = rules.sweep.limits
    in_time = limits.trial_timeout is None or standing.charged + seconds < limits.trial_timeout
    retry = failure.kind == "raised" and standing.failures < limits.max_retries and in_time
    return Verdict((Failed(trial, attempt, failure, retry, () if retry else ended.result.reports, seconds),))


def _of_loss(gone: Gone, standing: Standing, rules: Rules) -> Verdict:
    if standing.losses + (not gone.innocent) < MOST_LOSSES or rules.ending:
        return Verdict((Lost(gone.trial, gone.attempt, gone.reason, gone.innocent, gone.seconds),))
    message = f"its worker died {MOST_LOSSES} times in a row without progress; the last time: {gone.reason}"
    if standing.footing is not None:
        return _go_back(gone, standing, message, gone.seconds)
    return Verdict((Failed(gone.trial, gone.attempt, Failure("died", message, ""), False, (), gone.seconds),))


def _harm(result: SegmentResult, standing: Standing, rules: Rules) -> str | None:
    """Say what more workers than before did to a trial; None: nothing."""
    footing, failure = standing.footing, result.failure
    if footing is None or standing.segment is None or result.cut:
        return None
    if failure is None:
        metric, scaling = rules.sweep.metric, rules.sweep.scaling
        # With a global batch the width changes no result, so a worse one says nothing about the width.
        tolerance = scaling.tolerance if scaling.batch == "per_worker" else None
        value = result.reports[-1].metrics[metric.name] if result.reports else standing.value
        wrong = diverged(value, footing.value, metric.goal, tolerance)
        return None if wrong is None else f"{metric.name} {wrong}"
    blamed = failure.kind == "raised" or (failure.kind == "contract" and rules.proven)
    return failure.message if blamed else None


def _go_back(
    ended: Result | Gone, standing: Standing, harm: str, seconds: float, checkpoint: str | None = None
) -> Verdict:
    """Take the trial back to where it stood before it was widened."""
    assert standing.footing is not None, "only a trial that was widened goes back"
    reason, iteration = f"width {standing.width}: {harm}", standing.footing.iterations
    said = f"trial {ended.trial} goes back to iteration {iteration} and to fewer workers: {reason}"
    return Verdict((Reverted(ended.trial, ended.attempt, iteration, reason, seconds, checkpoint),), said)
