"""New trials: requested configurations, which run before new suggestions, and the first segment of a trial."""

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
    """Configurations that run before any suggestion: those of retried failed trials, and those that a user added.

    They run in the order of the requests, and have no number in the searcher's order.

    Args:
        records: Records of the sweep's trials.
        space: The search space. Values that an added configuration omits are sampled from it.
        seed: The sweep's seed.
    """

    def __init__(self, records: TrialRecords, space: Space, seed: int) -> None:
        self._records = records
        self.space = space
        """The search space; a change replaces it, also for waiting configurations."""
        self._seed = seed
        self._queue: deque[int | Params] = deque()
        """Numbers of failed trials, and added configurations."""
        self.retaken: set[int] = set()
        """Failed trials whose configuration a new trial runs or will run."""
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
        """Yield the requests that the next trials use, as arguments for `suggestion`."""
        return iter(tuple(self._queue))

    def suggestion(self, requested: int | Params, number: int) -> Suggestion:
        """Return the suggestion for trial `number`."""
        if isinstance(requested, int):
            trial = self._records.of(requested).trial
            # If the failed trial inherited a parent's weights at iteration 0, the new one does, too.
            parent = trial.parent if trial.start == 0 else None
            return Suggestion(trial.params, RETRY, None if parent is None else StateAt(parent.number, parent.iteration))
        return Suggestion(self.space.complete(requested, self._seed, number), ADDED)

    def take(self) -> None:
        """Remove the first request, which a trial has used."""
        self._queue.popleft()


def first_start(
    answer: NewTrial, suggestion: Suggestion, records: TrialRecords, seed: int, is_ask_tell: bool
) -> Started:
    """Return the start of a new trial.

    Args:
        answer: The scheduler's answer.
        suggestion: The configuration to run.
        records: Records of the earlier trials.
        seed: The sweep's seed.
        is_ask_tell: Whether trials run outside hpsearch, and their caller keeps their states.

    Raises:
        ValueError: The trial to fork doesn't exist, or the fork would start after its own end.
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
        # The fork repeats the iterations after the parent's checkpoint, as any trial that resumes from an older one.
        start = min(start, parent.iteration) if parent.checkpoint is not None or is_ask_tell else 0
    trial = Trial(
        number=answer.number,
        params=suggestion.params,
        seed=trial_seed(seed, answer.number if answer.configuration is None else answer.repeat),
        origin=suggestion.origin,
        parent=parent,
        start=start,
        configuration=answer.configuration,
        repeat=answer.repeat,
    )
    checkpoint = None if parent is None else parent.checkpoint
    segment = Segment(answer.number, start, answer.until, checkpoint, 1)
    return Started(segment, trial, bracket=answer.bracket, rung=answer.rung)


def record_of_parent(state: StateAt, records: TrialRecords) -> TrialRecord:
    """Return the record of a trial that will be forked.

    Raises:
        ValueError: The trial doesn't exist.
    """
    if not 0 <= state.trial < len(records):
        raise ValueError(f"a trial must be forked from one of {len(records)}, got {state.trial}")
    return records.of(state.trial)
