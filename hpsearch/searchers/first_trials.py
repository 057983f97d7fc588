"""The trials before the first suggestion of a searcher: points to try, and random configurations."""

from __future__ import annotations

import copy
from collections.abc import Sequence

from hpsearch.searchers.base import Searcher, Suggestion
from hpsearch.searchers.tried import TriedConfigurations
from hpsearch.seeds import stand_in_seed
from hpsearch.space import Space
from hpsearch.trial import Params

ADDED = "added"
"""Origin of a configuration that a user added to a running or finished study."""

RETRY = "retry"
"""Origin of a failed trial's configuration that is retried as a new trial."""

STAND_IN = "stand_in"
"""Origin of a random configuration that is used because no suggestion was ready."""


class FirstTrials:
    """The points to try as trials 0, 1, ..., then the random trials before a learning searcher's first suggestion.

    Args:
        searcher: The searcher that suggests after them.
        points: Flat names to values; omitted parameters are sampled.
        space: The space that is sampled.
        seed: Seed of the sweep.
    """

    def __init__(self, searcher: Searcher, points: Sequence[Params], space: Space, seed: int) -> None:
        self._points = tuple(space.check(point, partial=True) for point in points)
        self._space = space
        self._seed = seed
        self._draws = self._drawn_first(searcher.draws_first)
        self.count = len(self._points) + len(self._draws)
        """Number of first trials."""
        # A finite searcher starts at its suggestion 0, otherwise the points to try would replace some of a grid. An
        # infinite one uses the trial's number, so that another point to try doesn't change the other trials.
        self.skipped = 0 if searcher.size is None else self.count
        """Difference between the sweep's number of a suggestion and the number that is passed to the searcher."""

    def suggest(self, number: int) -> Suggestion | None:
        """Return first trial `number`; None if the earlier ones contain every configuration of the space."""
        if number < len(self._points):
            return self._point(number)
        return _drawn(copy.deepcopy(self._draws[number - len(self._points)]), "random")

    def _point(self, number: int) -> Suggestion:
        return Suggestion(self._space.complete(self._points[number], self._seed, number), "points_to_try")

    def _drawn_first(self, count: int) -> list[Params | None]:
        """Sample the trials after the points to try, without repeating a configuration."""
        tried = TriedConfigurations(self._space)
        for number in range(len(self._points)):
            tried.add(self._point(number).params)
        draws: list[Params | None] = []
        for number in range(len(self._points), count):
            draws.append(tried.draw(self._seed, number))
            tried.add(draws[-1] or {})
        return draws

    def stand_in(self, trial: int, tried: TriedConfigurations) -> Suggestion | None:
        """Return the random configuration of a trial for which no suggestion is ready, from a separate stream."""
        return _drawn(tried.draw(stand_in_seed(self._seed), trial), STAND_IN)

    def replacement(self, number: int, tried: TriedConfigurations) -> Suggestion | None:
        """Return the replacement of a suggestion whose configuration was tried while it was computed."""
        return _drawn(tried.draw(self._seed, number), "random")


def _drawn(params: Params | None, origin: str) -> Suggestion | None:
    return None if params is None else Suggestion(params, origin)
