"""What is tried before a searcher is asked."""

from __future__ import annotations

import copy
from collections.abc import Sequence

from hpsearch.searchers.base import Searcher, Suggestion
from hpsearch.searchers.tried import TriedConfigurations
from hpsearch.seeds import stand_in_seed
from hpsearch.space import Space
from hpsearch.trial import Params

__all__ = ["ADDED", "RETRY", "STAND_IN", "FirstTrials"]

ADDED = "added"
"""Origin of a point that a user added to a study that had begun."""

RETRY = "retry"
"""Origin of a failed trial's point that is run once more, as another trial."""

STAND_IN = "stand_in"
"""Origin of a random point that was taken because no suggestion was ready."""


class FirstTrials:
    """Points known to be good as trials 0, 1, ..., then the draws that a searcher that learns begins with.

    Args:
        searcher: Who goes on after them.
        points: Flat names to values; parameters that a point leaves out are drawn from the space.
        space: Where they are drawn from.
        seed: The sweep's.
    """

    def __init__(self, searcher: Searcher, points: Sequence[Params], space: Space, seed: int) -> None:
        self._points = tuple(space.check(point, partial=True) for point in points)
        self._space = space
        self._seed = seed
        self._draws = self._drawn_first(searcher.draws_first)
        self.count = len(self._points) + len(self._draws)
        """How many they are."""
        # A grid starts at its first point, or the points would push some of it out. An unbounded searcher
        # keeps the trial's own number: adding a point to a sweep then leaves all other trials as they are.
        self.skipped = 0 if searcher.size is None else self.count
        """What a searcher's number lags behind."""

    def suggest(self, number: int) -> Suggestion | None:
        """Give one of them; None where every point of the space was among those before it."""
        if number < len(self._points):
            return self._point(number)
        return _drawn(copy.deepcopy(self._draws[number - len(self._points)]), "random")

    def _point(self, number: int) -> Suggestion:
        return Suggestion(self._space.complete(self._points[number], self._seed, number), "points_to_try")

    def _drawn_first(self, count: int) -> list[Params | None]:
        """Draw those behind the points, each unlike those before it."""
        tried = TriedConfigurations(self._space)
        for number in range(len(self._points)):
            tried.add(self._point(number).params)
        draws: list[Params | None] = []
        for number in range(len(self._points), count):
            draws.append(tried.draw(self._seed, number))
            tried.add(draws[-1] or {})
        return draws

    def stand_in(self, trial: int, tried: TriedConfigurations) -> Suggestion | None:
        """Give what a trial takes where no suggestion is ready: a draw from a stream of its own."""
        return _drawn(tried.draw(stand_in_seed(self._seed), trial), STAND_IN)

    def instead(self, number: int, tried: TriedConfigurations) -> Suggestion | None:
        """Give what stands in the place of a suggestion that was tried while it was worked out."""
        return _drawn(tried.draw(self._seed, number), "random")


def _drawn(params: Params | None, origin: str) -> Suggestion | None:
    return None if params is None else Suggestion(params, origin)
