"""Estimates a sweep's remaining time: remaining iterations times mean worker seconds per iteration, over workers."""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Sequence

from hpsearch.events import Event, Failed, Finished, Lost, Opened, Reverted, Saved, Started, Steered
from hpsearch.schedulers.base import RungView
from hpsearch.sweep.sweep import Sweep
from hpsearch.task import Workers
from hpsearch.trial import Report, Segment

_FEWEST, _MOST = 3, 300
"""Fewest segments for an estimate, and largest number of newest segments that it uses."""


class TimeLeft:
    """Estimates a sweep's remaining seconds.

    The pace is the worker seconds per iteration, over the running segments and the later half of the ended segments, as
    the first segments include warm-up. The time of an ended segment includes its overhead, and is divided by all
    planned iterations of the segment, so that failures and early ends are part of the pace.

    Args:
        sweep: The sweep.
        spent: Seconds of `limits.max_time` that earlier runs used.
    """

    def __init__(self, sweep: Sweep, spent: float = 0.0) -> None:
        self._sweep = sweep
        self._spent = spent
        self._reset()

    def _reset(self) -> None:
        self._running: dict[int, Segment] = {}  # by trial
        self._reported: dict[int, tuple[float, int]] = {}  # by running trial: worker seconds, iterations
        self._ended = deque[tuple[float, int]](maxlen=_MOST)
        self._paused = 0.0  # seconds
        self._paused_since: float | None = None

    def observe(self, event: Event, elapsed: float) -> None:
        """Apply an event, `elapsed` seconds after the start of this run. A new run starts without estimates."""
        match event:
            case Opened():
                self._reset()
            case Started(segment=segment):
                self._running[segment.trial] = segment
            case Saved(reports=reports):
                self.report(reports)
            case Finished(trial=trial, iteration=iteration, seconds=seconds, cut=cut):
                self._end(trial, seconds, iteration if cut else None)
            case Failed(trial=trial, seconds=seconds, retry=False):
                self._end(trial, seconds)
            case Failed(trial=trial) | Lost(trial=trial) | Reverted(trial=trial):
                self._drop(trial)
            case Steered(verb="pause", refused=""):
                self._paused_since = elapsed
            case Steered(verb="resume", refused=""):
                self._paused, self._paused_since = self._seconds_paused(elapsed), None

    def report(self, reports: Sequence[Report]) -> None:
        """Receive reports, live ones or those of an event. Each iteration counts once."""
        for report in reports:
            if (segment := self._running.get(report.trial)) is not None:
                seconds, former = self._reported.get(report.trial, (0.0, 0))
                if (iterations := report.iteration - segment.start) > former:
                    self._reported[report.trial] = seconds + report.seconds * segment.width, iterations

    def _end(self, trial: int, seconds: float, at: int | None = None) -> None:
        if (segment := self._drop(trial)) is not None:
            end = segment.end if at is None else at
            self._ended.append((seconds * segment.width, (end or segment.start) - segment.start))

    def _drop(self, trial: int) -> Segment | None:
        self._reported.pop(trial, None)
        return self._running.pop(trial, None)

    def _seconds_paused(self, elapsed: float) -> float:
        return self._paused + (0.0 if self._paused_since is None else elapsed - self._paused_since)

    def estimate(
        self, rungs: Sequence[RungView], total: tuple[int, int] | None, workers: Workers, elapsed: float
    ) -> float | None:
        """Return the estimated remaining seconds; None if unknown.

        Args:
            rungs: Rungs begun so far.
            total: (trials, iterations) of the whole sweep; None if unknown.
            workers: The sweep's workers.
            elapsed: Seconds since the start of this run.
        """
        sweep, limit = self._sweep, self._sweep.limits.max_time
        until_limit = (math.inf if limit is None else limit) - self._spent - elapsed + self._seconds_paused(elapsed)
        trials = sweep.run_cap if total is None else total[0]
        forks = sweep.early_terminate is not None and sweep.early_terminate.capabilities.forks
        if trials is None or forks or sweep.resource is not None:
            return None if limit is None or sweep.searcher.capabilities.finite else max(until_limit, 0.0)
        work = [*self._reported.values(), *list(self._ended)[len(self._ended) // 2 :]]
        known_iterations = sum(iterations for _, iterations in work)
        remaining, in_sequence = self._iterations_left(rungs, total, trials)
        few = len(self._reported) + len(self._ended) < min(_FEWEST, trials)
        if few or not known_iterations or remaining <= 0 or not workers.ready:
            return None
        pace = sum(seconds for seconds, _ in work) / known_iterations
        iterations = max(remaining / workers.ready, in_sequence / min(sweep.resources.widest, workers.ready))
        return max(min(iterations * pace, until_limit), 0.0)

    def _iterations_left(
        self, rungs: Sequence[RungView], total: tuple[int, int] | None, trials: int
    ) -> tuple[float, float]:
        """Return the remaining iterations: of all trials together, and of the longest part that must run in sequence.

        For rungs without a size, the promotion rate so far is assumed.
        """
        brackets: dict[int, list[RungView]] = defaultdict(list)
        for rung in rungs:
            brackets[rung.bracket].append(rung)
        created = sum(views[0].started for views in brackets.values())
        to_start = planned = longest = 0.0
        for views in brackets.values():
            size, before, below, chain = trials * views[0].started / created, 0, views[0], 0
            for rung in views:
                if rung.size is not None:
                    size = min(rung.size, trials)
                elif rung is not below:
                    size *= rung.started / max(below.finished, 1)
                length = (rung.until or 0) - before
                planned += size * length
                to_start += max(size - rung.started, 0.0) * length
                chain += length if size - rung.started >= 0.5 else 0
                before, below = rung.until or 0, rung
            longest = max(longest, chain)
        if total is not None and all(rung.size is not None for rung in rungs):
            to_start += max(total[1] - planned, 0)  # of future brackets
        running = [
            (segment.end or 0) - segment.start - self._reported.get(trial, (0.0, 0))[1]
            for trial, segment in self._running.items()
        ]
        return to_start + sum(running), longest + max(running, default=0)
