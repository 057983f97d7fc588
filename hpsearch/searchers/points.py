"""Points known to be good, tried before a searcher's own."""

from __future__ import annotations

import copy
from collections.abc import Sequence

from hpsearch.searchers.base import NotYet, Searcher, Suggestion
from hpsearch.space import Space
from hpsearch.trial import Params, Trial

__all__ = ["PointsToTry"]


class PointsToTry:
    """Suggests its points as trials 0, 1, ..., then what a searcher suggests.

    Args:
        searcher: Who goes on after the points.
        points: Flat names to values; parameters that a point leaves out are drawn from the space.
        space: Where they are drawn from.
        seed: The sweep's.
    """

    def __init__(self, searcher: Searcher, points: Sequence[Params], space: Space, seed: int) -> None:
        self.searcher = searcher
        self._points = tuple(space.check(point, partial=True) for point in points)
        self._space = space
        self._seed = seed

    def suggest(self, number: int) -> Suggestion | NotYet | None:
        """Give point `number`, or behind the last one what the searcher suggests."""
        if number < len(self._points):
            drawn = self._space.draw(self._seed, number)
            return Suggestion(drawn | copy.deepcopy(self._points[number]), "points_to_try")
        # A grid starts at its first point, or the points would push some of it out. An unbounded searcher
        # keeps the trial's own number: adding a point to a sweep then leaves all other trials as they are.
        skipped = 0 if self.searcher.size is None else len(self._points)
        return self.searcher.suggest(number - skipped)

    def explore(self, number: int, parent: Trial) -> Suggestion | NotYet:
        """Ask the searcher."""
        return self.searcher.explore(number, parent)

    @property
    def size(self) -> int | None:
        """Number of points and of the searcher's suggestions."""
        rest = self.searcher.size
        return None if rest is None else len(self._points) + rest
