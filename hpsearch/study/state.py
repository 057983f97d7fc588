"""The state of a sweep: searcher, scheduler, records, widths and stopping criteria. Only events change it.

It has no side effects. A running sweep requests the next event, writes it to the journal, and applies it. A resumed
sweep applies the events of the journal. Both use the same code, so there is nothing else to restore.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice, tee

from hpsearch.decision import Decision, Followed, PlanChange
from hpsearch.errors import JournalError
from hpsearch.events import (
    Added,
    Asked,
    Changed,
    Continued,
    Entry,
    Event,
    Exhausted,
    Extended,
    Failed,
    Finished,
    Retried,
    Saved,
    Started,
)
from hpsearch.journal.event_codec import encode_followed
from hpsearch.schedulers.base import Done, NewTrial, Outcome, Run, RungView, Scheduler, Wait, ran
from hpsearch.searchers import Past, Suggestion
from hpsearch.searchers.first_trials import STAND_IN
from hpsearch.study.build import build_scheduler
from hpsearch.study.change import changed, fitted_past, searched, spaces_of, translator
from hpsearch.study.extension import extended
from hpsearch.study.journaled_state import JournaledState
from hpsearch.study.new_trials import Requested, first_start, record_of_parent
from hpsearch.study.stopping import StoppingCriteria, Tally
from hpsearch.study.suggestions import CallsOf, NotYet, Suggestions, direct_calls
from hpsearch.study.trial_record import TrialRecord
from hpsearch.study.trial_records import SegmentReports
from hpsearch.sweep.sweep import Sweep
from hpsearch.trial import CAPACITY, Costs, Report, Segment, Trial, TrialRow, TrialState
from hpsearch.widths.widths import RESTART_SECONDS, Widths

Next = Started | Asked | Exhausted | Wait | Done
"""The possible next steps of a sweep."""


class SweepState:
    """The state of a sweep, and its next event."""

    def __init__(
        self,
        sweep: Sweep,
        calls_of: CallsOf = direct_calls,
        past: Sequence[Past] = (),
        *,
        current: Sweep | None = None,
        restart: float = RESTART_SECONDS,
    ) -> None:
        """Create the state of a sweep that hasn't begun.

        Args:
            sweep: The sweep as the study was created.
            calls_of: Returns the object that calls a searcher that learns, for example in a separate process.
            past: Trials of other searches, for the searcher's warm start.
            current: The sweep as it is run now, if targets, limits or resources have changed; None: `sweep`.
            restart: Estimated seconds to cut and resume a segment, until this has been measured.
        """
        self.sweep = sweep if current is None else current
        """The current sweep, with its extensions and changes."""
        self._stored = sweep
        self._calls_of = calls_of
        self._past = past
        self._scheduler = build_scheduler(sweep)
        self._journaled = JournaledState(sweep)
        self._searches = [Suggestions(sweep, self._journaled, calls_of, past)]
        """Those of each space: the first one, and that of each change."""
        self._changes: list[Changed] = []
        """Changes of the space; a journal's are known before it is replayed, so that each searcher gets all events."""
        self._changed = 0
        """Number of applied changes."""
        self.is_stale = False
        """Whether the space was changed after events that the new searcher didn't get: replay the journal."""
        self._closed = 0
        """Number of searchers that are closed, as the next trial is from a later space."""
        self.records = self._journaled.records
        self._reports = SegmentReports()
        self.requested = Requested(self.records, sweep.parameters, sweep.seed)
        """Configurations that new trials take before any suggestion."""
        self._exhausted = False
        self._more_iterations = 0  # of trials that train on after their end
        self._position = 0  # number of the next suggestion in the searcher's order, which has no gaps
        self._gone: list[str] = []  # checkpoints that `obsolete` hasn't returned yet
        resources = self.sweep.resources
        self.widths = Widths(
            resources.workers_per_trial,
            resources.widest,
            self.records.widest,
            restart,
            alone_first=resources.lanes > 1,
            narrowest=self.records.narrowest,
        )
        """Sets the number of workers of each segment."""
        self.stopping = StoppingCriteria(self.sweep, self.records.standing)
        """Ends the sweep early."""

    def _search_of(self, trial: int) -> int:
        """Return the index of the space that a new trial is from: that of the last change up to its number."""
        begun = (index for index in range(self._changed, 0, -1) if self._changes[index - 1].from_trial <= trial)
        return next(begun, 0)

    def _suggestions_for(self, trial: int) -> Suggestions:
        return self._searches[self._search_of(trial)]

    @property
    def _suggestions(self) -> Suggestions:
        """The suggestions of the next new trial."""
        return self._suggestions_for(len(self.records))

    def next(self) -> Next:
        """Return the event that should come next. The state changes only in `apply`."""
        return next(self.upcoming())

    def upcoming(self, stand_in: bool = False) -> Iterator[Next]:
        """Yield the events that should come next. The last one is the first that isn't `Started`.

        There may be no last one. The caller journals each event, applies it, and acts on it.

        Args:
            stand_in: Whether a trial whose suggestion isn't ready runs a random configuration, if the sweep allows it.
        """

        def suggest(answer: NewTrial, position: int, parent: Trial | None) -> Suggestion | Asked | NotYet | None:
            suggestions = self._suggestions_for(answer.number)
            return suggestions.suggest(position, answer.number, answer.bracket, parent, stand_in)

        assert not self.is_stale
        return self._upcoming(suggest)

    def request(self) -> Asked | None:
        """Return the event that requests a suggestion in advance; None if there is none to request."""
        if not self._suggestions.learns:
            return None
        new = next((answer for answer in self._scheduler.upcoming() if isinstance(answer, NewTrial)), None)
        if new is None or new.parent is not None or new.repeat:
            return None
        return self._suggestions.request(self._position, new.bracket)

    def prepare(self) -> None:
        """Repeat the requests for suggestions that were requested earlier and not used."""
        self._suggestions.prepare()

    def has_more(self, starts: int) -> bool:
        """Return whether more than `starts` segments could start now, if the searcher isn't exhausted."""
        remaining = starts - len(self._journaled.requeued)
        return remaining < 0 or any(True for _ in islice(self._scheduler.upcoming(), remaining, remaining + 1))

    def restricted_count(self) -> int:
        """Return the number of segments that may share a worker only with certain trials. These start first."""
        return sum(1 for trial in self._journaled.requeued if self.records.of(trial).company)

    def apply(self, event: Event) -> Followed:
        """Apply an event; return the decisions that followed, which are journaled with it."""
        if isinstance(event, Started | Exhausted):
            self._record_start(event)
        self._journaled.apply(event)
        decisions = self._decided(event)
        followed = Followed(decisions, self._plan(event))
        self._journaled.follow(followed)
        if isinstance(event, Asked):
            self._suggestions.record_request(event)
        while self._closed < self._search_of(len(self.records)):
            self._searches[self._closed].close()
            self._closed += 1
        for suggestions in self._searches[self._closed :]:
            suggestions.observe(event, decisions)
            for trial, cut_short in self._journaled.pruned.items():
                if cut_short:
                    suggestions.observe_pruned(trial, decisions)
        # Done here, not where files are deleted: a replay must release the same checkpoints.
        self._gone += self._journaled.obsolete({*self._suggestions.needs(), *self._scheduler.needs()})
        self.widths.observe(event, decisions)
        self.stopping.observe(event, decisions)
        return followed

    def replay(self, events: Iterable[Event]) -> Iterator[tuple[Event, Followed]]:
        """Apply the events of a journal, and check that this sweep would start the same segments.

        Raises:
            JournalError: A start differs: another sweep, or a version with other decisions, wrote the journal.
        """
        events = list(events)
        for event in events:
            if isinstance(event, Changed):
                self._prepare_change(event)
        for suggestions in self._searches:
            suggestions.replaying = True
        for event in events:
            if isinstance(event, Started | Exhausted):
                try:
                    upcoming = self._upcoming(functools.partial(self._suggested, event))
                    expected = next(islice(upcoming, self._journaled.turn(event), None))
                except ValueError as error:
                    raise _misfit(event, f"this sweep says: {error}") from error
                if isinstance(event, Started) and isinstance(expected, Started):
                    expected = _as_then(expected, event)
                if expected != event:
                    raise _misfit(event, f"this sweep gives {expected}")
            try:
                followed = self.apply(event)
            except ValueError as error:
                raise _misfit(event, f"this sweep says: {error}") from error
            yield event, followed
        for suggestions in self._searches:
            suggestions.replaying = False
        self._gone.clear()  # a process that opens the study deletes all checkpoints that no event names
        for trial in sorted({*self.records.running, *self._journaled.requeued}):  # that process watched them live
            self._watch(self._reports.up_to(trial, self.records.of(trial).result.iterations))

    def resume(self, entries: Iterable[Entry]) -> Iterator[Entry]:
        """Replay a journal's entries, and yield them.

        Raises:
            JournalError: See `replay`; or the decisions that followed from an event differ from those in the journal.
        """
        entries, journaled = tee(entries)
        for (event, followed), entry in zip(self.replay(entry.event for entry in entries), journaled, strict=True):
            if encode_followed(followed) != encode_followed(entry.followed):
                raise _misfit(event, f"{entry.followed} followed, this sweep gives {followed}")
            yield entry

    def record(self, trial: int) -> TrialRecord:
        """Return a trial's record."""
        return self.records.of(trial)

    def failed(self) -> list[int]:
        """Return the trials that have failed and not been retried, by number."""
        rows = (record.trial.number for record in self.records if record.state is TrialState.FAILED)
        return [trial for trial in rows if trial not in self.requested.retaken]

    def may_run_again(self, trial: int) -> bool:
        """Return whether `Retried` runs a failed trial itself again, because its rung isn't decided yet."""
        return self._scheduler.may_withdraw(trial)

    def room(self) -> int | None:
        """Return the number of configurations that may still be tried, without the requested ones; None: unbounded.

        A race takes none, as failed trials only need a new configuration after theirs was eliminated.
        """
        if self.sweep.repeats.racing or (not self._scheduler.busy and next(self._scheduler.upcoming(), None) is None):
            return 0
        total, repeats = self._scheduler.total(), self.sweep.repeats.n
        return None if total is None else total[0] // repeats - self.records.configurations - len(self.requested)

    def rehearsal(self) -> Scheduler:
        """Return a copy of the scheduler, to test what it would start. The copy ignores an exhausted searcher."""
        scheduler = copy.deepcopy(self._scheduler)
        if self._exhausted:
            scheduler.extend(None, {})
        return scheduler

    def tally(self) -> Tally:
        """Return the number of failed trials, and of trials that failed or reached the end of a segment."""
        failed = self.records.counts[TrialState.FAILED]
        avoids = self.sweep.searcher.capabilities.avoids_failures and self.sweep.search.avoid_failures
        avoided = sum(self.records.failed_kinds[kind] for kind in CAPACITY) if avoids else 0
        return Tally(failed, failed + self._journaled.reached, self.sweep.repeats.n, avoided)

    def running(self) -> Sequence[Segment]:
        """Return the segments that run, by trial number."""
        return self.records.segments()

    def ready(self) -> int:
        """Return the number of segments that could start now; a lower bound if new trials are unbounded."""
        return len(self._journaled.requeued) + self._scheduler.ready()

    def watch(self, reports: Sequence[Report]) -> list[tuple[Segment, str]]:
        """Process live reports; return the running segments that the scheduler stops, each with the reason."""
        self.widths.report(reports)
        self.stopping.report(reports)
        return self._watch(reports)

    @property
    def is_ask_tell(self) -> bool:
        """Whether trials run outside hpsearch."""
        return self._journaled.is_ask_tell

    @property
    def finished_segments(self) -> int:
        """Number of completed segments."""
        return self._journaled.finished_segments

    @property
    def iterations(self) -> int:
        """Number of reported iterations, including repetitions after a restart from zero."""
        return self._journaled.iterations

    def close(self) -> None:
        """Close the searchers."""
        for suggestions in self._searches[self._closed :]:
            suggestions.close()

    @property
    def is_searching(self) -> bool:
        """Whether a trial waits for a suggestion. The caller must poll the searcher."""
        return any(suggestions.working for suggestions in self._searches)

    @property
    def points_used(self) -> int:
        """Number of `points_to_try` that trials have used."""
        return min(self._position, len(self._stored.points_to_try))

    @property
    def is_exhausted(self) -> bool:
        """Whether the searcher has no more configurations."""
        return self._exhausted

    @property
    def idle(self) -> bool:
        """Whether nothing runs."""
        return not self.records.running

    def rows(self) -> list[TrialRow]:
        """Return every trial, by number."""
        return self._journaled.rows()

    def leaders(self) -> list[TrialRow]:
        """Return the non-dominated trials, by number. With one goal this is the best trial; on a tie, the first."""
        return self._journaled.leaders()

    def counts(self) -> dict[TrialState, int]:
        """Count the trials by state."""
        return self._journaled.counts()

    def rungs(self) -> Sequence[RungView]:
        """Return the rungs of the brackets that have begun."""
        return self._scheduler.rungs()

    def total(self) -> tuple[int, int] | None:
        """Return (trials, iterations when promotions resume) of the whole sweep; None if unbounded or unknown."""
        total = self._total()
        if total is None or self.sweep.resource is not None:
            return None  # how many iterations costs allow isn't known
        return total[0], total[1] + self._more_iterations

    def _total(self) -> tuple[int, int] | None:
        total, size = self._scheduler.total(), self._suggestions.size
        if size is None:
            return total
        size = (size + self.requested.added) * self.sweep.repeats.n
        if total is not None and total[0] <= size:
            return total
        iterations = self.sweep.iterations
        if self.sweep.early_terminate is None and iterations is not None:
            return size, size * iterations
        return None

    def obsolete(self) -> list[str]:
        """Return the checkpoints that are no longer needed, and packs without needed checkpoints, each once."""
        gone, self._gone = self._gone, []
        return gone

    def checkpoints(self) -> set[str]:
        """Return the checkpoints that are kept."""
        return self.records.checkpoints()

    def _upcoming(
        self, suggest: Callable[[NewTrial, int, Trial | None], Suggestion | Asked | NotYet | None]
    ) -> Iterator[Next]:
        for suggestions in self._searches:
            suggestions.working = False
        idle = True
        for trial in tuple(self._journaled.requeued):
            idle = False
            record = self.records.of(trial)
            yield Started(record.again(), None, bracket=record.bracket, rung=record.rung)
        requested, position = self.requested.upcoming(), self._position
        first_repeats: dict[int | None, Trial] = {}  # those that were yielded, and may not have started yet
        for answer in self._scheduler.upcoming():
            idle = False
            if isinstance(answer, Run):
                record = self.records.of(answer.trial)
                costly = self.sweep.resource is not None
                segment = record.on(None, float(answer.until)) if costly else record.on(answer.until)
                yield Started(segment, None, bracket=answer.bracket, rung=answer.rung)
                continue
            suggestion: Suggestion | Asked | NotYet | None
            if answer.configuration is not None and answer.repeat:
                repeated = first_repeats.get(answer.configuration) or self.records.first_repeat(answer.configuration)
                suggestion = Suggestion(repeated.params, repeated.origin)
            elif (request := next(requested, None)) is not None:
                suggestion = self.requested.suggestion(request, answer.number)
            elif answer.parent is not None:
                suggestion = suggest(answer, position, record_of_parent(answer.parent, self.records).trial)
            else:
                suggestion = suggest(answer, position, None)
                position += 1
            if isinstance(suggestion, NotYet):
                break
            if not isinstance(suggestion, Suggestion):
                yield suggestion or Exhausted()
                return
            start = first_start(answer, suggestion, self.records, self.sweep.seed, self._journaled.is_ask_tell)
            if self.sweep.resource is not None and answer.until is not None:
                costs = Costs(0.0, float(answer.until))
                start = replace(start, segment=replace(start.segment, end=None, costs=costs))
            yield start
            if start.new is not None and not answer.repeat:
                first_repeats[answer.configuration] = start.new
            if suggestion.origin == STAND_IN and not answer.repeat:
                yield Wait()  # the next suggestion is requested after this trial has started
                return
        yield Done() if idle and not self._scheduler.busy and not self.records.running else Wait()

    def _suggested(
        self, event: Started | Exhausted, answer: NewTrial, position: int, parent: Trial | None
    ) -> Suggestion | None:
        """Return the searcher's suggestion at the time of the event."""
        new = None if isinstance(event, Exhausted) else event.new
        if new is None and isinstance(event, Started):
            raise ValueError("a new trial is to come")
        return self._suggestions_for(answer.number).suggested(
            position if parent is None else answer.number, parent, new
        )

    def _record_start(self, event: Started | Exhausted) -> None:
        """Count a segment as started, or a suggestion as missing."""
        if isinstance(event, Started) and event.segment.trial in self._journaled.requeued:
            return
        answer = self._scheduler.next()
        if not isinstance(answer, NewTrial) or answer.repeat:
            return
        new = event.new if isinstance(event, Started) else None
        if new is not None and self.requested:
            self.requested.take()
        elif answer.parent is not None:
            parent = record_of_parent(answer.parent, self.records).trial
            self._suggestions_for(answer.number).used(answer.number, parent, new)
        elif self._suggestions_for(answer.number).used(self._position, None, new) and new is not None:
            self._position += 1

    def _watch(self, reports: Sequence[Report]) -> list[tuple[Segment, str]]:
        stopped = []
        for report in reports:
            record = self.records.of(report.trial)
            reason = self._scheduler.watch(report) if record.continued is None else None
            if reason is not None and record.segment is not None:
                stopped.append((record.segment, reason))
        return stopped

    def _decided(self, event: Event) -> Sequence[Decision]:
        """Pass an applied event to the scheduler; return its decisions."""
        decisions = self._decided_on(event)
        for trial in self._journaled.pruned:
            record = self.records.of(trial)
            followed = self._scheduler.prune(trial) if record.continued is None else ()
            decisions = [*decisions, *followed, Decision(trial, "stop", record.pruned)]
        return decisions

    def _decided_on(self, event: Event) -> Sequence[Decision]:
        if isinstance(event, Saved | Finished):
            self._reports.add(event.trial, event.reports)
        match event:
            case Finished(trial=trial) if trial not in self._journaled.requeued and trial not in self._journaled.pruned:
                record = self.records.of(event.trial)
                score = record.result.score
                value = float("nan") if score is None else score
                reports = self._reports.take(event.trial, event.iteration)
                resource = None if record.cost_end is None else self.sweep.resource
                reached = event.iteration if resource is None else int(record.cost)
                outcome = Outcome(event.trial, reached, value, reports, event.stopped, resource)
                if record.continued is not None:
                    return (Decision(trial, "complete", f"trained on: {ran(outcome, record.until)}"),)
                return self._scheduler.observe(outcome)
            case Failed(trial=trial, retry=False):
                record = self.records.of(event.trial)
                if record.continued is not None:
                    reason = f"trained on to iteration {record.result.iterations}, then failed: {event.failure.message}"
                    return (Decision(trial, "complete" if record.continued is TrialState.COMPLETE else "stop", reason),)
                return self._scheduler.observe(Outcome(event.trial, record.result.iterations, None))
            case Continued(trial=trial, until=until):
                self._more_iterations += until - self.records.of(trial).result.iterations
            case Retried():
                return self._retry(event.trial)
            case Exhausted():
                self._exhausted = True
                return self._scheduler.exhausted()
            case Extended(run_cap=run_cap, settings=settings):
                self.sweep = extended(self.sweep, event)
                self._exhausted = False
                self._scheduler.extend(run_cap, settings)
            case Changed():
                self._change(event)
            case Added(params=point):
                self.requested.add(point)
                self._continue()
        return ()

    def _change(self, event: Changed) -> None:
        if self._changed == len(self._changes):
            self._prepare_change(event)
            self.is_stale = True
        self._changed += 1
        self.sweep = changed(self.sweep, event)
        self.requested.space = self.sweep.parameters
        self._continue()

    def _prepare_change(self, event: Changed) -> None:
        """Create the searcher of a change, which observes all events from now on."""
        if not self._changes:  # trials of the first space may have values of a later one: those that a user adds
            self._searches[0].translate = translator(self._stored.parameters, ())
        self._changes.append(event)
        *earlier, space = spaces_of(self._stored, self._changes)
        sweep = searched(self._stored, space)
        past = fitted_past(self._past, space, earlier)
        self._searches.append(Suggestions(sweep, self._journaled, self._calls_of, past, translator(space, earlier)))

    def _continue(self) -> None:
        """Create trials again if the searcher was exhausted."""
        if self._exhausted:
            self._exhausted = False
            self._scheduler.extend(None, {})

    def _retry(self, trial: int) -> Sequence[Decision]:
        state = self.records.of(trial).state
        if state is not TrialState.FAILED or trial in self.requested.retaken:
            raise ValueError(f"only a failed trial can be retried, and once; trial {trial} is {state}")
        if self._scheduler.may_withdraw(trial):
            self._scheduler.withdraw(trial)
            return (Decision(trial, "withdraw", "retried: its rung isn't decided"),)
        self.requested.again(trial)
        return ()

    def _plan(self, event: Event) -> PlanChange | None:
        """Return how an event changed the scheduler's plan; None if it didn't."""
        brackets = self._journaled.brackets
        match event:
            case Started():
                touched: Iterable[int] = (event.bracket,)
            case Finished() | Failed() | Retried():
                touched = (self.records.of(event.trial).bracket,)
            case Exhausted() | Extended() | Changed() | Added():
                touched = brackets
            case _:
                touched = ()
        touched = (*touched, *(self.records.of(trial).bracket for trial in self._journaled.pruned))
        plans = {bracket: self._scheduler.plan(bracket) for bracket in touched}
        changed = {bracket: rungs for bracket, rungs in plans.items() if rungs != brackets.get(bracket, ())}
        total = self.total()
        return PlanChange(total, changed) if changed or total != self._journaled.total else None


def _as_then(expected: Started, event: Started) -> Started:
    """Return an expected start with the event's fields that depended on free workers and existing checkpoints."""
    segment = replace(expected.segment, width=event.segment.width)
    new, old = expected.new, event.new
    if new is not None and old is not None and new.parent is not None and old.parent is not None:
        parent = replace(old.parent, number=new.parent.number)
        new = replace(new, parent=parent, start=old.start)
        segment = replace(segment, start=old.start, checkpoint=parent.checkpoint)
    return replace(expected, segment=segment, new=new, reason=event.reason)


def _misfit(event: Event, instead: str) -> JournalError:
    """Return the error for an event that this sweep wouldn't write; `instead` describes what it would do."""
    return JournalError(
        f"the journal doesn't replay: it holds {event}, where {instead}. "
        "It was written by a version of hpsearch that decides otherwise; resume with that one."
    )
