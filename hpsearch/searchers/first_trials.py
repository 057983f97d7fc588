"""The trials before the first suggestion of a searcher: points to try, and random ones."""

from __future__ import annotations

import copy
from collections.abc import Sequence

from hpsearch.searchers.base import Searcher, Suggestion
from hpsearch.searchers.tried import TriedConfigurations
from hpsearch.seeds import stand_in_seed
from hpsearch.space import Space
from hpsearch.trial import Params

ADDED = "added"
"""Origin of a point that a user added to a study that had begun."""

RETRY = "retry"
"""Origin of a failed trial's configuration that is run once more, as another trial."""

STAND_IN = "stand_in"
"""Origin of a random configuration that is used because no suggestion was ready."""


class FirstTrials:
    """The points to try as trials 0, 1, ..., then the random trials that a learning searcher begins with.

    Args:
        searcher: The searcher that suggests after them.
        points: Flat names to values; parameters that a point leaves out are sampled.
        space: The space that is sampled.
        seed: The sweep's.
    """

    def __init__(self, searcher: Searcher, points: Sequence[Params], space: Space, seed: int) -> None:
        self._points = tuple(space.check(point, partial=True) for point in points)
        self._space = space
        self._seed = seed
        self._draws = self._drawn_first(searcher.draws_first)
        self.count = len(self._points) + len(self._draws)
        """How many there are."""
        # A grid starts at its first point, or the points would push some of it out. An unbounded searcher
        # keeps the trial's own number: adding a point to a sweep then leaves all other trials as they are.
        self.skipped = 0 if searcher.size is None else self.count
        """By how much a searcher's numbers are less than the numbers of suggestions."""

    def suggest(self, number: int) -> Suggestion | None:
        """Return one of them; None where every configuration of the space was among those before it."""
        if number < len(self._points):
            return self._point(number)
        return _drawn(copy.deepcopy(self._draws[number - len(self._points)]), "random")

    def _point(self, number: int) -> Suggestion:
        return Suggestion(self._space.complete(self._points[number], self._seed, number), "points_to_try")

    def _drawn_first(self, count: int) -> list[Params | None]:
        """Sample the trials after the points, each unlike those before it."""
        tried = TriedConfigurations(self._space)
        for number in range(len(self._points)):
            tried.add(self._point(number).params)
        draws: list[Params | None] = []
        for number in range(len(self._points), count):
            draws.append(tried.draw(self._seed, number))
            tried.add(draws[-1] or {})
        return draws

    def stand_in(self, trial: int, tried: TriedConfigurations) -> Suggestion | None:
        """Return what a trial uses if no suggestion is ready: a sample from a stream of its own."""
        return _drawn(tried.draw(stand_in_seed(self._seed), trial), STAND_IN)

    def replacement(self, number: int, tried: TriedConfigurations) -> Suggestion | None:
        """Return the replacement of a suggestion that was tried while it was computed."""
        return _drawn(tried.draw(self._seed, number), "random")


def _drawn(params: Params | None, origin: str) -> Suggestion | None:
    return None if params is None else Suggestion(params, origin)
