"""Random search: every trial is an independent draw from the space."""

from __future__ import annotations

from typing import ClassVar

from hpsearch.searchers.base import Observation, Searcher, SearcherCapabilities, Suggestion
from hpsearch.seeds import explore_seed
from hpsearch.trial import Trial

__all__ = ["RandomSearcher"]


class RandomSearcher(Searcher):
    """Draws each trial by itself, so that its params depend on (seed, n) alone."""

    kind: ClassVar[str] = "random"
    capabilities: ClassVar[SearcherCapabilities] = SearcherCapabilities(explores=True)

    def suggest(self, number: int) -> Suggestion:
        """Draw the params of trial `number`."""
        return Suggestion(self.problem.space.draw(self.problem.seed, number), "random")

    def observe(self, observation: Observation) -> None:
        """Ignore it: the suggestions depend on their numbers alone."""

    def explore(self, number: int, parent: Trial) -> Suggestion:
        """Draw all params anew, from a stream of its own: `suggest` may come to the same number."""
        return Suggestion(self.problem.space.draw(explore_seed(self.problem.seed), number), "random")
