"""The state of a sweep from its journal: every trial's record, updated by events and the decisions that followed.

Reading the state needs no searcher or scheduler. A running sweep uses the same code through `SweepState`, which gets
the decisions from the scheduler. So the state that is read equals the state of the run.
"""

from __future__ import annotations

import gc
from bisect import insort
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager

from hpsearch.decision import Decision, Followed, Rungs
from hpsearch.errors import JournalError
from hpsearch.events import (
    ASK_TELL,
    Added,
    Asked,
    Changed,
    Continued,
    Dropped,
    Ended,
    Entry,
    Event,
    Exhausted,
    Extended,
    Failed,
    Finished,
    Lost,
    Noted,
    Opened,
    Pruned,
    Retried,
    Reverted,
    Saved,
    Started,
    Steered,
)
from hpsearch.schedulers.base import RungView
from hpsearch.space import Space
from hpsearch.study.trial_record import TrialRecord
from hpsearch.study.trial_records import TERMINAL, TrialRecords
from hpsearch.sweep.sweep import Sweep
from hpsearch.task import Company
from hpsearch.trial import Report, StateAt, TrialRow, TrialState

_STATES = {"promote": TrialState.WAITING, "stop": TrialState.STOPPED, "complete": TrialState.COMPLETE}


class JournaledState:
    """State of a sweep."""

    def __init__(self, sweep: Sweep) -> None:
        self._keep_all = sweep.checkpoints.keep == "all"
        self._resource = sweep.resource
        self.records = TrialRecords(
            sweep.objective, sweep.resources.workers_per_trial, sweep.strategies.is_asynchronous, sweep.repeats
        )
        self.requeued: list[int] = []
        """Trials whose segment must be started again, by number; those with a company first, grouped by company."""
        self.pruned: dict[int, bool] = {}
        """Trials that the last applied event ended for good, and whether their segment was cut short."""
        self.is_ask_tell = False
        """Whether trials run outside hpsearch. Their caller keeps their states: each resumes after its last report."""
        self.reached = 0
        """Number of trials that reached the end of a segment and have not failed."""
        self.finished_segments = 0
        self.iterations = 0
        """Number of reported iterations, including repetitions after a restart from zero."""
        self.total: tuple[int, int] | None = None
        """(trials, iterations if promotions resume) of the whole sweep; None if it is unbounded or never ran."""
        self.brackets: dict[int, Rungs] = {}
        """The plan of each bracket that has begun."""
        self._started: Counter[tuple[int, int]] = Counter()  # trials by (bracket, rung)
        self._finished: Counter[tuple[int, int]] = Counter()

    def read(self, entries: Iterable[Entry]) -> Iterator[Entry]:
        """Apply a journal's entries, and yield them.

        Raises:
            JournalError: The entries don't belong to one sweep.
        """
        for entry in entries:
            try:
                self.apply(entry.event)
                self.follow(entry.followed)
            except (ValueError, LookupError) as error:
                raise JournalError(
                    f"the journal holds {entry.event}, which can't have happened there: {error}. Restore it from a "
                    "copy, or start anew in another directory."
                ) from error
            yield entry

    def apply(self, event: Event) -> None:
        """Apply an event; call `follow` next.

        Raises:
            ValueError: The event's attempt isn't running.
        """
        self.pruned = {}
        match event:
            case Started():
                self._start(event)
            case Saved() | Finished() | Failed() | Lost() | Reverted():
                self._attempt(event)
            case Noted():
                self.records.of(event.trial).note(event.notes)
            case Opened() | Ended():
                if isinstance(event, Opened):
                    self._open(event)
                self._requeue_running()
            case Dropped():
                self.records.drop(event.trial)
            case Pruned():
                self._prune(event)
            case Continued():
                self.records.train_on(event)
                self._queue(event.trial)
            case Steered():
                if event.request is None and not self.is_ask_tell:
                    self._requeue_running()
            case Changed():
                self.records.use_defaults(Space.from_json(event.parameters))
            case Asked() | Retried() | Added() | Exhausted() | Extended():
                pass  # `follow` applies their effects

    def follow(self, followed: Followed) -> None:
        """Apply the decisions that followed from the last event."""
        for decision in followed.decisions:
            if decision.action == "withdraw":
                self._withdraw(decision.trial)
            else:
                self.records.decide(decision.trial, _STATES[decision.action], decision.reason)
        if followed.plan is not None:
            self.total = followed.plan.total
            self.brackets.update(followed.plan.brackets)

    def leave(self, ended: Ended) -> None:
        """Mark the attempts of the last process, which died, as lost.

        Trials that had been pruned by then end, as the next process that runs the study will record.
        """
        self.apply(ended)
        self.follow(Followed([Decision(trial, "stop", self.records.of(trial).pruned) for trial in self.pruned]))

    def turn(self, event: Event) -> int:
        """Return the position of an event's segment among the segments to start again; 0 if it is none of them.

        Their order doesn't affect results, and earlier versions had another order.
        """
        if isinstance(event, Started) and event.segment.trial in self.requeued:
            return self.requeued.index(event.segment.trial)
        return 0

    def rungs(self) -> Sequence[RungView]:
        """Return the rungs of the brackets that have begun."""
        return [
            RungView(bracket, rung, until, size, self._started[bracket, rung], self._finished[bracket, rung])
            for bracket, rungs in sorted(self.brackets.items())
            for rung, (until, size) in enumerate(rungs)
        ]

    def rows(self) -> list[TrialRow]:
        """Return every trial, by number."""
        return self.records.rows()

    def leaders(self) -> list[TrialRow]:
        """Return the non-dominated trials, by number. With one goal this is the best trial; on a tie, the first."""
        return self.records.leaders()

    def counts(self) -> dict[TrialState, int]:
        """Count the trials by state."""
        return dict(self.records.counts)

    def obsolete(self, fork_states: Collection[StateAt] = ()) -> list[str]:
        """Return the checkpoints that are no longer needed, each once, and the packs with only such checkpoints.

        Checkpoints are addresses, and packs are paths, both relative to the study's directory.

        Args:
            fork_states: Trial states that searcher or scheduler may still fork from.
        """
        return self.records.obsolete(fork_states, keep_all=self._keep_all)

    def _open(self, event: Opened) -> None:
        self.is_ask_tell = event.backend == ASK_TELL
        self.records.open(event.code)
        if event.workers_per_trial is not None:
            self.records.least_width = event.workers_per_trial

    def _start(self, event: Started) -> None:
        trial = event.segment.trial
        if trial in self.requeued:
            self.requeued.remove(trial)
        else:
            self._started[event.bracket, event.rung] += 1
        self.records.start(event)

    def _attempt(self, event: Saved | Finished | Failed | Lost | Reverted) -> None:
        trial = event.trial
        record = self.records.of(trial) if trial in self.records.running else None
        if record is None or record.segment is None or record.segment.attempt != event.attempt:
            raise ValueError("that attempt doesn't run")
        if not isinstance(event, Saved):
            record.seconds += event.seconds
        if isinstance(event, Saved | Finished | Failed) and self._resource is not None:
            record.spend(event.reports, self._resource)
        match event:
            case Saved():
                if event.checkpoint is not None:
                    record.save(event.iteration, event.checkpoint)
                record.losses = 0
                self._count(trial, event.reports)
            case Finished():
                self._finish(event, record, record.segment.end)
            case Failed():
                self._fail(event, record)
            case Lost():
                record.losses += event.counts_against_trial
                record.excused += event.seconds
                record.lose(event.then, event.company)
                self._requeue(trial)
            case Reverted():
                record.losses = 0
                self._requeue(trial)
                before = record.result.iterations
                self.records.revert(trial, event.reason, event.checkpoint)
                self.iterations -= before - record.result.iterations

    def _finish(self, event: Finished, record: TrialRecord, end: int | None) -> None:
        record.losses = 0
        record.lanes = max(record.lanes, event.lanes)
        if event.checkpoint is not None:
            record.save(event.iteration, event.checkpoint)
        self._count(event.trial, event.reports)
        if event.cut and (end is None or event.iteration < end):
            self._requeue(event.trial)
            return
        self.reached += not record.reached_rung
        record.settle()
        self.records.release(event.trial, TrialState.WAITING)
        self.finished_segments += 1
        self._count_end(record)
        if record.pruned:
            self.pruned[event.trial] = False

    def _fail(self, event: Failed, record: TrialRecord) -> None:
        record.failures += 1
        if event.retry:
            self._requeue(event.trial)
            return
        if record.continued is not None:  # it keeps what it had
            self.records.release(event.trial, TrialState.WAITING)
            return
        record.former_result = record.result
        self.reached -= record.reached_rung
        self._count(event.trial, event.reports)
        self.records.release(event.trial, TrialState.FAILED)
        self.records.fail(event.trial, event.failure)
        self._count_end(record)

    def _withdraw(self, trial: int) -> None:
        record = self.records.of(trial)
        before = record.result.iterations
        self.records.retry(trial)
        self.iterations -= before - record.result.iterations
        self.reached += record.reached_rung
        self._finished[record.bracket, record.rung] -= 1
        self._queue(trial)

    def _prune(self, event: Pruned) -> None:
        record = self.records.of(event.trial)
        if record.state in TERMINAL or record.pruned:
            raise ValueError(f"trial {event.trial} is {record.state}, so that it can't be pruned")
        record.pruned = event.reason
        if event.trial in self.requeued:
            self.requeued.remove(event.trial)
            self._cut_short(record)
        elif record.segment is None:
            self.pruned[event.trial] = False

    def _requeue_running(self) -> None:
        for trial in sorted(self.records.running):
            self._requeue(trial)

    def _requeue(self, trial: int) -> None:
        self.records.release(trial, TrialState.WAITING)
        record = self.records.of(trial)
        if record.pruned:
            self._cut_short(record)
        else:
            self._queue(trial)

    def _queue(self, trial: int) -> None:
        def turn(trial: int) -> tuple[bool, Company, int]:
            company = self.records.of(trial).company
            return not company, company, trial

        insort(self.requeued, trial, key=turn)

    def _cut_short(self, record: TrialRecord) -> None:
        """End the segment of a pruned trial that was to be started again."""
        self.pruned[record.trial.number] = True
        self._count_end(record)

    def _count_end(self, record: TrialRecord) -> None:
        """Count the end of a segment in its rung, which a trial that trains on has left."""
        if record.continued is None:
            self._finished[record.bracket, record.rung] += 1

    def _count(self, trial: int, reports: Sequence[Report]) -> None:
        record = self.records.of(trial)
        before = record.result.iterations
        self.records.count(trial, reports)
        self.iterations += record.result.iterations - before if self.is_ask_tell else len(reports)
        if self.is_ask_tell:
            record.checkpoint_iteration = record.result.iterations


@contextmanager
def no_collections() -> Iterator[None]:
    """Disable Python's garbage collector while a journal is read: nothing is garbage, and 10 % of the time is saved."""
    rests = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if rests:
            gc.enable()
