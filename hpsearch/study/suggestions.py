"""What the searcher of a sweep is told and asked, in an order that a resumed sweep can repeat."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence

from hpsearch.decision import Decision
from hpsearch.events import Dropped, Event, Failed, Finished, Reverted, Saved, Started
from hpsearch.searchers import NotYet, Observation, Searcher, Suggestion
from hpsearch.study.build import build_searcher
from hpsearch.study.journaled_state import JournaledState
from hpsearch.sweep.sweep import Sweep
from hpsearch.trial import StateAt, Trial

__all__ = ["Suggested", "Suggestions"]

Suggested = tuple[Suggestion | NotYet | None, int | None]
"""An answer, and how much of what happened it had seen; None where the searcher doesn't learn."""


class Suggestions:
    """Asks a sweep's searcher, and passes on what happened.

    A searcher that learns hears of events when it is asked next, and its answer is kept until the trial has started. So
    what it knew when it made a suggestion is told by one number, which the journal keeps.

    Args:
        sweep: What is searched.
        wrap: Gives the searcher that is asked, such as one that works off the loop.
    """

    def __init__(self, sweep: Sweep, wrap: Callable[[Searcher], Searcher] = lambda searcher: searcher) -> None:
        self.learns = sweep.searcher.learns
        """Whether what is suggested depends on what happened."""
        self._working_on: tuple[int, int | None] | None = None
        """What the last answer was `NotYet` to."""
        self._forks = sweep.searcher.forks
        self._points = build_searcher(sweep, wrap)
        self._unheard: deque[tuple[StateAt, Callable[[Searcher], None]]] = deque()
        self._telling: set[StateAt] = set()
        """Those that it was told of since it answered last."""
        self._needs: Collection[StateAt] = ()
        """As it named them when it answered last."""
        self._seen = 0
        self._answers: dict[tuple[int, int | None], Suggested] = {}
        """Those of trials that haven't started."""

    @property
    def size(self) -> int | None:
        """Number of suggestions that there are; None where it is unbounded."""
        return self._points.size

    @property
    def working(self) -> bool:
        """Whether the last answer was `NotYet`."""
        return self._working_on is not None

    def hear(self, event: Event, journaled: JournaledState, decisions: Sequence[Decision]) -> None:
        """Take what happened, for the searcher to hear of.

        Args:
            event: It was applied.
            journaled: The state that it led to.
            decisions: What followed from it.
        """
        if not self.learns or not isinstance(event, Started | Saved | Finished | Failed | Reverted | Dropped):
            return
        record = journaled.records.of(event.segment.trial if isinstance(event, Started) else event.trial)
        trial, iteration = record.trial, record.result.iterations
        match event:
            case Started(new=Trial() as new):
                self._hear(StateAt(new.number, new.start), lambda searcher: searcher.started(new))
            case Saved():
                self._observe(Observation(trial, iteration, event.reports, False))
            case Finished():
                ended = trial.number not in journaled.requeued
                self._observe(Observation(trial, iteration, event.reports, ended, None, decisions))
            case Failed(retry=False):
                self._observe(Observation(trial, iteration, event.reports, True, event.failure, decisions))
            case Reverted():
                self._hear(StateAt(trial.number, iteration), lambda searcher: searcher.reverted(trial, iteration))
            case Dropped():
                self._hear(StateAt(trial.number, trial.start), lambda searcher: searcher.dropped(trial))

    def suggest(self, number: int, parent: Trial | None = None) -> Suggested:
        """Give the suggestion for trial `number`; the same again until it has started.

        Args:
            number: In the searcher's own order; of a trial that the scheduler forks, the trial's own.
            parent: What such a trial is forked from.

        Raises:
            ValueError: The searcher works on another one: a replay, which has the answers in the order of the starts,
                would ask in another order.
        """
        if not self.learns:
            return self._ask(number, parent), None
        key = _key(number, parent)
        if key not in self._answers:
            if self._working_on not in (None, key):
                raise ValueError(
                    "the next new trial must stay the next one until it has started, but the scheduler has put another "
                    f"one before it while the searcher works on it; (number, parent) {self._working_on} became {key}"
                )
            if not self.working:  # else it has begun with what it knows
                self._tell(len(self._unheard))
            answer = self._ask(number, parent)
            self._working_on = key if isinstance(answer, NotYet) else None
            if isinstance(answer, NotYet):
                return answer, self._seen
            self._answered()
            self._answers[key] = answer, self._seen
        return self._answers[key]

    def suggest_again(self, number: int, parent: Trial | None, seen: int | None) -> Suggestion | None:
        """Give what the searcher suggested when it had seen so much; waits for one that takes its time.

        Raises:
            ValueError: It had seen more before, or less has happened.
        """
        happened = self._seen + len(self._unheard)
        if seen is None or not self._seen <= seen <= happened:
            raise ValueError(f"a searcher that learns had seen {seen} events, of {self._seen} to {happened}")
        self._tell(seen - self._seen)
        while isinstance(answer := self._ask(number, parent), NotYet):
            pass
        self._answered()
        return answer

    def needs(self) -> Collection[StateAt]:
        """Give the states that the searcher may still name as parents, those it isn't told of yet among them."""
        if not self._forks:
            return ()
        if not self.learns:
            return self._points.searcher.needs()
        unheard = {state for state, _ in self._unheard}
        given = {answer.parent for answer, _ in self._answers.values() if isinstance(answer, Suggestion)}
        return unheard | self._telling | set(self._needs) | {parent for parent in given if parent is not None}

    def close(self) -> None:
        """Let go of the searcher."""
        self._points.searcher.close()

    def started(self, number: int, parent: Trial | None = None) -> None:
        """Forget the answer: the trial is there."""
        self._answers.pop(_key(number, parent), None)

    def _ask(self, number: int, parent: Trial | None) -> Suggestion | NotYet | None:
        return self._points.suggest(number) if parent is None else self._points.explore(number, parent)

    def _observe(self, observation: Observation) -> None:
        state = StateAt(observation.trial.number, observation.iteration)
        self._hear(state, lambda searcher: searcher.observe(observation))

    def _hear(self, state: StateAt, call: Callable[[Searcher], None]) -> None:
        """Take the call that tells the searcher, and the state to which a trial was brought."""
        self._unheard.append((state, call))

    def _tell(self, count: int) -> None:
        for _ in range(count):
            state, call = self._unheard.popleft()
            call(self._points.searcher)
            self._telling.add(state)
        self._seen += count

    def _answered(self) -> None:
        self._needs = self._points.searcher.needs()  # it works on nothing now
        self._telling.clear()


def _key(number: int, parent: Trial | None) -> tuple[int, int | None]:
    return number, None if parent is None else parent.number
