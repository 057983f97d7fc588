"""New trials: the points that they take before anything is suggested, and their first segment."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from hpsearch.events import Started
from hpsearch.schedulers.base import NewTrial
from hpsearch.searchers import Suggestion
from hpsearch.searchers.first_trials import ADDED, RETRY
from hpsearch.seeds import trial_seed
from hpsearch.space import Space
from hpsearch.study.trial_record import TrialRecord
from hpsearch.study.trial_records import TrialRecords, owner_of
from hpsearch.trial import Params, Parent, Segment, StateAt, Trial


class Requested:
    """Points that come before any suggestion: of failed trials that run once more, and those added by hand.

    They come in the order in which they were asked for, and don't count in the searcher's own order.

    Args:
        records: Of the sweep's trials.
        space: What an added point leaves out is drawn from it.
        seed: The sweep's.
    """

    def __init__(self, records: TrialRecords, space: Space, seed: int) -> None:
        self._records = records
        self._space = space
        self._seed = seed
        self._queue: deque[int | Params] = deque()
        """Failed trials by number, and points."""
        self.retaken: set[int] = set()
        """Failed trials of which there is, or will be, such another."""
        self.added = 0
        """Number of configurations added so far."""

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def points(self) -> list[Params]:
        """Added configurations that no trial has used yet."""
        return [point for point in self._queue if not isinstance(point, int)]

    def again(self, trial: int) -> None:
        """Queue a new trial with the configuration of a failed one."""
        self._queue.append(trial)
        self.retaken.add(trial)

    def add(self, point: Params) -> None:
        """Queue a configuration; it may be partial."""
        self._queue.append(point)
        self.added += 1

    def upcoming(self) -> Iterator[int | Params]:
        """Yield what the next trials use, for `suggestion`."""
        return iter(tuple(self._queue))

    def suggestion(self, requested: int | Params, number: int) -> Suggestion:
        """Return what trial `number` is to run."""
        if isinstance(requested, int):
            trial = self._records.of(requested).trial
            # With its weights, too, where it inherited some at its own beginning.
            parent = trial.parent if trial.start == 0 else None
            return Suggestion(trial.params, RETRY, None if parent is None else StateAt(parent.number, parent.iteration))
        return Suggestion(self._space.complete(requested, self._seed, number), ADDED)

    def take(self) -> None:
        """Remove the first one: a trial has it."""
        self._queue.popleft()


def first_start(
    answer: NewTrial, suggestion: Suggestion, records: TrialRecords, seed: int, is_ask_tell: bool
) -> Started:
    """Return the start of a new trial.

    Args:
        answer: What the scheduler asked for.
        suggestion: What is to be tried.
        records: Of the trials before it.
        seed: The sweep's.
        is_ask_tell: Trials run elsewhere, and whoever runs them keeps their states.

    Raises:
        ValueError: There is no such trial to fork, or the fork would start behind its end.
    """
    parent_state, start = (suggestion.parent, 0) if answer.parent is None else (answer.parent, answer.start)
    if answer.until is not None and start >= answer.until:
        raise ValueError(f"a fork must start before the end of its segment, at {answer.until}, not at {start}")
    parent = None
    if parent_state is not None:
        forked = record_of_parent(parent_state, records).trial
        iteration, checkpoint = records.checkpoint_at(parent_state)
        saved_by = forked if checkpoint is None else records.of(owner_of(checkpoint)).trial
        parent = Parent(forked.number, iteration, checkpoint, saved_by.params)
        # What its checkpoint hasn't done, the fork has to do, as every trial does that goes on from an older one.
        start = min(start, parent.iteration) if parent.checkpoint is not None or is_ask_tell else 0
    trial = Trial(answer.number, suggestion.params, trial_seed(seed, answer.number), suggestion.origin, parent, start)
    checkpoint = None if parent is None else parent.checkpoint
    segment = Segment(answer.number, start, answer.until, checkpoint, 1)
    return Started(segment, trial, bracket=answer.bracket, rung=answer.rung)


def record_of_parent(state: StateAt, records: TrialRecords) -> TrialRecord:
    """Return the record of a trial that is to be forked.

    Raises:
        ValueError: There is none.
    """
    if not 0 <= state.trial < len(records):
        raise ValueError(f"a trial must be forked from one of {len(records)}, got {state.trial}")
    return records.of(state.trial)
