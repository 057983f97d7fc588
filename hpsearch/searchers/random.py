"""Random search: every trial is an independent draw from the space."""

from __future__ import annotations

from typing import ClassVar

from hpsearch.searchers.base import Searcher, Suggestion
from hpsearch.space import Space

__all__ = ["RandomSearcher"]


class RandomSearcher(Searcher):
    """Draws each trial by itself, so that its params depend on (seed, n) alone."""

    kind: ClassVar[str] = "random"

    def __init__(self, space: Space, seed: int) -> None:
        self._space = space
        self._seed = seed

    @classmethod
    def build(cls, space: Space, seed: int) -> Searcher:
        """Build it."""
        return cls(space, seed)

    def suggest(self, number: int) -> Suggestion:
        """Draw the params of trial `number`."""
        return Suggestion(self._space.draw(self._seed, number), "random")

    @property
    def size(self) -> None:
        """There is no end of draws."""
        return None
