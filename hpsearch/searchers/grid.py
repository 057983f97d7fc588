"""Grid search: every combination once; the first parameter varies slowest."""

from __future__ import annotations

from hpsearch.searchers.base import Searcher, Suggestion
from hpsearch.space import Space

__all__ = ["GridSearcher"]


class GridSearcher(Searcher):
    """Walks the grid in order.

    Raises:
        InvalidKey: A parameter is continuous and names no `points`.
    """

    def __init__(self, space: Space) -> None:
        self._space = space
        self._size = space.grid_size

    def suggest(self, number: int) -> Suggestion | None:
        """Give point `number` of the grid, or None behind its end."""
        if number >= self._size:
            return None
        return Suggestion(self._space.grid_point(number), "grid")

    @property
    def size(self) -> int:
        """Number of points of the grid."""
        return self._size
