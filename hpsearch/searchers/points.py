"""Points known to be good, tried before a searcher's own."""

from __future__ import annotations

import copy
from collections.abc import Sequence

from hpsearch.searchers.base import Searcher, Suggestion
from hpsearch.space import Space
from hpsearch.trial import Params, Report

__all__ = ["PointsToTry"]


class PointsToTry(Searcher):
    """Suggests its points as trials 0, 1, ..., then what another searcher suggests.

    Args:
        searcher: Who goes on after the points.
        points: Flat names to values; parameters that a point leaves out are drawn from the space.
        space: Where they are drawn from.
        seed: The sweep's.
    """

    def __init__(self, searcher: Searcher, points: Sequence[Params], space: Space, seed: int) -> None:
        self._searcher = searcher
        self._points = tuple(space.check(point, partial=True) for point in points)
        self._space = space
        self._seed = seed

    def suggest(self, number: int) -> Suggestion | None:
        """Give point `number`, or behind the last one what the other searcher suggests."""
        if number < len(self._points):
            drawn = self._space.draw(self._seed, number)
            return Suggestion(drawn | copy.deepcopy(self._points[number]), "points_to_try")
        # A grid starts at its first point, or the points would push some of it out. An unbounded searcher
        # keeps the trial's own number: adding a point to a sweep then leaves all other trials as they are.
        skipped = 0 if self._searcher.size is None else len(self._points)
        return self._searcher.suggest(number - skipped)

    @property
    def size(self) -> int | None:
        """Number of points and of the other searcher's suggestions."""
        rest = self._searcher.size
        return None if rest is None else len(self._points) + rest

    def observe(self, report: Report) -> None:
        """Pass a report on."""
        self._searcher.observe(report)
