"""Events that follow from the end of an attempt or a run: pure functions of the end and the sweep's rules."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from hpsearch.errors import BackendError, HpsearchError, SearcherError, StorageError, exception_line
from hpsearch.events import NO_MEMORY, Dropped, Ended, Event, Failed, Finished, Lost, Reverted
from hpsearch.objective import Metric
from hpsearch.study.trial_record import TrialRecord
from hpsearch.sweep.sweep import Sweep
from hpsearch.task import Result
from hpsearch.trial import Failure

MOST_LOSSES = 5
"""Number of consecutive lost attempts of a segment after which the trial fails, as it kills its workers."""


@dataclass(frozen=True, slots=True)
class Rules:
    """Inputs of a verdict, besides the attempt and its trial."""

    sweep: Sweep
    proven: bool = True
    """A segment of the sweep has completed, so its contract can be satisfied."""
    ending: bool = False
    """The sweep is ending: lost attempts run again in the next run."""
    shares: bool = False
    """Trials share workers, unless they are to have one for themselves."""
    workers: int = 1
    """Number of workers."""
    stopped: str = ""
    """Why the scheduler stopped the attempt; empty if it didn't."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Events that follow from an end."""

    events: tuple[Event, ...]
    message: str = ""
    """Message for the user."""
    mistake: HpsearchError | None = None
    """Why the sweep must end."""


def broken_off(error: BaseException, is_asked: bool) -> Ended:
    """Return the `Ended` event of a run that an exception interrupted.

    Args:
        error: The exception.
        is_asked: Whether this process received a signal to end, which may have ended the backend or the searcher's
            process, too.
    """
    if isinstance(error, KeyboardInterrupt) or (isinstance(error, BackendError | SearcherError) and is_asked):
        return Ended("interrupted")
    return Ended("error", str(error) if isinstance(error, HpsearchError) else exception_line(error))


def verdict(ended: Result | Lost, record: TrialRecord, rules: Rules) -> Verdict:
    """Return the events that follow from the end of an attempt.

    Args:
        ended: How it ended.
        record: The trial's record, with this attempt running.
        rules: The sweep's rules.
    """
    trial, attempt = ended.trial, ended.attempt
    if isinstance(ended, Lost):
        return _of_loss(ended, record, rules)
    harm = _harm(ended, record, rules)
    if harm is not None:
        return _go_back(ended, record, harm, ended.seconds, ended.checkpoint)
    if ended.failure is None:
        stopped = rules.stopped if ended.cut else ""
        finished = Finished(
            trial,
            attempt,
            ended.iteration,
            ended.checkpoint,
            ended.reports,
            ended.cut and not stopped,
            ended.seconds,
            stopped,
            ended.lanes,
        )
        return Verdict((finished,))
    return _of_failure(ended, ended.failure, record, rules)


def _of_failure(ended: Result, failure: Failure, record: TrialRecord, rules: Rules) -> Verdict:
    trial, attempt, seconds = ended.trial, ended.attempt, ended.seconds
    lost = Lost(trial, attempt, failure.message, counts_against_trial=False, seconds=seconds)
    own = record.segment is not None and record.segment.checkpoint != record.source
    if failure.kind == "checkpoint" and own and record.continued is None:
        message = f"trial {trial} starts again from {_beginning(record)}: {failure.message}"
        return Verdict((lost, Dropped(trial, failure.message)), message)
    if failure.kind == "died":
        return _of_loss(Lost(trial, attempt, failure.message, seconds=seconds), record, rules)
    if failure.kind == "storage":
        return Verdict((lost,), mistake=StorageError(failure.message))
    if failure.kind == "memory":
        if (then := _with_more_memory(record, rules)) is not None:
            where = "with a worker for itself" if then == "alone" else f"on {2 * record.width} workers"
            reason = f"{NO_MEMORY}{failure.message}"
            message = f"trial {trial} runs again {where}: {reason}"
            return Verdict((Lost(trial, attempt, reason, False, seconds, then),), message)
        had = "a worker for itself" if record.width == 1 else f"{record.width} workers"
        failure = replace(failure, message=f"{failure.message}; it had {had}")
    limits = rules.sweep.limits
    in_time = limits.trial_timeout is None or record.charged + seconds < limits.trial_timeout
    retry = failure.kind in ("raised", "memory") and record.failures < limits.max_retries and in_time
    return Verdict((Failed(trial, attempt, failure, retry, () if retry else ended.reports, seconds),))


def _with_more_memory(record: TrialRecord, rules: Rules) -> Literal["alone", "wider"] | None:
    """Return how a trial can get more memory after it ran out; None: it can't get more."""
    if rules.shares and record.width == 1 and not record.alone:
        return "alone"
    most = min(rules.workers, rules.sweep.resources.widest, record.widest or rules.workers)
    return "wider" if 2 * record.width <= most else None


def _beginning(record: TrialRecord) -> str:
    parent = record.trial.parent
    return "zero" if parent is None or parent.checkpoint is None else f"the checkpoint of trial {parent.number}"


def _of_loss(lost: Lost, record: TrialRecord, rules: Rules) -> Verdict:
    if record.losses + lost.counts_against_trial < MOST_LOSSES or rules.ending:
        if len(lost.company) == 1:
            return Verdict((replace(lost, then="alone", company=()),))
        return Verdict((replace(lost, then="halved") if lost.company else lost,))
    message = f"its worker died {MOST_LOSSES} times in a row without progress; the last time: {lost.reason}"
    if record.rollback_point is not None:
        return _go_back(lost, record, message, lost.seconds)
    return Verdict((Failed(lost.trial, lost.attempt, Failure("died", message, ""), False, (), lost.seconds),))


def _harm(result: Result, record: TrialRecord, rules: Rules) -> str | None:
    """Return how a trial failed or diverged on more workers than before; None if it didn't."""
    rollback_point, failure = record.rollback_point, result.failure
    if rollback_point is None or record.segment is None or result.cut:
        return None
    if failure is None:
        scaling = rules.sweep.scaling
        # With a global batch the width doesn't affect results, so a worse one isn't due to the width.
        tolerance = scaling.tolerance if scaling.batch == "per_worker" else None
        last = result.reports[-1].metrics if result.reports else record.result.metrics
        return diverged(last, rollback_point.result.metrics, rules.sweep.objective.goals, tolerance)
    # A trial that was widened for its memory needs more workers, not fewer.
    lacks_memory = failure.kind == "memory" and record.width > rollback_point.width
    blamed = failure.kind == "raised" or (lacks_memory and record.narrowest == 1)
    blamed = blamed or (failure.kind == "contract" and rules.proven)
    return failure.message if blamed else None


def _go_back(
    ended: Result | Lost, record: TrialRecord, harm: str, seconds: float, checkpoint: str | None = None
) -> Verdict:
    """Revert the trial to its state before it was widened."""
    assert record.rollback_point is not None, "only a trial that was widened goes back"
    reason, iteration = f"width {record.width}: {harm}", record.rollback_point.result.iterations
    message = f"trial {ended.trial} goes back to iteration {iteration} and to fewer workers: {reason}"
    return Verdict((Reverted(ended.trial, ended.attempt, iteration, reason, seconds, checkpoint),), message)


def diverged(
    metrics: Mapping[str, float], before: Mapping[str, float], goals: Sequence[Metric], tolerance: float | None
) -> str | None:
    """Return in words how a trial diverged; None if it did not.

    Args:
        metrics: The metrics it reports now. Goals may be missing.
        before: The metrics it reported before it was widened. Goals may be missing or NaN.
        goals: The goals. A trial has diverged if one of them has.
        tolerance: Maximum loss, relative to the value before; None: only NaN is a divergence.
    """
    reasons = (
        (goal.name, _divergence(goal, metrics.get(goal.name), before.get(goal.name), tolerance)) for goal in goals
    )
    return next((f"{name} {reason}" for name, reason in reasons if reason is not None), None)


def _divergence(goal: Metric, value: float | None, before: float | None, tolerance: float | None) -> str | None:
    if value is None:
        return None
    had = before is not None and not math.isnan(before)
    if math.isnan(value):
        return f"NaN after {before:.6g}" if had else "NaN"
    if tolerance is None or before is None or not had:
        return None
    if not goal.signed(value) - goal.signed(before) > tolerance * abs(before):  # NaN if both are infinite
        return None
    return f"{value:.6g} after {before:.6g}, worse by more than the {tolerance:.0%} of scaling.tolerance"
