"""Randomized exponential backoff of sweeps that share a cluster, each of which may hold workers that the other needs.

A sweep that can't start anything with its workers, while others hold or request the rest, releases its own, waits for a
random time and requests them again. The times grow, so that in the end one sweep starts while the other waits, however
slowly workers start.
"""

from __future__ import annotations

import random
from collections.abc import Callable

__all__ = ["FIRST_SECONDS", "MOST_SECONDS", "Backoff"]

FIRST_SECONDS = 3.0
"""How long a sweep holds too few workers before it first releases them."""

MOST_SECONDS = 20.0
"""The longest such time."""


class Backoff:
    """When one sweep releases and requests workers. It only counts them."""

    def __init__(self, draw: Callable[[float, float], float] = random.uniform) -> None:
        self.given_back = 0
        """Workers that were released, to be requested again."""
        self._draw = draw
        self._patience = FIRST_SECONDS
        self._since: float | None = None
        self._held = 0
        self._again = 0.0

    def is_due(self, now: float, stuck: bool, held: int) -> bool:
        """Record whether the sweep is stuck; return whether it has been for long enough to release its workers.

        Args:
            now: Seconds.
            stuck: Whether it holds too few workers, and waits for more.
            held: Number of workers that it holds; while that grows, the time starts anew.
        """
        if not stuck or self._since is None or held > self._held:
            self._since = now
        self._held = held
        return stuck and now - self._since >= self._patience

    def wait_on(self) -> None:
        """Wait for the same time again, as no other sweep requests workers."""
        self._since = None

    def give_way(self, now: float, workers: int) -> None:
        """Record that workers were released."""
        self.given_back += workers
        self._since = None
        self._again = now + self._patience * self._draw(0.5, 1.5)
        self._patience = min(2 * self._patience, MOST_SECONDS)

    def ask(self, now: float) -> int:
        """Return the number of workers to ask for now."""
        if now < self._again:
            return 0
        workers, self.given_back = self.given_back, 0
        return workers

    def settle(self) -> None:
        """Record that there are enough workers."""
        self._patience = FIRST_SECONDS
