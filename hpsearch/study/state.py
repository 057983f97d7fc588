"""The state of a sweep: searcher, scheduler and the record of every trial, moved on by events alone.

It is pure. A running sweep asks it for the next event, writes that to the journal, and applies it; a resumed
one applies the events of the journal. Both go through the same lines, so there is nothing else to restore.
"""

from __future__ import annotations

import functools
from bisect import insort
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice

from hpsearch.decision import Decision
from hpsearch.errors import JournalError
from hpsearch.events import (
    Dropped,
    Ended,
    Event,
    Exhausted,
    Extended,
    Failed,
    Finished,
    Lost,
    Opened,
    Retried,
    Reverted,
    Saved,
    Started,
)
from hpsearch.schedulers.base import Done, Outcome, Run, RungView, Wait
from hpsearch.searchers import NotYet, Observation, Searcher, Suggestion
from hpsearch.seeds import trial_seed
from hpsearch.study.build import build_scheduler
from hpsearch.study.failure_limit import Tally
from hpsearch.study.suggestions import Suggested, Suggestions
from hpsearch.study.trial_records import TrialRecord, TrialRecords
from hpsearch.sweep.sweep import Sweep
from hpsearch.trial import Failure, Report, Segment, Trial, TrialRow, TrialState

__all__ = ["StudyState"]

_OF_ATTEMPTS = (Saved, Finished, Failed, Lost, Reverted)

_STATES = {"promote": TrialState.WAITING, "stop": TrialState.STOPPED, "complete": TrialState.COMPLETE}


class StudyState:
    """Where a sweep stands and what comes next."""

    def __init__(self, sweep: Sweep, wrap: Callable[[Searcher], Searcher] = lambda searcher: searcher) -> None:
        """Begin with nothing done.

        Args:
            sweep: What is run.
            wrap: Gives what is asked in place of a searcher that learns, such as one that works off the loop.
        """
        self._sweep = sweep
        self._suggestions = Suggestions(sweep, wrap)
        self._scheduler = build_scheduler(sweep)
        self._records = TrialRecords(sweep.objective, sweep.resources.workers_per_trial)
        self._requeued: list[int] = []  # sorted: trials whose segment must be started again
        self._requested: deque[int] = deque()  # failed trials whose params are those of the next new ones
        self._retaken: set[int] = set()  # failed trials of which there is, or will be, such another
        self._reached = 0  # trials that reached the end of a segment, and have not failed
        self.finished_segments = 0
        self.iterations = 0
        """Iterations that count, those run again from zero included."""

    def next(self) -> Started | Exhausted | Wait | Done:
        """Give the event that should come next, and change nothing: `apply` moves on."""
        return next(self.upcoming())

    def upcoming(self) -> Iterator[Started | Exhausted | Wait | Done]:
        """Give the events that should come next, one by one; the first that is no `Started` is the last.

        It may have no end. The caller journals them, applies them, and acts on them.
        """
        return self._upcoming(self._suggestions.suggest)

    def has_more(self, starts: int) -> bool:
        """Say whether more segments than so many could start now, if the searcher isn't exhausted."""
        rest = max(starts - len(self._requeued), 0)
        return len(self._requeued) > starts or any(True for _ in islice(self._scheduler.upcoming(), rest, rest + 1))

    def apply(self, event: Event) -> Sequence[Decision]:
        """Move on by an event; answer what the scheduler decided on it."""
        match event:
            case Started(new=new):
                self._take(event)
                self._records.start(event)
                if new is not None:
                    self._suggestions.hear(lambda searcher: searcher.started(new))
            case Saved():
                record = self._records.of(event.trial)
                record.save(event.iteration, event.checkpoint)
                record.losses = 0
                self._count(event.trial, event.reports)
                self._observed(event.trial, event.reports)
            case Finished():
                return self._finish(event)
            case Failed():
                return self._fail(event)
            case Lost():
                record = self._records.of(event.trial)
                record.losses += event.counts_against_trial
                record.seconds += event.seconds
                record.excused += event.seconds
                self._requeue(event.trial)
            case Reverted():
                record = self._records.of(event.trial)
                record.seconds += event.seconds
                record.losses = 0
                self._requeue(event.trial)
                before = record.standing.iterations
                self._records.revert(event.trial, event.reason, event.checkpoint)
                self.iterations -= before - record.standing.iterations
                reverted, iteration = record.trial, record.standing.iterations
                self._suggestions.hear(lambda searcher: searcher.reverted(reverted, iteration))
            case Opened() | Ended():
                if isinstance(event, Opened) and event.workers_per_trial is not None:
                    self._records.least_width = event.workers_per_trial
                for trial in sorted(self._records.running):
                    self._requeue(trial)
            case Dropped():
                record = self._records.of(event.trial)
                record.drop_checkpoint()
                dropped = record.trial
                self._suggestions.hear(lambda searcher: searcher.dropped(dropped))
            case Retried():
                self._retry(event.trial)
            case Exhausted():
                self._scheduler.next()
                return self._decide(self._scheduler.exhausted())
            case Extended(run_cap=run_cap, settings=settings):
                self._scheduler.extend(run_cap, settings)
        return ()

    def replay(self, events: Iterable[Event]) -> Iterator[tuple[Event, Sequence[Decision]]]:
        """Apply the events of a journal, checking that each start is the one that this sweep would make.

        Raises:
            JournalError: One is not: the journal is of another sweep, or of a version that decides otherwise.
        """
        for event in events:
            if isinstance(event, Started | Exhausted):
                try:
                    expected = next(self._upcoming(functools.partial(self._suggested, event)))
                except ValueError as error:
                    raise _misfit(event, f"this sweep says: {error}") from error
                if isinstance(event, Started) and isinstance(expected, Started):
                    # How wide it was, and why, was decided by who was free then.
                    segment = replace(expected.segment, width=event.segment.width)
                    expected = replace(expected, segment=segment, reason=event.reason)
                    if event.bracket is None:  # a journal of a former version
                        event = replace(event, bracket=expected.bracket, rung=expected.rung)
                if expected != event:
                    raise _misfit(event, f"this sweep gives {expected}")
            elif isinstance(event, _OF_ATTEMPTS) and not self._runs(event.trial, event.attempt):
                raise _misfit(event, "that attempt doesn't run")
            try:
                decisions = self.apply(event)
            except ValueError as error:
                raise _misfit(event, f"this sweep says: {error}") from error
            yield event, decisions

    def record(self, trial: int) -> TrialRecord:
        """Give a trial's record."""
        return self._records.of(trial)

    def widest(self, trial: int) -> int | None:
        """Give the workers that a trial may have at most; None: as many as any."""
        return self._records.widest(trial)

    def failed(self) -> list[int]:
        """Give the trials that have failed and not been retried, by number."""
        rows = (record.trial.number for record in self._records if record.state is TrialState.FAILED)
        return [trial for trial in rows if trial not in self._retaken]

    def may_run_again(self, trial: int) -> bool:
        """Say whether a trial has failed and its rung isn't decided, so that `Retried` runs the trial itself again."""
        return self._scheduler.may_withdraw(trial)

    def room(self) -> int | None:
        """Count the new trials that may still be created beside those that were asked for; None: no bound."""
        total = self._scheduler.total()
        return None if total is None else total[0] - len(self._records) - len(self._requested)

    def tally(self) -> Tally:
        """Count the trials that have failed, and those that have failed or reached the end of a segment."""
        failed = self._records.counts[TrialState.FAILED]
        return Tally(failed, failed + self._reached)

    def running(self) -> Sequence[Segment]:
        """Give the segments that run, by trial number."""
        return self._records.segments()

    def ready(self) -> int:
        """Count the segments that `next` would give now; where new trials have no known bound, at least one."""
        return len(self._requeued) + self._scheduler.ready()

    def close(self) -> None:
        """Let go of the searcher: nothing more is asked."""
        self._suggestions.close()

    @property
    def is_searching(self) -> bool:
        """Whether a trial waits for the searcher, which is to be asked again."""
        return self._suggestions.working

    @property
    def idle(self) -> bool:
        """Whether nothing runs."""
        return not self._records.running

    def rows(self) -> list[TrialRow]:
        """Give every trial, by number."""
        return self._records.rows()

    def best(self) -> TrialRow | None:
        """Give the best trial by its value; ties go to the lower number."""
        return self._records.best()

    def counts(self) -> dict[TrialState, int]:
        """Count the trials by state."""
        return dict(self._records.counts)

    def rungs(self) -> Sequence[RungView]:
        """Give the rungs of the brackets begun so far."""
        return self._scheduler.rungs()

    def total(self) -> tuple[int, int] | None:
        """Give (trials, iterations with resume) of the whole sweep, None where it has no bound."""
        total, size = self._scheduler.total(), self._suggestions.size
        if size is None or (total is not None and total[0] <= size):
            return total
        iterations = self._sweep.iterations
        if self._sweep.early_terminate is None and iterations is not None:
            return size, size * iterations
        return None

    def obsolete(self) -> list[str]:
        """Give the checkpoints that nothing needs any more, each once; relative to the study's directory."""
        return self._records.obsolete(keep_all=self._sweep.checkpoints.keep == "all")

    def checkpoints(self) -> set[str]:
        """Give the checkpoints that are kept."""
        return self._records.checkpoints()

    def _upcoming(self, suggest: Callable[[int], Suggested]) -> Iterator[Started | Exhausted | Wait | Done]:
        idle = True
        for trial in tuple(self._requeued):
            idle = False
            record = self._records.of(trial)
            yield Started(record.again(), None, bracket=record.bracket, rung=record.rung)
        requested = tuple(self._requested)
        # The searcher's order has no gaps: what it would have suggested in place of a requested trial comes next.
        shift, created = len(self._retaken), len(self._records)
        for answer in self._scheduler.upcoming():
            idle = False
            if isinstance(answer, Run):
                segment = self._records.of(answer.trial).on(answer.until)
                yield Started(segment, None, bracket=answer.bracket, rung=answer.rung)
                continue
            place = answer.number - created
            if place < len(requested):
                suggested: Suggested = Suggestion(self._records.of(requested[place]).trial.params, "retry"), None
            else:
                suggested = suggest(answer.number - shift)
            suggestion, seen = suggested
            if isinstance(suggestion, NotYet):
                break
            if suggestion is None:
                yield Exhausted()
                return
            seed = trial_seed(self._sweep.seed, answer.number)
            trial_ = Trial(answer.number, suggestion.params, seed, suggestion.origin)
            segment = Segment(answer.number, 0, answer.until, None, 1)
            yield Started(segment, trial_, bracket=answer.bracket, rung=answer.rung, seen=seen)
        yield Done() if idle and not self._scheduler.busy else Wait()

    def _suggested(self, event: Started | Exhausted, number: int) -> Suggested:
        """Give what the searcher said when the event was written; `number` is checked with the whole event.

        One that learns is asked again, as it has to go on from there.
        """
        if isinstance(event, Exhausted) or event.new is None:
            return None, None
        if self._suggestions.learns:
            return self._suggestions.suggest_again(number, event.seen), event.seen
        return Suggestion(event.new.params, event.new.origin), None

    def _take(self, event: Started) -> None:
        """Count a segment as started."""
        trial = event.segment.trial
        if trial in self._requeued:
            self._requeued.remove(trial)
            return
        self._scheduler.next()
        if event.new is None:
            return
        if self._requested:
            self._requested.popleft()
        else:
            self._suggestions.started(trial - len(self._retaken))

    def _retry(self, trial: int) -> None:
        record = self._records.of(trial)
        if not self._scheduler.may_withdraw(trial):
            if record.state is not TrialState.FAILED or trial in self._retaken:
                raise ValueError(f"only a failed trial can be retried, and once; trial {trial} is {record.state}")
            self._requested.append(trial)
            self._retaken.add(trial)
            return
        self._scheduler.withdraw(trial)
        before = record.standing.iterations
        self._records.retry(trial)
        self.iterations -= before - record.standing.iterations
        self._reached += record.reached_rung
        insort(self._requeued, trial)

    def _runs(self, trial: int, attempt: int) -> bool:
        if trial not in self._records.running:
            return False
        segment = self._records.of(trial).segment
        return segment is not None and segment.attempt == attempt

    def _requeue(self, trial: int) -> None:
        self._records.release(trial, TrialState.WAITING)
        insort(self._requeued, trial)

    def _count(self, trial: int, reports: Sequence[Report]) -> None:
        self.iterations += len(reports)
        self._records.count(trial, reports)

    def _observed(
        self,
        trial: int,
        reports: Sequence[Report],
        ended: bool = False,
        failure: Failure | None = None,
        decisions: Sequence[Decision] = (),
    ) -> None:
        """Let the searcher hear what a trial gave."""
        record = self._records.of(trial)
        observation = Observation(record.trial, record.standing.iterations, reports, ended, failure, decisions)
        self._suggestions.hear(lambda searcher: searcher.observe(observation))

    def _finish(self, event: Finished) -> Sequence[Decision]:
        record = self._records.of(event.trial)
        segment = record.segment
        assert segment is not None, f"{event} ends an attempt that doesn't run"
        record.seconds += event.seconds
        record.losses = 0
        if event.checkpoint is not None:
            record.save(event.iteration, event.checkpoint)
        self._count(event.trial, event.reports)
        if event.cut and (segment.end is None or event.iteration < segment.end):
            self._requeue(event.trial)
            self._observed(event.trial, event.reports)
            return ()
        self._reached += not record.reached_rung
        record.settle()
        self._records.release(event.trial, TrialState.WAITING)
        self.finished_segments += 1
        value = float("nan") if record.standing.value is None else record.standing.value
        decisions = self._decide(self._scheduler.observe(Outcome(event.trial, event.iteration, value)))
        self._observed(event.trial, event.reports, True, None, decisions)
        return decisions

    def _fail(self, event: Failed) -> Sequence[Decision]:
        record = self._records.of(event.trial)
        record.failures += 1
        record.seconds += event.seconds
        if event.retry:
            self._requeue(event.trial)
            return ()
        record.sound = record.standing
        self._reached -= record.reached_rung
        self._count(event.trial, event.reports)
        self._records.release(event.trial, TrialState.FAILED)
        self._records.fail(event.trial, event.failure)
        decisions = self._decide(self._scheduler.observe(Outcome(event.trial, record.standing.iterations, None)))
        self._observed(event.trial, event.reports, True, event.failure, decisions)
        return decisions

    def _decide(self, decisions: Sequence[Decision]) -> Sequence[Decision]:
        for decision in decisions:
            self._records.decide(decision.trial, _STATES[decision.action], decision.reason)
        return decisions


def _misfit(event: Event, instead: str) -> JournalError:
    return JournalError(
        f"the journal doesn't replay: it holds {event}, where {instead}. "
        "It was written by a version of hpsearch that decides otherwise; resume with that one."
    )
