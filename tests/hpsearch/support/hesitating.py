"""What makes a searcher one that takes its time, and does so at the same places in each run."""

from __future__ import annotations

from hpsearch.searchers.base import NotYet, Searcher, Suggestion
from hpsearch.trial import Trial

__all__ = ["Hesitating"]


class Hesitating(Searcher):
    """Stands before a searcher that it derives from, too; answers only when it is asked for the third time."""

    _asked = 0

    def suggest(self, number: int) -> Suggestion | NotYet | None:
        self._asked += 1
        return super().suggest(number) if self._asked % 3 == 0 else NotYet()  # type: ignore[safe-super]

    def explore(self, number: int, parent: Trial) -> Suggestion | NotYet:
        self._asked += 1
        return super().explore(number, parent) if self._asked % 3 == 0 else NotYet()
