"""How long a sweep will still take: what is left to run, by what the trials so far took."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from hpsearch.events import Dropped, Event, Failed, Finished, Lost, Opened, Reverted, Saved, Started, Steered
from hpsearch.observers.costs import Batch, Cost, Pace, Running, mean_beside
from hpsearch.observers.rounds import Rounds
from hpsearch.schedulers.base import RungView
from hpsearch.sweep.sweep import Sweep
from hpsearch.task import Workers
from hpsearch.trial import Report

__all__ = ["TimeLeft"]

FEWEST_TRIALS = 3
"""Trials whose pace must be known before anything is said of others."""

FEWEST_PROMOTIONS = 4
"""Trials that must have ended in a rung before the share of those that go on is taken from it."""

SURE = 1.5
"""Standard errors by which the estimate may be off without being off by a factor of two."""

EARLY = 1.5
"""The part of the share of segments that end by themselves by which the longest one may be off."""

BESIDE = 0.3
"""The part of the shorter of two bounds that comes on top of the longer: the last rungs leave workers free."""

UNSURE = 3.0
"""By which factor the bounds of what lanes will take may differ: what lies between is right within a factor of two."""

MOST_TRIALS = 300
"""The newest ones by whose pace that of others is told: a look mustn't take longer in a longer sweep."""

_SATURATED_SEGMENTS = 10
"""Segments of each worker after which it is known what lies between them."""


class TimeLeft:
    """Estimates the seconds that a sweep will still take, where it can expect to be right within a factor of two.

    What is left to run is what the rungs still hold; where a rung has no size, the share of those that went on so far
    goes on. It takes as long as the work does on all workers, or as the longest chain of segments that must follow each
    other, which bound it from below (Graham 1969), and both together from above.
    """

    def __init__(self, sweep: Sweep, spent: float = 0.0, live: bool = True) -> None:
        """Begin with nothing known.

        Args:
            sweep: What is run.
            spent: Seconds that former runs took of `limits.max_time`.
            live: Reports come as they are made; False: with what the journal holds alone, so that a segment that runs
                has got as far as others would have by now.
        """
        self._sweep = sweep
        self._spent = spent
        self._live = live
        ends = any(goal.target is not None for goal in sweep.objective.goals) or sweep.limits.patience is not None
        self._may_end_any_time = ends
        self._lanes = sweep.resources.lanes
        self._reset()

    def _reset(self) -> None:
        self._now = 0.0
        self._ready = 1
        self._rounds = Rounds()
        self._crowd = 0.0  # seconds of all segments that ran
        self._paces: dict[int, Pace] = {}
        self._running: dict[int, Running] = {}
        self._beside = {True: deque[float](maxlen=MOST_TRIALS), False: deque[float](maxlen=MOST_TRIALS)}
        """Worker seconds of each ended segment beside its iterations: of those from zero, and of those that go on."""
        self._planned = self._ran = 0  # iterations of the segments that ended
        self._early = self._ends = 0  # those that ended by themselves before their end, and all
        self._saturated = 0.0  # worker seconds in which no worker was free
        self._worked = 0.0  # those that segments were charged for then
        self._ended = 0  # segments
        self._was_full = False
        self._rested = 0.0  # seconds of former pauses
        self._paused_since: float | None = None

    def observe(self, event: Event) -> None:
        """Take an event; a new run of the study begins anew, as it may run elsewhere."""
        match event:
            case Opened():
                self._reset()
            case Started(segment=segment, bracket=bracket, rung=rung):
                new = Running(self._now, segment.start, segment.end, segment.width, bracket, rung)
                new.seen = self._now, self._crowd
                self._running[segment.trial] = new
            case Saved(reports=reports):
                self.report(reports)
            case Finished(trial=trial, reports=reports, seconds=seconds, cut=cut):
                self.report(reports)
                self._end(trial, seconds, whole=not cut)
            case Failed(trial=trial, reports=reports, seconds=seconds, retry=retry):
                self.report(reports)
                self._end(trial, seconds, whole=not retry)
            case Lost(trial=trial) | Reverted(trial=trial):
                self._running.pop(trial, None)
            case Dropped(trial=trial) if trial in self._paces:
                self._paces[trial].until = 0
            case Steered(verb="pause", refused=""):
                self._paused_since = self._now
            case Steered(verb="resume", refused=""):
                self._rested, self._paused_since = self._resting, None

    def report(self, reports: Sequence[Report]) -> None:
        """Take reports, live or of an event; each iteration counts once."""
        for report in reports:
            running = self._running.get(report.trial)
            if report.trial not in self._paces:
                self._forget()
            pace = self._paces.setdefault(report.trial, Pace())
            if running is None or report.iteration <= pace.until:
                continue
            seconds = report.seconds * running.width
            pace.until = report.iteration
            running.reported += 1
            self._charge(running, seconds)
            if running.reported == 1:
                pace.first = seconds
            else:
                pace.seconds += seconds
                pace.iterations += 1
                if self._lanes > 1 and running.width == 1:
                    self._take_round(pace, self._beside_each_other(running), seconds)

    def pass_on(self, workers: Workers, elapsed: float) -> None:
        """Let time pass.

        Args:
            workers: Who runs it from now on.
            elapsed: Seconds of this run; must rise from call to call.
        """
        since, self._now = elapsed - self._now, elapsed
        self._crowd += since * len(self._running)
        if self._was_full:
            self._saturated += since * workers.ready
        self._ready = max(workers.ready, 1)
        self._was_full = workers.ready > 0 and workers.busy >= workers.ready

    def estimate(
        self, rungs: Sequence[RungView], total: tuple[int, int] | None, workers: Workers, elapsed: float
    ) -> float | None:
        """Give the seconds that are left, None where they can't be told within a factor of two.

        Args:
            rungs: Those begun so far.
            total: (trials, iterations) of the whole sweep, where they are known.
            workers: Who runs it.
            elapsed: Seconds of this run; must rise from call to call.
        """
        self.pass_on(workers, elapsed)
        if self._may_end_any_time:
            return None
        limit = self._sweep.limits.max_time
        ran = self._spent + elapsed - self._resting
        until_limit = math.inf if limit is None else max(limit - ran, 0.0)
        if total is None and self._sweep.run_cap is None:  # nothing but the limit ends it
            return None if limit is None or self._sweep.searcher.finite else until_limit
        left = self._left(rungs, total)
        if left is None or not workers.ready or 2 * workers.wanted > 3 * workers.ready:
            return None
        seconds = self._seconds(left, workers) if self._lanes == 1 else self._seconds_of_lanes(left, workers.ready)
        return None if seconds is None else min(seconds, until_limit)

    @property
    def _resting(self) -> float:
        """Seconds of this run in which it was paused, which don't count towards `limits.max_time`."""
        return self._rested + (0.0 if self._paused_since is None else self._now - self._paused_since)

    def _forget(self) -> None:
        """Make room for another trial's pace: what runs stays."""
        if len(self._paces) >= MOST_TRIALS:
            oldest = next((trial for trial in self._paces if trial not in self._running), None)
            if oldest is not None:
                del self._paces[oldest]

    def _end(self, trial: int, seconds: float, whole: bool) -> None:
        running = self._running.pop(trial, None)
        if running is None:
            return
        if whole and running.end is not None:
            at = max(self._paces[trial].until if trial in self._paces else 0, running.start)
            self._planned += running.end - running.start
            self._ran += at - running.start
            self._ends += 1
            self._early += at < running.end
        worked = seconds * running.width
        pace = self._paces.get(trial)
        if pace is not None and seconds and running.reported:
            self._beside[running.start == 0].append(max(worked - running.reported * pace.mean, 0.0))
        self._charge(running, max(worked - running.charged, 0.0))
        self._ended += self._was_full

    def _beside_each_other(self, running: Running) -> float:
        """Give how many ran on a worker since a segment was last heard of."""
        (since, crowd), running.seen = running.seen, (self._now, self._crowd)
        passed = self._now - since
        running.beside = (self._crowd - crowd) / passed if passed else running.beside or len(self._running)
        return max(running.beside / self._ready, 1.0)

    def _take_round(self, pace: Pace, trials: float, seconds: float) -> None:
        """Take a trial's part of a round, and how that is beside the average trial's."""
        expected = self._rounds.seconds(1.0, trials)
        self._rounds.add(trials, seconds)
        if expected is not None and expected[0]:
            pace.factor = 0.5 * (pace.factor + seconds * trials / expected[0])

    def _charge(self, running: Running, seconds: float) -> None:
        running.charged += seconds
        if self._was_full:
            self._worked += seconds

    def _left(self, rungs: Sequence[RungView], total: tuple[int, int] | None) -> dict[int, list[Batch]] | None:
        """Give what is left beside what runs, by bracket and rung; None where that isn't known."""
        sweep = self._sweep
        early, most = sweep.early_terminate, sweep.iterations
        trials = sweep.run_cap if total is None else total[0]
        if most is None or trials is None or not rungs or (early is not None and early.forks):
            return None
        brackets: dict[int, list[RungView]] = defaultdict(list)
        for rung in rungs:
            brackets[rung.bracket].append(rung)
        sized = all(rung.size is not None for rung in rungs)
        to_come = trials - sum(views[0].size or views[0].started for views in brackets.values())
        each = 0.0 if sized else to_come / len(brackets)
        left = {bracket: list(self._of_bracket(views, each)) for bracket, views in brackets.items()}
        if any(math.isnan(batch.trials) for batches in left.values() for batch in batches):
            return None
        if sized and to_come > 0 and total is not None:  # brackets that haven't begun
            planned = sum(
                (rung.size or 0) * ((rung.until or 0) - ((before.until or 0) if before else 0))
                for views in brackets.values()
                for before, rung in zip([None, *views], views, strict=False)
            )
            average = max(total[1] - planned, 0) / to_come
            rest = Batch(0.0, max(most - average, 0.0), True)
            left[max(left) + 1] = [Batch(float(to_come), average, False), rest]
        return left

    def _of_bracket(self, views: Sequence[RungView], to_come: float) -> Iterator[Batch]:
        """Give what a bracket's rungs still hold beside what runs; where a rung has no size, by what went on so far."""
        before, share, coming, doubt = 0, math.nan, to_come, 0.0
        for place, rung in enumerate(views):
            until = rung.until or 0
            if rung.size is not None:
                coming = float(rung.size - rung.started)
            elif place:
                below = views[place - 1]
                if below.finished >= FEWEST_PROMOTIONS:
                    share = rung.started / below.finished
                    doubt += math.sqrt(max(1.0 - share, 0.0) / (max(share, 0.1) * below.finished))
                # Of those that wait below some may yet go on, as others come that are worse.
                expected = share * (below.started + coming)
                coming = max(expected - rung.started, 0.0) if coming or below.started > below.finished else 0.0
            yield Batch(max(coming, 0.0), until - before, place > 0, doubt * max(coming, 0.0))
            before = until

    def _seconds(self, left: Mapping[int, Sequence[Batch]], workers: Workers) -> float | None:
        batches = [batch for rungs in left.values() for batch in rungs]
        paces = self._known_paces(any(batch.trials and batch.iterations > 1 for batch in batches))
        if not paces:
            return None
        least, widest = self._sweep.resources.workers_per_trial, self._sweep.resources.widest
        lanes = max(workers.ready // least, 1)
        cost = Cost(paces, self._beside, self._ran / self._planned if self._planned else 1.0)
        known = longest = slowest = 0.0
        for trial, running in self._running.items():
            at: float = max(self._paces[trial].until, running.start) if trial in self._paces else running.start
            pace = paces.get(trial, cost.mean)
            if not self._live and pace:
                at += (self._now - running.began) * running.width / pace
            alone = max((running.end or at) - at, 0) * pace
            later = left.get(running.bracket or 0, ())[(running.rung or 0) + 1 :]
            rest = sum(batch.iterations for batch in later if batch.trials > 0) * pace
            known += alone
            longest = max(longest, alone / running.width)
            slowest = max(slowest, (alone + rest) / running.width)
        work = sum(map(cost.of, batches))
        if work and len(paces) < FEWEST_TRIALS:
            return None
        for rungs in left.values():
            chain = sum(cost.of(replace(batch, trials=1.0)) for batch in rungs if batch.trials > 0)
            longest = max(longest, chain / min(widest, workers.ready))
        if not work + known:
            return None
        stretch = self._stretch(workers.ready)
        on_all = (work + known) * stretch / (lanes * least)
        seconds = max(on_all, longest) + BESIDE * min(on_all, longest) * (1.0 - 1.0 / lanes)
        early = self._early / self._ends if self._ends else 0.0
        off = cost.off(batches) * stretch / (lanes * least)
        off += 0.5 * max(slowest - longest, 0.0) + EARLY * early * longest
        return None if SURE * off > 0.5 * seconds else seconds

    def _seconds_of_lanes(self, left: Mapping[int, Sequence[Batch]], workers: int) -> float | None:
        """Give how long workers take that train several trials beside each other.

        By the rounds that are left, and by what those that run are charged for beside the average.
        """
        if len(self._paces) < FEWEST_TRIALS or not self._live:  # the journal doesn't say who was beside whom
            return None
        if any(running.width > 1 for running in self._running.values()):  # a gang has no part in rounds
            return None
        batches = [batch for rungs in left.values() for batch in rungs]
        ran = self._ran / self._planned if self._planned else 1.0
        unknown = ran * sum(batch.trials * batch.iterations for batch in batches)
        rounds_of = {
            bracket: [ran * batch.iterations * (batch.trials > 0) for batch in rungs] for bracket, rungs in left.items()
        }
        longest = max(map(sum, rounds_of.values()), default=0.0)
        iterations = weighed = unknown
        for trial, running in self._running.items():
            pace = self._paces.get(trial, Pace())
            alone = max((running.end or 0) - max(pace.until, running.start), 0)
            iterations += alone
            weighed += alone * pace.factor
            longest = max(longest, alone + sum(rounds_of.get(running.bracket or 0, ())[(running.rung or 0) + 1 :]))
        rounds = max(longest, iterations / (workers * self._lanes))
        bounds = self._rounds.seconds(rounds, max(iterations / workers, rounds))
        if bounds is None or not iterations:
            return None
        beside = mean_beside(self._beside)
        more = sum(batch.trials * beside[not batch.selected] for batch in batches) / workers
        least, most = (bound * weighed / iterations + more for bound in bounds)
        doubt = sum(batch.doubt * batch.iterations for batch in batches)
        doubt += statistics.stdev(pace.factor for pace in self._paces.values()) * unknown
        if most > UNSURE * least or SURE * doubt > 0.5 * iterations:
            return None
        return math.sqrt(least * most) * self._stretch(workers)

    def _stretch(self, workers: int) -> float:
        """Give how many times as long as what segments were charged for workers take, with what lies between them."""
        if self._ended < _SATURATED_SEGMENTS * workers or not self._worked:
            return 1.0
        return max(self._saturated / self._worked, 1.0)

    def _known_paces(self, steady: bool) -> dict[int, float]:
        """Return worker seconds per iteration of each trial that showed some, and of those that run the usual ones.

        Args:
            steady: First iterations, which may have had to warm up, are no measure even where there is no other.
        """
        steady = steady or any(pace.iterations for pace in self._paces.values())
        reported = {trial: pace.mean for trial, pace in self._paces.items() if pace.iterations or not steady}
        if not reported:
            return {}
        # A segment of which nothing is known yet is like the others: reports travel in batches, which may take longer
        # than short trials do.
        usual = statistics.fmean(reported.values())
        return {trial: usual for trial in self._running} | reported
