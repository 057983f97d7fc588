"""Calls of a sweep's searcher: updates and requests for suggestions, in an order that a resumed sweep can repeat."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from hpsearch.decision import Decision
from hpsearch.events import Asked, Dropped, Event, Failed, Finished, Retried, Reverted, Saved, Started
from hpsearch.searchers import Observation, Past, Searcher, Suggestion
from hpsearch.searchers.calls import Calls, DirectCalls, SearcherAnswer
from hpsearch.searchers.first_trials import STAND_IN, FirstTrials
from hpsearch.searchers.tried import TriedConfigurations
from hpsearch.study.build import build_searcher
from hpsearch.study.change import Translate
from hpsearch.study.journaled_state import JournaledState
from hpsearch.study.trial_record import TrialRecord
from hpsearch.study.trial_records import TERMINAL
from hpsearch.study.updates import LaggedUpdates, Update, Updates
from hpsearch.sweep.sweep import Sweep
from hpsearch.trainable.metrics import SECONDS
from hpsearch.trial import Failure, Report, StateAt, Trial, TrialState

CallsOf = Callable[[Sweep, Searcher, Sequence[Past]], Calls]
"""Returns the object that calls a sweep's searcher. Of the searcher only `recall` was called, with these trials."""

_Key = tuple[int, int | None]
"""Key of a suggestion: (number in the searcher's order, None); for a fork by the scheduler, (trial, parent)."""


def direct_calls(sweep: Sweep, searcher: Searcher, past: Sequence[Past]) -> Calls:
    """Return an object that calls the searcher directly, in this process."""
    return DirectCalls(searcher)


@dataclass(frozen=True, slots=True)
class NotYet:
    """The suggestion isn't ready yet: ask again."""


class Suggestions:
    """Requests suggestions from a sweep's searcher, and informs it of events.

    A request to a searcher that learns is journaled as the event `Asked`. The searcher has then received everything
    before this event in the journal; with a lag, a part that depends only on the suggestion's number. So a suggestion
    is determined by the journal, regardless of when it is computed. A resumed sweep repeats the requests whose
    suggestions weren't used. At most one suggestion for a new trial is computed at a time, so that the searcher knows
    all earlier ones.

    Args:
        sweep: The sweep.
        journaled: Its state, which the caller keeps up to date.
        calls_of: Returns the object that calls the searcher.
        past: Trials of other searches, for a warm start.
        translate: Converts trials to the searcher's space, if the study has several. It isn't told of those that don't
            fit.
    """

    def __init__(
        self,
        sweep: Sweep,
        journaled: JournaledState,
        calls_of: CallsOf = direct_calls,
        past: Sequence[Past] = (),
        translate: Translate | None = None,
    ) -> None:
        searcher = build_searcher(sweep, past)
        self.learns = searcher.capabilities.learns
        """Whether suggestions depend on results."""
        self.replaying = False
        """Whether a journal is replayed: used suggestions are recorded there and needn't be computed."""
        self._sweep = sweep
        self._journaled = journaled
        self._searcher = searcher
        self._calls_of = calls_of
        self._past = past
        self.translate = translate
        """See the argument."""
        self._calls: Calls | None = None
        self._first = FirstTrials(searcher, sweep.points_to_try, sweep.parameters, sweep.seed)
        self._tried = TriedConfigurations(sweep.parameters)
        self._last_stand_ins = TriedConfigurations(sweep.parameters)
        """Random configurations that trials ran in place of the last requested suggestion."""
        lag = sweep.search.lag
        self._updates = Updates() if lag is None else LaggedUpdates(lag, journaled.records)
        self._ahead = sweep.search.ahead or lag is not None
        self._stands_in = sweep.search.ahead and lag is None
        self._remembers = searcher.capabilities.remembers or searcher.capabilities.forks
        self._queue: deque[Update | tuple[_Key, Trial | None]] = deque()
        """Calls that haven't been made: updates, and requests for suggestions."""
        self._requested: dict[_Key, int] = {}
        """Requested suggestions that haven't been used, to the number of updates before them."""
        self._called: deque[_Key] = deque()
        """Suggestions that the searcher is computing or will compute."""
        self._answers: dict[_Key, SearcherAnswer] = {}
        """Suggestions that are ready."""
        self._has_answered = False
        """Whether the first suggestion came. It has no stand-in, since the searcher's process only starts once."""
        self.working = False
        """Whether a trial waits for a suggestion that is being computed."""
        self._sent = 0
        self._states: deque[tuple[int, StateAt]] = deque()
        """(number of the update, trial state) for updates after the searcher's last statement of `needs`."""
        self._needs: Collection[StateAt] = ()
        self._observed_configurations: set[int] = set()
        """Configurations whose repeats have all ended, as the searcher has observed."""

    @property
    def size(self) -> int | None:
        """Total number of suggestions; None if it is unbounded."""
        remaining = self._searcher.size
        return None if remaining is None else self._first.count + remaining

    def suggest(
        self, number: int, trial: int, bracket: int, parent: Trial | None, stand_in: bool
    ) -> Suggestion | Asked | NotYet | None:
        """Return a suggestion, or what must happen before it is available.

        Args:
            number: Its number among the suggestions for trials that the scheduler doesn't fork.
            trial: Number of the trial that will run it.
            bracket: The trial's bracket.
            parent: The trial that the scheduler forks; None: no fork.
            stand_in: Whether to return a random configuration if the suggestion isn't ready.
        """
        if parent is None and number < self._first.count:
            first = self._first.suggest(number)
            if first is not None and first.origin == "random" and first.params in self._tried:
                return self._first.replacement(number, self._tried)  # by a trial of the space before
            return first
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
        """Return the request for a suggestion that will be needed; None if it isn't needed or can't be made yet."""
        is_made = number < self._first.count or (number, None) in self._requested
        if not self.learns or not self._ahead or is_made or not self._updates.settled(number, bracket):
            return None
        return Asked(number, None, bracket)

    def suggested(self, number: int, parent: Trial | None, trial: Trial | None) -> Suggestion | None:
        """Return the suggestion that a journaled trial used. A searcher that remembers suggestions computes it again.

        Args:
            number: As for `suggest`; for a fork by the scheduler, the trial's number.
            parent: As for `suggest`.
            trial: The trial that used it; None: there was no suggestion.

        Raises:
            ValueError: The suggestion wasn't requested.
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
        """Request a suggestion, after the updates that the searcher must receive before it."""
        parent = None if event.parent is None else self._journaled.records.of(event.parent).trial
        for update in self._translated(self._updates.before(event.number, event.bracket)):
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
        """Drop a suggestion after a trial has used it, or if there was none.

        Returns:
            Whether the suggestion had a number in the searcher's order, so that the number must be increased.
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
            else:  # a replay: the suggestion came from the journal
                self._unqueue(key)
        return parent is None

    def observe(self, event: Event, decisions: Sequence[Decision]) -> None:
        """Queue an event as an update for the searcher.

        Args:
            event: The event, which was applied.
            decisions: The decisions that followed from it.
        """
        if not self.learns or not isinstance(event, Started | Saved | Finished | Failed | Retried | Reverted | Dropped):
            return
        record = self._journaled.records.of(event.segment.trial if isinstance(event, Started) else event.trial)
        if record.continued is not None:
            return
        trial, iteration = record.trial, record.result.iterations
        if trial.configuration is not None:
            self._observe_repeat(trial, trial.configuration, isinstance(event, Started) and event.new is not None)
            return
        if self._sweep.resource is not None:
            iteration = int(record.cost)
        match event:
            case Started(new=Trial() as new):
                self._add_new(new)
            case Saved():
                self._observe(Observation(trial, iteration, record.until, event.reports, False))
            case Finished():
                # A trial that was pruned during its segment has ended, too: see `observe_pruned`.
                ended = trial.number not in self._journaled.requeued and not self._journaled.pruned.get(trial.number)
                self._observe(Observation(trial, iteration, record.until, event.reports, ended, None, decisions))
            case Failed(retry=False):
                self._observe(
                    Observation(trial, iteration, record.until, event.reports, True, event.failure, decisions)
                )
            case Retried() if not decisions:
                pass  # another trial runs its configuration
            case Retried() | Reverted():
                self._add("reverted", StateAt(trial.number, iteration), trial, iteration)
            case Dropped():
                self._add("dropped", StateAt(trial.number, trial.start), trial)

    def observe_pruned(self, trial: int, decisions: Sequence[Decision]) -> None:
        """Treat a trial as failed: a user cut its segment short, so it has no value at the segment's end.

        Args:
            trial: Its number.
            decisions: The decisions that followed.
        """
        record = self._journaled.records.of(trial)
        if self.learns and record.continued is None:
            if record.trial.configuration is not None:
                self._observe_repeat(record.trial, record.trial.configuration, is_new=False)
                return
            failure = Failure("raised", record.pruned, "")
            iteration = record.result.iterations
            self._observe(Observation(record.trial, iteration, record.until, (), True, failure, decisions))

    def needs(self) -> Collection[StateAt]:
        """Return the states that the searcher may still fork from, including those that it hasn't received yet."""
        if not self._searcher.capabilities.forks:
            return ()
        if not self.learns:
            return self._searcher.needs()
        return {*self._updates.pending(), *(state for _, state in self._states), *self._needs}

    def prepare(self) -> None:
        """Make the delayed calls, which request the suggestions that weren't used."""
        if self.learns:
            self._flush()

    def close(self) -> None:
        """Close the searcher."""
        if self._calls is not None:
            self._calls.close()

    def _observe_repeat(self, trial: Trial, configuration: int, is_new: bool) -> None:
        """Tell the searcher of a configuration as of one trial, whose number is the configuration's index.

        It is observed once all its repeats have ended, with the mean of their metrics, or as failed if one of them has
        no score. If one of them runs again, the observation is revoked.

        Args:
            trial: The repeat that has changed.
            configuration: Its configuration.
            is_new: Whether the repeat was created.
        """
        records = self._journaled.records
        seen = replace(trial, number=configuration)
        if is_new and trial.repeat == 0:
            self._add_new(seen)
        repeats = records.repeats(configuration)
        if len(repeats) < self._sweep.repeats.n or any(record.state not in TERMINAL for record in repeats):
            if configuration in self._observed_configurations:
                self._observed_configurations.remove(configuration)
                self._add("reverted", StateAt(configuration, 0), seen, 0)
            return
        if configuration in self._observed_configurations:
            return
        self._observed_configurations.add(configuration)
        lost = next((record for record in repeats if record.state is not TrialState.COMPLETE), None)
        failure = None if lost is None else lost.failure or Failure("raised", lost.reason, "")
        last = max(record.result.iterations for record in repeats)
        seconds = sum(record.seconds for record in repeats)
        report = Report(configuration, last, records.mean_metrics(configuration), seconds)
        reports = () if failure is not None or not last else (report,)
        self._observe(Observation(seen, last, repeats[0].until, reports, True, failure))

    def _add_new(self, new: Trial) -> None:
        if (known := self._known(new)) is not None:
            self._tried.add(known.params)
            if new.origin == STAND_IN:
                self._last_stand_ins.add(known.params)
        self._add("started", StateAt(new.number, new.start), new)

    def _answered(self, key: _Key) -> Suggestion | None:
        """Return an answer, or another configuration if a stand-in used the same one while it was computed."""
        suggestion = self._answers[key].suggestion
        if suggestion is None or suggestion.params not in self._last_stand_ins:
            return suggestion
        return self._first.replacement(key[0], self._tried)

    def _is_asked(self, number: int, parent: Trial | None, trial: Trial | None) -> bool:
        """Return whether the suggestion was requested from the searcher itself."""
        if trial is not None and trial.origin == STAND_IN:
            return False
        return parent is not None or number >= self._first.count

    def _observe(self, observation: Observation) -> None:
        if self._sweep.resource is not None:
            observation = _over_costs(observation, self._journaled.records.of(observation.trial.number), self._sweep)
        self._add("observe", StateAt(observation.trial.number, observation.iteration), observation)

    def _known(self, trial: Trial) -> Trial | None:
        """Return a trial as the searcher's space has it; None if it doesn't fit."""
        known = trial if self.translate is None else self.translate(trial)
        assert not isinstance(known, Observation)
        return known

    def _translated(self, updates: Iterable[Update]) -> Iterator[Update]:
        """Yield the updates of trials that fit the searcher's space, as the space has them."""
        for update in updates:
            subject, *rest = update.arguments
            known = subject if self.translate is None else self.translate(subject)
            if known is not None:
                yield update if known is subject else replace(update, arguments=(known, *rest))

    def _add(self, method: str, state: StateAt, *arguments: object) -> None:
        self._updates.add(Update(method, arguments, state))

    def _flush(self) -> None:
        if self._calls is None:
            self._calls = self._calls_of(self._sweep, self._searcher, self._past)
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
        """Remove the last queued request for this suggestion."""
        for index in range(len(self._queue) - 1, -1, -1):
            call = self._queue[index]
            if not isinstance(call, Update) and call[0] == key:
                del self._queue[index]
                return

    def _collect(self) -> None:
        """Receive all answers that are ready."""
        assert self._calls is not None
        while self._called and self._calls.ready():
            self._receive_answer()

    def _receive_answer(self) -> None:
        """Wait for the next answer and receive it."""
        assert self._calls is not None
        answer = self._calls.answer()
        self._answers[self._called.popleft()] = answer
        self._has_answered = True


def _over_costs(observation: Observation, record: TrialRecord, sweep: Sweep) -> Observation:
    """Return an observation with costs in place of iterations.

    Args:
        observation: In iterations, after its reports were counted.
        record: The trial's record.
        sweep: The sweep, whose rungs end by costs.
    """
    end, cost, reports = int(record.cost_end or 0), record.cost, []
    for report in reversed(observation.reports):
        at = cost if sweep.resource == SECONDS else report.metrics[sweep.resource or ""]
        reports.append(replace(report, iteration=min(int(at), end)))
        cost -= report.seconds
    reached = min(int(record.cost), end)
    return replace(observation, iteration=reached, until=end, reports=tuple(reversed(reports)))
