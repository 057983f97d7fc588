"""Grid search: every combination once; the first parameter varies slowest."""

from __future__ import annotations

from typing import ClassVar

from hpsearch.config.checks import under
from hpsearch.searchers.base import Problem, Searcher, SearcherCapabilities, Suggestion, listed, refuse_priors


class GridSearcher(Searcher):
    """Enumerates the grid in order.

    Raises:
        InvalidKey: A parameter is continuous and has no `points`.
    """

    kind: ClassVar[str] = "grid"
    capabilities: ClassVar[SearcherCapabilities] = SearcherCapabilities(
        finite=True, completes_points=False, changes=False
    )

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self._size = problem.space.grid_size

    @classmethod
    def check(cls, problem: Problem) -> None:
        """Check that every parameter has a grid, and that none has a prior, which would have no effect."""
        listed(problem, "grid, which tries every point")
        with under(("parameters",)):
            _ = problem.space.grid_size
        refuse_priors(problem, "a grid, which tries every value")

    def suggest(self, number: int) -> Suggestion | None:
        """Return point `number` of the grid, or None after the last."""
        if number >= self._size:
            return None
        return Suggestion(self.problem.space.grid_point(number), "grid")

    @property
    def size(self) -> int:
        """Number of points of the grid."""
        return self._size
