"""The state of a sweep from its journal: every trial's record, updated by events and the decisions that followed.

It needs no searcher or scheduler. A running sweep uses the same code, in `SweepState`, which asks the scheduler for the
decisions, so a read state equals the one of the run.
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
    Dropped,
    Ended,
    Entry,
    Event,
    Exhausted,
    Extended,
    Failed,
    Finished,
    Lost,
    Opened,
    Pruned,
    Retried,
    Reverted,
    Saved,
    Started,
    Steered,
)
from hpsearch.schedulers.base import RungView
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
        self.records = TrialRecords(
            sweep.objective, sweep.resources.workers_per_trial, sweep.strategies.is_asynchronous
        )
        self.requeued: list[int] = []
        """Trials whose segment must be started again, by number; first those that have a company, beside each other."""
        self.pruned: dict[int, bool] = {}
        """Trials that go no further since the event that was applied last, and whether their segment was cut short."""
        self.is_ask_tell = False
        """Trials run elsewhere: whoever runs them keeps their states, so each goes on where it last reported."""
        self.reached = 0
        """Trials that reached the end of a segment, and have not failed."""
        self.finished_segments = 0
        self.iterations = 0
        """Iterations that count, repetitions from zero included."""
        self.total: tuple[int, int] | None = None
        """(trials, iterations with resume) of the whole sweep; None where it has no bound, or never ran."""
        self.brackets: dict[int, Rungs] = {}
        """The plan of each bracket begun so far."""
        self._started: Counter[tuple[int, int]] = Counter()  # trials by (bracket, rung)
        self._finished: Counter[tuple[int, int]] = Counter()

    def read(self, entries: Iterable[Entry]) -> Iterator[Entry]:
        """Apply a journal's entries, and yield them.

        Raises:
            JournalError: They don't belong to one sweep.
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
        """Apply an event; `follow` comes next.

        Raises:
            ValueError: Its attempt doesn't run.
        """
        self.pruned = {}
        match event:
            case Started():
                self._start(event)
            case Saved() | Finished() | Failed() | Lost() | Reverted():
                self._attempt(event)
            case Opened() | Ended():
                if isinstance(event, Opened):
                    self._open(event)
                self._requeue_running()
            case Dropped():
                self.records.drop(event.trial)
            case Pruned():
                self._prune(event)
            case Steered():
                if event.request is None and not self.is_ask_tell:
                    self._requeue_running()
            case Asked() | Retried() | Added() | Exhausted() | Extended():
                pass  # all that they change follows from them

    def follow(self, followed: Followed) -> None:
        """Apply what followed from the last event."""
        for decision in followed.decisions:
            if decision.action == "withdraw":
                self._withdraw(decision.trial)
            else:
                self.records.decide(decision.trial, _STATES[decision.action], decision.reason)
        if followed.plan is not None:
            self.total = followed.plan.total
            self.brackets.update(followed.plan.brackets)

    def leave(self, ended: Ended) -> None:
        """Mark the attempts of the last, dead process as lost.

        What had been pruned by then goes no further, as whoever runs the study next will write.
        """
        self.apply(ended)
        self.follow(Followed([Decision(trial, "stop", self.records.of(trial).pruned) for trial in self.pruned]))

    def turn(self, event: Event) -> int:
        """Return how many segments are to be started again before that of an event, if that is one of them.

        In which order they are changes nothing, and former versions had another one.
        """
        if isinstance(event, Started) and event.segment.trial in self.requeued:
            return self.requeued.index(event.segment.trial)
        return 0

    def rungs(self) -> Sequence[RungView]:
        """Return the rungs of the brackets begun so far."""
        return [
            RungView(bracket, rung, until, size, self._started[bracket, rung], self._finished[bracket, rung])
            for bracket, rungs in sorted(self.brackets.items())
            for rung, (until, size) in enumerate(rungs)
        ]

    def rows(self) -> list[TrialRow]:
        """Return every trial, by number."""
        return self.records.rows()

    def leaders(self) -> list[TrialRow]:
        """Return the non-dominated trials by number; with one goal the best one, ties to the lower number."""
        return self.records.leaders()

    def counts(self) -> dict[TrialState, int]:
        """Count the trials by state."""
        return dict(self.records.counts)

    def obsolete(self, fork_states: Collection[StateAt] = ()) -> list[str]:
        """Return the checkpoints that nothing needs any more, each once, and the packs that held no others.

        They are addresses, and the paths of packs, relative to the study's directory.

        Args:
            fork_states: What may still be forked, as searcher and scheduler say.
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
        self._finished[record.bracket, record.rung] += 1
        if record.pruned:
            self.pruned[event.trial] = False

    def _fail(self, event: Failed, record: TrialRecord) -> None:
        record.failures += 1
        if event.retry:
            self._requeue(event.trial)
            return
        record.former_result = record.result
        self.reached -= record.reached_rung
        self._count(event.trial, event.reports)
        self.records.release(event.trial, TrialState.FAILED)
        self.records.fail(event.trial, event.failure)
        self._finished[record.bracket, record.rung] += 1

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
        """End a segment that was to be started again."""
        self.pruned[record.trial.number] = True
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
    """Turn the collector of cycles off while a journal is read: all of it is kept, and a tenth of the time is saved."""
    rests = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if rests:
            gc.enable()
