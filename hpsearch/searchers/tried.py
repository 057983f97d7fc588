"""Points that haven't been tried."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property

from hpsearch.seeds import redraw_seed, suggestion_seed
from hpsearch.space import Broken, Space
from hpsearch.space.distribution import own_copy
from hpsearch.trial import Params, Value

__all__ = ["TriedConfigurations"]

_REDRAWS = 20
"""Draws before that."""

_MOST_POINTS = 100_000
"""Of a finite space whose untried points are counted out."""

_MOVES = 1_000
"""Steps from a tried point to an untried one, in any other space: some of its points may be drawn again and again."""


class TriedConfigurations:
    """The points of a space that have been tried, and draws of others."""

    def __init__(self, space: Space) -> None:
        self._space = space
        self._points: set[str] = set()

    @cached_property
    def _every(self) -> Mapping[str, dict[str, Value]] | None:
        """All points, by what equal ones share; None where they can't be counted out."""
        points = self._space.every_point(_MOST_POINTS)
        return None if points is None else {self._space.key(point): point for point in points}

    def add(self, params: Params) -> None:
        """Count a point as tried."""
        self._points.add(self._space.key(params))

    def __contains__(self, params: Params) -> bool:
        return self._space.key(params) in self._points

    def draw(self, seed: int, number: int) -> dict[str, Value] | None:
        """Draw a point that wasn't tried; it depends on (seed, number) and on what was. None where none is left.

        A branch without numbers of its own is a single point, however likely it is. Where draws give nothing new, and
        the points can't be counted out, a walk of mutations leads away from there.
        """
        drawn = self._space.draw(seed, number)
        for attempt in range(1, _REDRAWS):
            if drawn not in self:
                return drawn
            drawn = self._space.draw(redraw_seed(seed, attempt), number)
        if self._every is not None:
            left = [key for key in self._every if key not in self._points]
            return own_copy(self._every[left[number % len(left)]]) if left else None
        for attempt in range(_MOVES):
            if drawn not in self:
                break
            with suppress(Broken):  # nothing near it keeps the constraints
                drawn = self._space.mutate(drawn, suggestion_seed(seed, number, _REDRAWS + attempt))
        return drawn
