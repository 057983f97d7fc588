"""The configurations that have been tried, and sampling of untried ones."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property

from hpsearch.seeds import redraw_seed, suggestion_seed
from hpsearch.space import Broken, Space
from hpsearch.space.distribution import own_copy
from hpsearch.trial import Params, Value

_REDRAWS = 20
"""Number of samples that may have been tried, before an untried configuration is searched for."""

_MOST_POINTS = 100_000
"""Maximum number of configurations of a space that is enumerated."""

_MOVES = 1_000
"""Maximum number of mutations from a tried configuration to an untried one, in a space that isn't enumerated: a few
configurations may have nearly all of its probability."""


class TriedConfigurations:
    """The configurations of a space that have been tried; samples untried ones."""

    def __init__(self, space: Space) -> None:
        self._space = space
        self._points: set[str] = set()

    @cached_property
    def _every(self) -> Mapping[str, dict[str, Value]] | None:
        """Key to configuration, for all of the space; None if they can't be enumerated."""
        points = self._space.every_point(_MOST_POINTS)
        return None if points is None else {self._space.key(point): point for point in points}

    def add(self, params: Params) -> None:
        """Add a configuration that was tried."""
        self._points.add(self._space.key(params))

    def __contains__(self, params: Params) -> bool:
        return self._space.key(params) in self._points

    def draw(self, seed: int, number: int) -> dict[str, Value] | None:
        """Sample an untried configuration; None if none is left.

        The sample depends on (seed, number) and the tried configurations. A branch without further parameters may be a
        single configuration with a high probability. So if sampling finds nothing new and the space can't be
        enumerated, a random walk of mutations searches for an untried configuration.
        """
        drawn = self._space.draw(seed, number)
        for attempt in range(1, _REDRAWS):
            if drawn not in self:
                return drawn
            drawn = self._space.draw(redraw_seed(seed, attempt), number)
        if self._every is not None:
            untried = [key for key in self._every if key not in self._points]
            return own_copy(self._every[untried[number % len(untried)]]) if untried else None
        for attempt in range(_MOVES):
            if drawn not in self:
                break
            with suppress(Broken):  # no mutation that was sampled satisfies the constraints
                drawn = self._space.mutate(drawn, suggestion_seed(seed, number, _REDRAWS + attempt))
        return drawn
