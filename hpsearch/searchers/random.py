"""Random search: every trial is an independent draw from the space."""

from __future__ import annotations

from numpy.random import PCG64, Generator, SeedSequence

from hpsearch.searchers.base import Searcher, Suggestion
from hpsearch.space import Space

__all__ = ["RandomSearcher"]


class RandomSearcher(Searcher):
    """Draws trial n from a generator of its own, so that its params depend on (seed, n) alone."""

    def __init__(self, space: Space, seed: int) -> None:
        self._space = space
        self._seed = seed

    def suggest(self, number: int) -> Suggestion:
        """Draw the params of trial `number`."""
        rng = Generator(PCG64(SeedSequence([self._seed, number])))
        return Suggestion(self._space.sample(rng), "random")

    @property
    def size(self) -> None:
        """There is no end of draws."""
        return None
