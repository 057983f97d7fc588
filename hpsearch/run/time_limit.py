"""Running time and time limit of a run, without pauses."""

from __future__ import annotations

import math

from hpsearch.backends.base import Backend


class TimeLimit:
    """Holds a sweep to `limits.max_time`, by its backend's clock.

    Args:
        backend: The backend, whose clock is used, and whose `wait` is ended in time.
        most: Limit of all runs of the sweep together, in seconds; None: none.
        spent: Seconds of earlier runs.
    """

    def __init__(self, backend: Backend, most: float | None, spent: float) -> None:
        self._backend = backend
        self._remaining = math.inf if most is None else most - spent
        self._began = 0.0
        self._until = math.inf
        self._paused_since: float | None = None

    def begin(self) -> None:
        """Start the clock, once the backend is open."""
        self._began = self._backend.now()
        self._last_until(self._began + self._remaining)

    @property
    def elapsed(self) -> float:
        """Seconds since it began, pauses included."""
        return self._backend.now() - self._began

    @property
    def is_up(self) -> bool:
        """Whether the time is over; never in a pause."""
        return not self.is_paused and self._backend.now() >= self._until

    @property
    def is_paused(self) -> bool:
        """Whether the clock is paused."""
        return self._paused_since is not None

    def pause(self) -> None:
        """Pause the clock."""
        self._paused_since = self._backend.now()

    def resume(self) -> None:
        """Resume the clock."""
        assert self._paused_since is not None, "it is paused"
        self._last_until(self._until + self._backend.now() - self._paused_since)
        self._paused_since = None

    def _last_until(self, when: float) -> None:
        self._until = when
        if when < math.inf:
            self._backend.wake(when)
