"""Random search: every trial is an independent draw from the space."""

from __future__ import annotations

from typing import ClassVar

from hpsearch.searchers.base import Problem, Searcher, Suggestion
from hpsearch.seeds import explore_seed
from hpsearch.space import Space
from hpsearch.trial import Trial

__all__ = ["RandomSearcher"]


class RandomSearcher(Searcher):
    """Draws each trial by itself, so that its params depend on (seed, n) alone."""

    kind: ClassVar[str] = "random"
    explores: ClassVar[bool] = True

    def __init__(self, space: Space, seed: int) -> None:
        self._space = space
        self._seed = seed

    @classmethod
    def build(cls, problem: Problem) -> Searcher:
        """Build it."""
        return cls(problem.space, problem.seed)

    def suggest(self, number: int) -> Suggestion:
        """Draw the params of trial `number`."""
        return Suggestion(self._space.draw(self._seed, number), "random")

    def explore(self, number: int, parent: Trial) -> Suggestion:
        """Draw all params anew, from a stream of its own: `suggest` may come to the same number."""
        return Suggestion(self._space.draw(explore_seed(self._seed), number), "random")

    @property
    def size(self) -> None:
        """There is no end of draws."""
        return None
