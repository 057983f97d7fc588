"""First trials and the searcher after them, as one."""

from __future__ import annotations

from collections.abc import Sequence

from hpsearch.searchers import Searcher, Suggestion
from hpsearch.searchers.first_trials import FirstTrials
from hpsearch.space import Space
from hpsearch.trial import Params


class FirstThen:
    """Suggests as a sweep does whose searcher doesn't learn."""

    def __init__(self, searcher: Searcher, points: Sequence[Params], space: Space, seed: int) -> None:
        self._searcher = searcher
        self._first = FirstTrials(searcher, points, space, seed)

    @property
    def size(self) -> int | None:
        return None if self._searcher.size is None else self._first.count + self._searcher.size

    def suggest(self, number: int) -> Suggestion | None:
        if number < self._first.count:
            return self._first.suggest(number)
        return self._searcher.suggest(number - self._first.skipped)
