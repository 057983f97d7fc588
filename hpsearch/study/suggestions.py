"""What the searcher of a sweep knows and is asked, in an order that a resumed sweep can repeat."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hpsearch.decision import Decision
from hpsearch.events import Asked, Dropped, Event, Failed, Finished, Retried, Reverted, Saved, Started
from hpsearch.searchers import Observation, Past, Searcher, Suggestion
from hpsearch.searchers.calls import Calls, DirectCalls, SearcherAnswer
from hpsearch.searchers.first_trials import ADDED, RETRY, STAND_IN, FirstTrials
from hpsearch.searchers.tried import TriedConfigurations
from hpsearch.study.build import build_searcher
from hpsearch.study.journaled_state import JournaledState
from hpsearch.study.trial_record import DECIDED
from hpsearch.study.trial_records import TrialRecords
from hpsearch.sweep.sweep import Sweep
from hpsearch.trial import Failure, StateAt, Trial, TrialState

CallsOf = Callable[[Sweep, Searcher], Calls]
"""Makes the calls of a sweep's searcher; what it is given hasn't been called, but for `recall`."""

_Key = tuple[int, int | None]
"""What is suggested: a number in the searcher's own order; of a trial that the scheduler forks, its own and its
parent's."""


def direct_calls(sweep: Sweep, searcher: Searcher) -> Calls:
    """Call the searcher here."""
    return DirectCalls(searcher)


@dataclass(frozen=True, slots=True)
class NotYet:
    """The suggestion isn't there yet: ask again."""


@dataclass(frozen=True, slots=True)
class Update:
    """A call that informs a searcher of what happened."""

    method: str
    arguments: tuple[Any, ...]
    state: StateAt
    """To which it brought a trial."""


class Updates:
    """What a searcher is informed of before a suggestion: all that has happened, in its order."""

    def __init__(self) -> None:
        self._pending: deque[Update] = deque()

    def add(self, update: Update) -> None:
        """Take what happened."""
        self._pending.append(update)

    def settled(self, number: int, bracket: int) -> bool:
        """Return whether all has happened that suggestion `number`, for a trial of this bracket, is to know."""
        return True

    def before(self, number: int, bracket: int) -> list[Update]:
        """Return what is new for the searcher before suggestion `number`."""
        new = list(self._pending)
        self._pending.clear()
        return new

    def pending(self) -> Iterator[StateAt]:
        """Return the states to which trials were brought, and that are new to the searcher."""
        return (update.state for update in self._pending)


class LaggedUpdates(Updates):
    """Updates that depend on the number of a suggestion alone, in the order of the trials.

    Suggestion n knows all trials before it. It knows the results of the first rung of trials up to n - lag; and those
    of all rungs of the brackets that are two or more before its own, which is why it waits for these.

    Args:
        lag: At least 1.
        records: Of the sweep, up to date.
    """

    def __init__(self, lag: int, records: TrialRecords) -> None:
        self._lag = lag
        self._records = records
        self._trials: list[Trial] = []
        self._suggested: list[int] = []
        """Of each suggestion, the trial that took it: those that are run once more as other trials, and those
        that a user added, took none."""
        self._segments: list[list[Observation]] = []
        """Of each trial, what came of its segments that have ended."""
        self._reported: list[list[Observation]] = []
        """Of each trial, what came of the segment that hasn't."""
        self._observed_counts: list[int] = []
        """Of each trial, how many segments the searcher knows."""
        self._introduced = 0
        """Trials that it knows."""
        self._first = 0
        """Trials whose first segment it knows."""
        self._anew: dict[int, Update] = {}
        """Trials that run again whose failure it knows, to the call that takes that back."""
        self._completed = 0
        """Trials of which it knows all: those of a bracket have consecutive numbers."""

    def add(self, update: Update) -> None:
        """Take what happened; nothing is passed on yet."""
        match update.method, update.arguments:
            case "started", (trial,):
                self._trials.append(trial)
                if trial.origin not in (RETRY, ADDED):
                    self._suggested.append(trial.number)
                self._segments.append([])
                self._reported.append([])
                self._observed_counts.append(0)
            case "observe", (observation,):
                self._observe(observation)
            case "reverted" | "dropped", (trial, *rest):
                self._forget(trial.number, rest[0] if rest else 0)
                self._take_back(update, trial.number)

    def settled(self, number: int, bracket: int) -> bool:
        """Return whether the trials and brackets have ended that the suggestion is to know."""
        if len(self._suggested) < number:
            return False
        first = range(self._first, self._until(number - self._lag))
        ended = all(self._segments[trial] for trial in (*first, *self._anew))
        return ended and all(map(self._is_over, self._former(number, bracket)))

    def before(self, number: int, bracket: int) -> list[Update]:
        """Return what is new of what the suggestion is to know."""
        introduced = self._until(number - 1)
        out = [
            Update("started", (trial,), StateAt(trial.number, trial.start))
            for trial in self._trials[self._introduced : introduced]
        ]
        self._introduced = introduced
        for trial, update in sorted(self._anew.items()):
            out += [update, *self._new_results(trial, len(self._segments[trial]) if trial < self._completed else 1)]
        self._anew.clear()
        for trial in range(self._first, self._until(number - self._lag)):
            out += self._new_results(trial, 1)
            self._first = trial + 1
        for trial in list(self._former(number, bracket)):
            out += self._new_results(trial, len(self._segments[trial]))
            self._completed = trial + 1
        return out

    def _until(self, number: int) -> int:
        """Count the trials up to the one that took a suggestion."""
        return self._suggested[number] + 1 if number >= 0 else 0

    def _new_results(self, trial: int, most: int) -> list[Update]:
        """Return the results of a trial's first segments that are new to the searcher."""
        new = self._segments[trial][self._observed_counts[trial] : most]
        self._observed_counts[trial] += len(new)
        return [Update("observe", (observation,), StateAt(trial, observation.iteration)) for observation in new]

    def _former(self, number: int, bracket: int) -> Iterator[int]:
        """Return the trials of brackets two or more before this one of which the searcher doesn't know all."""
        for trial in range(self._completed, self._until(number - 1)):
            if self._records.of(trial).bracket > bracket - 2:
                return
            yield trial

    def pending(self) -> Iterator[StateAt]:
        """Return nothing: no searcher that forks is asked with a lag."""
        return iter(())

    def _observe(self, observation: Observation) -> None:
        trial = observation.trial.number
        self._reported[trial].append(observation)
        if not observation.ended:
            return
        last = self._segments[trial][-1].iteration if self._segments[trial] else 0
        reports = [report for earlier in self._reported[trial] for report in earlier.reports if report.iteration > last]
        # Which trials were decided by it depends on completion order.
        self._segments[trial].append(replace(observation, reports=tuple(reports), decisions=()))
        self._reported[trial] = []

    def _forget(self, trial: int, iteration: int) -> None:
        """Drop what a trial reported after an iteration, but not the segments that have ended.

        They were decided on. Which of them the searcher knows by then depends on completion order.
        """
        self._reported[trial] = [entry for entry in self._reported[trial] if entry.iteration <= iteration]

    def _take_back(self, update: Update, trial: int) -> None:
        """Take back that a trial failed, where it runs again."""
        segments = self._segments[trial]
        if segments and segments[-1].failure is not None:
            segments.pop()
            if self._observed_counts[trial] > len(segments):
                self._observed_counts[trial] = len(segments)
                self._anew[trial] = update

    def _is_over(self, trial: int) -> bool:
        state = self._records.of(trial).state
        return state in DECIDED or state is TrialState.FAILED


class Suggestions:
    """Asks a sweep's searcher, and passes on what happened.

    A searcher that learns is asked by an event, `Asked`, and knows what stands before that in the journal (with a lag:
    a part of that which its number alone fixes). So its suggestion follows from the journal, whenever it is worked out:
    a resumed sweep asks again for those that weren't used. At most one for a new trial is under way at a time, so that
    each knows the ones before it.

    Args:
        sweep: What is searched.
        journaled: Its state, kept up to date by whoever calls.
        calls_of: Makes the searcher's calls.
        past: Trials of other searches that it begins with.
    """

    def __init__(
        self,
        sweep: Sweep,
        journaled: JournaledState,
        calls_of: CallsOf = direct_calls,
        past: Sequence[Past] = (),
    ) -> None:
        searcher = build_searcher(sweep, past)
        self.learns = searcher.capabilities.learns
        """Whether what is suggested depends on what happened."""
        self.replaying = False
        """What is applied stands in the journal: nothing need be worked out that was used already."""
        self._sweep = sweep
        self._journaled = journaled
        self._searcher = searcher
        self._calls_of = calls_of
        self._calls: Calls | None = None
        self._first = FirstTrials(searcher, sweep.points_to_try, sweep.parameters, sweep.seed)
        self._tried = TriedConfigurations(sweep.parameters)
        self._last_stand_ins = TriedConfigurations(sweep.parameters)
        """Of these, what stood in for the suggestion that was asked for last."""
        lag = sweep.search.lag
        self._updates = Updates() if lag is None else LaggedUpdates(lag, journaled.records)
        self._ahead = sweep.search.ahead or lag is not None
        self._stands_in = sweep.search.ahead and lag is None
        self._remembers = searcher.capabilities.remembers or searcher.capabilities.forks
        self._queue: deque[Update | tuple[_Key, Trial | None]] = deque()
        """Calls that haven't been made: updates, and requests for suggestions."""
        self._requested: dict[_Key, int] = {}
        """Suggestions that haven't been used, to the number of updates before them."""
        self._called: deque[_Key] = deque()
        """Those that it was called for and hasn't given."""
        self._answers: dict[_Key, SearcherAnswer] = {}
        """Those that it has."""
        self._has_answered = False
        """Nothing stands in for the first suggestion: a process takes a second to start, and does so once."""
        self.working = False
        """Whether a trial waits for a suggestion that is being worked out."""
        self._sent = 0
        self._states: deque[tuple[int, StateAt]] = deque()
        """Where trials were brought by the calls since the one after which it named its needs."""
        self._needs: Collection[StateAt] = ()

    @property
    def size(self) -> int | None:
        """Number of suggestions that there are; None where it is unbounded."""
        remaining = self._searcher.size
        return None if remaining is None else self._first.count + remaining

    def suggest(
        self, number: int, trial: int, bracket: int, parent: Trial | None, stand_in: bool
    ) -> Suggestion | Asked | NotYet | None:
        """Return a suggestion, or what must happen before.

        Args:
            number: In the order of those that aren't forked by the scheduler.
            trial: Who takes it.
            bracket: The trial's.
            parent: What the scheduler forks it from.
            stand_in: Take a random point where the suggestion isn't there yet.
        """
        if parent is None and number < self._first.count:
            return self._first.suggest(number)
        if not self.learns:
            if parent is not None:
                return self._searcher.explore(trial, parent)
            return self._searcher.suggest(number - self._first.skipped)
        key = (number, None) if parent is None else (trial, parent.number)
        if key not in self._requested:
            settled = self._updates.settled(number, bracket)
            return Asked(key[0], key[1], bracket) if settled else NotYet()
        self._collect()
        if key in self._answers:
            return self._answered(key)
        if stand_in and self._stands_in and self._has_answered:
            other = self._first.stand_in(trial, self._tried)
            if other is not None:
                return other
        self.working = True
        return NotYet()

    def request(self, number: int, bracket: int) -> Asked | None:
        """Return the request for a suggestion that will be needed; None where it needn't or can't be made yet."""
        is_made = number < self._first.count or (number, None) in self._requested
        if not self.learns or not self._ahead or is_made or not self._updates.settled(number, bracket):
            return None
        return Asked(number, None, bracket)

    def suggested(self, number: int, parent: Trial | None, trial: Trial | None) -> Suggestion | None:
        """Return what was suggested by the journal's word; of a searcher that remembers what it suggested, by its own.

        Args:
            number: As `suggest` takes it; of a trial that the scheduler forks, its own.
            parent: Likewise.
            trial: The one that took it; None: there was nothing to take.

        Raises:
            ValueError: It wasn't asked.
        """
        key = (number, None if parent is None else parent.number)
        if self.learns and self._is_asked(number, parent, trial):
            if key not in self._requested:
                raise ValueError(f"the searcher wasn't asked for suggestion {number}")
            if self._remembers:
                self._flush()
                while key not in self._answers:
                    self._receive_answer()
                return self._answered(key)
        if trial is None:
            return None
        source = trial.parent
        return Suggestion(
            trial.params, trial.origin, None if source is None else StateAt(source.number, source.iteration)
        )

    def record_request(self, event: Asked) -> None:
        """Ask for a suggestion, with what the searcher is to know by then."""
        parent = None if event.parent is None else self._journaled.records.of(event.parent).trial
        for update in self._updates.before(event.number, event.bracket):
            self._queue.append(update)
            self._sent += 1
            if self._searcher.capabilities.forks:
                self._states.append((self._sent, update.state))
        key = (event.number, event.parent)
        self._last_stand_ins = TriedConfigurations(self._sweep.parameters)
        self._requested[key] = self._sent
        self._queue.append((key, parent))
        if not self.replaying:
            self._flush()

    def used(self, number: int, parent: Trial | None, trial: Trial | None) -> bool:
        """Drop a suggestion: the trial that took it is there, or there was none to take.

        Returns:
            Whether it was in the searcher's order, so that the next one has the next number.
        """
        if trial is not None and trial.origin == STAND_IN:
            return False
        key = (number, None if parent is None else parent.number)
        if key in self._requested:
            before = self._requested.pop(key)
            if key in self._answers:
                self._needs = self._answers.pop(key).needs
                while self._states and self._states[0][0] <= before:
                    self._states.popleft()
            else:  # a replay, which has it from the journal
                self._unqueue(key)
        return parent is None

    def observe(self, event: Event, decisions: Sequence[Decision]) -> None:
        """Receive an event, for the searcher to be informed of.

        Args:
            event: It was applied.
            decisions: What followed from it.
        """
        if isinstance(event, Asked):
            self.record_request(event)
        if not self.learns or not isinstance(event, Started | Saved | Finished | Failed | Retried | Reverted | Dropped):
            return
        record = self._journaled.records.of(event.segment.trial if isinstance(event, Started) else event.trial)
        trial, iteration = record.trial, record.result.iterations
        match event:
            case Started(new=Trial() as new):
                self._tried.add(new.params)
                if new.origin == STAND_IN:
                    self._last_stand_ins.add(new.params)
                self._add("started", StateAt(new.number, new.start), new)
            case Saved():
                self._observe(Observation(trial, iteration, record.until, event.reports, False))
            case Finished():
                # One that was pruned on its way has ended, too: `observe_pruned` says so.
                ended = trial.number not in self._journaled.requeued and not self._journaled.pruned.get(trial.number)
                self._observe(Observation(trial, iteration, record.until, event.reports, ended, None, decisions))
            case Failed(retry=False):
                self._observe(
                    Observation(trial, iteration, record.until, event.reports, True, event.failure, decisions)
                )
            case Retried() if not decisions:
                pass  # another trial takes its point
            case Retried() | Reverted():
                self._add("reverted", StateAt(trial.number, iteration), trial, iteration)
            case Dropped():
                self._add("dropped", StateAt(trial.number, trial.start), trial)

    def observe_pruned(self, trial: int, decisions: Sequence[Decision]) -> None:
        """Treat a trial as failed: its segment was cut short by hand, so no value of it is of that length.

        Args:
            trial: Its number.
            decisions: What followed.
        """
        if self.learns:
            record = self._journaled.records.of(trial)
            failure = Failure("raised", record.pruned, "")
            iteration = record.result.iterations
            self._observe(Observation(record.trial, iteration, record.until, (), True, failure, decisions))

    def needs(self) -> Collection[StateAt]:
        """Return the states that the searcher may still name as parents, those that are still news to it among them."""
        if not self._searcher.capabilities.forks:
            return ()
        if not self.learns:
            return self._searcher.needs()
        return {*self._updates.pending(), *(state for _, state in self._states), *self._needs}

    def prepare(self) -> None:
        """Make the calls that were kept back, and begin with what was asked for and not used."""
        if self.learns:
            self._flush()

    def close(self) -> None:
        """Close the searcher."""
        if self._calls is not None:
            self._calls.close()

    def _answered(self, key: _Key) -> Suggestion | None:
        """Return an answer, or another point where a stand-in took that one while it was worked out."""
        suggestion = self._answers[key].suggestion
        if suggestion is None or suggestion.params not in self._last_stand_ins:
            return suggestion
        return self._first.replacement(key[0], self._tried)

    def _is_asked(self, number: int, parent: Trial | None, trial: Trial | None) -> bool:
        """Return whether the searcher itself was asked for it."""
        if trial is not None and trial.origin == STAND_IN:
            return False
        return parent is not None or number >= self._first.count

    def _observe(self, observation: Observation) -> None:
        self._add("observe", StateAt(observation.trial.number, observation.iteration), observation)

    def _add(self, method: str, state: StateAt, *arguments: object) -> None:
        self._updates.add(Update(method, arguments, state))

    def _flush(self) -> None:
        if self._calls is None:
            self._calls = self._calls_of(self._sweep, self._searcher)
        for call in self._queue:
            if isinstance(call, Update):
                self._calls.tell(call.method, *call.arguments)
                continue
            key, parent = call
            if parent is None:
                self._calls.ask("suggest", key[0] - self._first.skipped)
            else:
                self._calls.ask("explore", key[0], parent)
            self._called.append(key)
        self._queue.clear()

    def _unqueue(self, key: _Key) -> None:
        """Take back a call; it was the last that asked."""
        for index in range(len(self._queue) - 1, -1, -1):
            call = self._queue[index]
            if not isinstance(call, Update) and call[0] == key:
                del self._queue[index]
                return

    def _collect(self) -> None:
        """Take the answers that are there."""
        assert self._calls is not None
        while self._called and self._calls.ready():
            self._receive_answer()

    def _receive_answer(self) -> None:
        """Take the next answer; waits for it."""
        assert self._calls is not None
        answer = self._calls.answer()
        self._answers[self._called.popleft()] = answer
        self._has_answered = True
