"""A trial without a search: what the built-in trainables need to run in a plain loop."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["PlainTrial"]


class PlainTrial:
    """Runs a number of iterations from zero and forgets what is reported."""

    checkpoint = None

    def __init__(self, params: Mapping[str, Any], iterations: int = 0) -> None:
        self.params = params
        self._iterations = iterations

    def iterations(self) -> Iterator[int]:
        """Give the numbers of the iterations."""
        return iter(range(1, self._iterations + 1))

    def report(self, metrics: Mapping[str, Any], checkpoint: object = None) -> None:
        """Forget it."""
