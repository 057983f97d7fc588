"""Random search: every trial is sampled independently from the space."""

from __future__ import annotations

from typing import ClassVar

from hpsearch.searchers.base import Searcher, SearcherCapabilities, Suggestion
from hpsearch.seeds import explore_seed
from hpsearch.trial import Trial


class RandomSearcher(Searcher):
    """Samples each trial independently, so that its params depend only on (seed, number)."""

    kind: ClassVar[str] = "random"
    capabilities: ClassVar[SearcherCapabilities] = SearcherCapabilities(explores=True)

    def suggest(self, number: int) -> Suggestion:
        """Sample the params of trial `number`."""
        return Suggestion(self.problem.space.draw(self.problem.seed, number), "random")

    def explore(self, number: int, parent: Trial) -> Suggestion:
        """Sample all params again, from a separate stream, because `suggest` may be called with the same number."""
        return Suggestion(self.problem.space.draw(explore_seed(self.problem.seed), number), "random")
