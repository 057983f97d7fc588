"""Two sweeps on one cluster may each hold a part of what the other needs, for ever: when to give such a part back.

Whoever can start nothing with the workers at hand, while others hold or want the rest, gives its own back, waits for a
random while, and asks again. The whiles grow, so that in the end one asks while the other waits, however slowly workers
start here.
"""

from __future__ import annotations

import random
from collections.abc import Callable

__all__ = ["FIRST_SECONDS", "MOST_SECONDS", "Backoff"]

FIRST_SECONDS = 3.0
"""How long a sweep holds too few workers before it gives them back for the first time."""

MOST_SECONDS = 20.0
"""The same, in the end."""


class Backoff:
    """The clock of one sweep's giving way; it counts workers, and kills none."""

    def __init__(self, draw: Callable[[float, float], float] = random.uniform) -> None:
        self.given_back = 0
        """Workers that were given back, to be asked for again."""
        self._draw = draw
        self._patience = FIRST_SECONDS
        self._since: float | None = None
        self._held = 0
        self._again = 0.0

    def is_due(self, now: float, stuck: bool, held: int) -> bool:
        """Take note of whether the sweep can start nothing; say whether that has lasted for long enough.

        Args:
            now: Seconds.
            stuck: Whether it holds too few workers, and waits for more.
            held: How many it holds: while they become more it isn't stuck for good.
        """
        if not stuck or self._since is None or held > self._held:
            self._since = now
        self._held = held
        return stuck and now - self._since >= self._patience

    def wait_on(self) -> None:
        """Nobody else wants the room: wait as long again."""
        self._since = None

    def give_way(self, now: float, workers: int) -> None:
        """Note that so many workers were given back."""
        self.given_back += workers
        self._since = None
        self._again = now + self._patience * self._draw(0.5, 1.5)
        self._patience = min(2 * self._patience, MOST_SECONDS)

    def ask(self, now: float) -> int:
        """Give the number of workers to ask for now."""
        if now < self._again:
            return 0
        workers, self.given_back = self.given_back, 0
        return workers

    def settle(self) -> None:
        """Note that there are workers enough."""
        self._patience = FIRST_SECONDS
