"""Points that new trials take before anything is suggested: of failed trials that run once more, and added by hand."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from hpsearch.searchers import Suggestion
from hpsearch.searchers.points import ADDED, RETRY
from hpsearch.space import Space
from hpsearch.study.trial_records import TrialRecords
from hpsearch.trial import Params, Parent, StateAt, Trial

__all__ = ["Requested"]


class Requested:
    """They come in the order in which they were asked for, and don't count in the searcher's own order.

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
        """Points that were added by now."""

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def points(self) -> list[Params]:
        """Those that were added and that no trial has taken yet."""
        return [point for point in self._queue if not isinstance(point, int)]

    def again(self, trial: int) -> None:
        """Let the point of a failed trial run once more."""
        self._queue.append(trial)
        self.retaken.add(trial)

    def add(self, point: Params) -> None:
        """Let a point run; it may be partial."""
        self._queue.append(point)
        self.added += 1

    def upcoming(self) -> Iterator[int | Params]:
        """Give what new trials take, one by one; for `suggestion`."""
        return iter(tuple(self._queue))

    def suggestion(self, asked: int | Params, number: int) -> Suggestion:
        """Give what trial `number` is to run."""
        if isinstance(asked, int):
            return _once_more(self._records.of(asked).trial)
        return Suggestion(self._space.complete(asked, self._seed, number), ADDED)

    def take(self) -> None:
        """Let go of the first one: a trial has it."""
        self._queue.popleft()


def _once_more(trial: Trial) -> Suggestion:
    """Give a trial's params to another one; its weights too, where it inherited some at its own beginning."""
    return Suggestion(trial.params, RETRY, _state_of(trial.parent) if trial.start == 0 else None)


def _state_of(parent: Parent | None) -> StateAt | None:
    return None if parent is None else StateAt(parent.number, parent.iteration)
